"""Our kernels of attention, each with the table that it goes by, the candidates for its entries, and its work."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from perf.workloads import attention_choices as choices
from perf.workloads import attention_launches as launches
from perf.workloads.attention_launches import WAYS, Run, Tensors
from perf.workloads.attention_problem import AttentionProblem

ROWS, WARPS = (32, 64, 128), (4, 8)

Shape = tuple[int, ...]
"""batch, heads, seq_len, and the heads of k and v if these are fewer."""


class Work(NamedTuple):
    """The least that a kernel does: matrix products for each tile, and tensors of at least k's size."""

    products: int
    read: int
    written: int


FORWARD, BACKWARD = Work(2, 3, 1), Work(5, 5, 3)


@dataclass(frozen=True)
class Kernel:
    """A kernel with its candidates and the cells in which these are compared."""

    table: str
    """The table of `cs336_systems.attention`, in `tiles` or `hopper_tables`, in words."""

    make: Callable[[AttentionProblem, Tensors, tuple[int, ...]], Run]
    """Plan its launch with the numbers of a candidate."""

    chosen: choices.Choose
    """The entry of the table that is used here, and its numbers."""

    values: dict[str, tuple[int, ...]]
    """The meaning of a candidate's numbers, and the values that are tried."""

    shapes: tuple[Shape, ...]
    mode: str = "backward"
    dims: tuple[int, ...] = (16, 32, 64, 128)
    dtypes: tuple[str, ...] = ("bfloat16", "float32")
    work: Work = BACKWARD
    is_gluon: bool = False
    """Whether it is for compute capability 9.0 alone."""

    others_hang: bool = False
    """Whether other values hang: warps that wait for each other are written for these alone."""

    suits: Callable[..., bool] = lambda *numbers: True
    """Whether a combination is worth a try."""

    @property
    def form(self) -> str:
        """The form in which a candidate is written."""
        return " x ".join(self.values)

    @property
    def candidates(self) -> tuple[str, ...]:
        """All combinations that suit."""
        return tuple(choices.joined(each) for each in itertools.product(*self.values.values()) if self.suits(*each))


def _few_scores(q: int, k: int, warps: int, *others: int) -> bool:
    """Return whether a thread has 8 to 64 scores: more would spill."""
    return 8 <= q * k // (32 * warps) <= 64


def _suits_hopper_forward(*numbers: int) -> bool:
    """Return whether the shared memory and registers are used, and each other choice can matter."""
    k, stages, q_stages, consumers, halves, one_tile, balanced, ping_pong, at_once = numbers
    if consumers == 1:
        return one_tile == 1 and (stages, q_stages, halves, balanced, ping_pong) == (2, 1, 0, 0, 0)
    fits = (stages, consumers < 4) == (2, True) if k == 128 else (stages, halves) == (4, 0)
    in_turns = not ping_pong or (k, consumers) == (128, 2)  # of consumers that visit the same tiles of keys
    return fits and in_turns and at_once == 1 and not (one_tile and (q_stages > 1 or balanced))


PLAIN = {"q": ROWS, "k": ROWS, "warps": WARPS, "stages": (1, 2, 3)}
FLOAT32 = {"stages": (1, 2), "registers": (200, 216, 232, 240)}
MANY: tuple[Shape, ...] = ((2, 16, 16384), (8, 16, 4096), (32, 32, 1024))
ALL: tuple[Shape, ...] = ((1, 1, 4096), (1, 1, 65536), (2, 16, 16384), (32, 32, 1024))
LONG: tuple[Shape, ...] = ((1, 1, 8192), (1, 16, 4096), (2, 16, 16384), (32, 32, 1024))
FEW: tuple[Shape, ...] = ((1, 1, 1024), (1, 1, 2048), (1, 1, 8192), (1, 2, 8192), (1, 4, 4096))
FEW += ((1, 8, 2048), (1, 16, 1024), (1, 32, 1024), (1, 64, 512))

_PIECES = "HOPPER_FLOAT32 of three pieces: one entry for both kernels"
_FORWARD: dict[str, Any] = {"mode": "forward", "work": FORWARD}
_GLUON: dict[str, Any] = {"is_gluon": True, "others_hang": True}

KERNELS = {
    "forward": Kernel(
        "FORWARD_TILES", launches.forward, choices.of_table("FORWARD_TILES"), PLAIN, ALL, **_FORWARD, suits=_few_scores
    ),
    "dkdv": Kernel(
        "DKDV_TILES", launches.dkdv, choices.of_table("DKDV_TILES"), PLAIN, ALL, work=Work(4, 4, 2), suits=_few_scores
    ),
    "dq": Kernel(
        "DQ_TILES, SHORT_GRID_TILES",
        launches.dq,
        choices.of_table("DQ_TILES"),
        PLAIN,
        ALL,
        work=Work(3, 4, 1),
        suits=_few_scores,
    ),
    "at-once": Kernel(
        "AT_ONCE_TILES: both passes in one launch",
        launches.at_once,
        choices.at_once,
        PLAIN | {"stages": (2, 3)},
        ((1, 1, 1024), (1, 1, 4096), (1, 8, 512)),
        dtypes=("bfloat16",),
        suits=_few_scores,
    ),
    "split": Kernel(
        "SPLIT_TILES, and the parts that split_keys makes; 1: not split",
        launches.split,
        choices.split,
        {"q": (64, 128), "k": (64, 128), "warps": WARPS, "stages": (2, 3), "parts": (1, 2, 4, 8, 16)},
        ((1, 1, 1024), (1, 1, 2048), (1, 1, 4096), (1, 1, 8192), (1, 8, 2048)),
        **_FORWARD,
        dtypes=("bfloat16",),
        suits=_few_scores,
    ),
    "hopper-forward": Kernel(
        "HOPPER_FORWARD and its replacements, but for registers",
        launches.hopper_forward,
        choices.hopper_forward,
        {"k": (64, 128), "stages": (2, 4), "q stages": (1, 2), "consumers": (1, 2, 3, 4)}
        | dict.fromkeys(("halves", "one tile", "balanced", "ping-pong"), (0, 1))
        | {"at once": (1, 2, 3)},
        (*MANY, (4, 16, 8192), (32, 16, 1024), (1, 8, 2048)),
        **_FORWARD,
        **_GLUON,
        dims=(64, 128),
        dtypes=("bfloat16",),
        suits=_suits_hopper_forward,
    ),
    "hopper-backward": Kernel(
        "HOPPER_BACKWARD, but for registers",
        launches.hopper_backward,
        choices.hopper_backward,
        {"q": (64,), "stages": (2, 3), "ds stages": (1, 2)},
        MANY,
        **_GLUON,
        dims=(64, 128),
        dtypes=("bfloat16",),
    ),
    "backward-programs": Kernel(
        "backward_splits and backward_heads_at_once; 0 heads: as the latter says",
        launches.backward_programs,
        choices.backward_programs,
        {"splits": (1, 2, 4, 8, 16), "heads at once": (0, 1, 4, 16, 64)},
        ((1, 1, 1024), (1, 1, 4096), (1, 64, 2048, 8), (1, 64, 8192, 8), (1, 64, 32768, 8), (8, 16, 4096)),
        **_GLUON,
        dims=(64, 128),
    ),
    "float32-forward": Kernel(
        _PIECES,
        launches.float32_forward,
        choices.float32_forward,
        FLOAT32 | {"consumers": (1, 2)},
        LONG,
        **_FORWARD,
        **_GLUON,
        dtypes=("float32",),
    ),
    "float32-backward": Kernel(
        _PIECES, launches.float32_backward, choices.float32_backward, FLOAT32, LONG, **_GLUON, dtypes=("float32",)
    ),
    **{
        name: Kernel(
            "the choice: " + ", ".join(f"{number} {way}" for number, way in enumerate(WAYS[name])),
            make,
            chosen,
            {"way": tuple(range(len(WAYS[name])))},
            FEW,
            mode=name.removesuffix("-choice"),
            dims=(16, 32, 64, 80, 128),
            work=work,
            others_hang=True,
        )
        for name, make, chosen, work in (
            ("forward-choice", launches.forward_choice, choices.forward_choice, FORWARD),
            ("backward-choice", launches.backward_choice, choices.backward_choice, BACKWARD),
        )
    },
}
