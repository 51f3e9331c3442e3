"""Of the answers' tables those of our attention beside every other in PyTorch, and the short one for README.md."""

from collections.abc import Callable
from functools import partial
from typing import Any

from perf.studies.answers.rows import Documents, Row, markdown
from perf.studies.attention.cells import AXES, GROUPS, MASKS
from perf.studies.attention.results import Pair, grouped, shape, tflops, timed
from perf.studies.speedups import best, figure, known, milliseconds, speedup_of
from perf.units import digits

NAMES = {
    "sdpa": "SDPA",
    "sdpa_cudnn": "cuDNN",
    "sdpa_flash": "SDPA flash",
    "sdpa_efficient": "SDPA efficient",
    "flex": "FlexAttention",
    "reference": "eager",
    "reference_compiled": "eager, compiled",
}
"""Of the others, as a column has them; sdpa is torch's own choice among its kernels."""

TOGETHER = "forward_backward"
FRONT: tuple[dict[str, Any], ...] = (
    {"group": "leaderboard"},
    *({"group": "grid", "seq_len": n, "d": d, "mode": TOGETHER} for n, d in ((16384, 64), (16384, 128), (1024, 128))),
    *({"group": "long", "d": d, "mode": mode} for d in (16, 64, 128) for mode in ("forward", "backward")),
    {"group": "float32", "d": 64, "ours": "triton"},
    {"group": "float32", "d": 128, "ours": "triton"},
    {"group": "float32", "d": 128, "ours": "triton_tf32"},
    {"group": "short", "seq_len": 1024, "d": 64},
)
"""The causal cells of README.md: a line each."""

ASKED = ("sdpa_cudnn", "sdpa_flash", "sdpa_efficient", "flex")
"""Those with a column there."""

HEADS = {
    "en": ("group: batch x heads x seq_len x d", "ours, ms", "speed-up over the best of the others"),
    "zh": ("组: batch x heads x seq_len x d", "本仓库, ms", "相对其余中最快者的加速比"),
}
WORDS = {
    "en": {"forward": "forward", "backward": "backward", "gpu_wall": "wall clock", "triton_tf32": "TF32 allowed"},
    "zh": {"forward": "前向", "backward": "反向", "gpu_wall": "墙钟时间", "triton_tf32": "允许 TF32"},
}
"""What is said of a cell that is not forward and backward together by CUDA events, without TF32."""


def beside(group: str, found: Documents) -> str:
    """Our time in each cell of a group, and the speed-up over each of the others."""
    mine = [pair for pair in timed(found["attention"]["rows"]) if pair["group"] == group]
    axes = [axis for axis in ("is_causal", "mode", "ours") if len({pair[axis] for pair in mine}) > 1]
    shown = []
    for _, cell in grouped(mine, *AXES, "ours"):
        one, ms = cell[0], milliseconds(cell[0], "ours")
        said = {"is_causal": {"mask": MASKS[one["is_causal"]]}} | {axis: {axis: one[axis]} for axis in ("mode", "ours")}
        cells: Row = {"batch x heads x seq_len x d": _spaced(one)}
        for axis in axes:
            cells |= said[axis]
        cells |= {"ours, ms": digits(ms, 4), "TFLOP/s": digits(tflops(one, ms))}
        cells |= {NAMES.get(pair["against"], pair["against"]): known(*speedup_of(pair)) for pair in cell}
        shown.append(cells)
    return markdown(shown)


def front(language: str, found: Documents) -> str:
    """Ours beside the best of the others and each of them; bold is the fastest, where the intervals leave no doubt."""
    pairs = [pair for pair in timed(found["attention"]["rows"]) if pair["is_causal"]]
    shown = []
    for line in FRONT:
        mine = [pair for pair in pairs if all(pair[axis] == value for axis, value in line.items())]
        ((_, cell),) = grouped(mine, *AXES, "ours")
        speedup, half, name = best(cell, speedup_of)
        ms, beside_it = digits(milliseconds(cell[0], "ours"), 4), f"{known(speedup, half)}, {NAMES[name]}"
        if all(one / (1 + wide) > 1 for one, wide in map(speedup_of, cell)):
            ms = f"**{ms}**"
        elif speedup * (1 + half) < 1:
            beside_it = f"**{beside_it}**"
        others = {pair["against"]: figure(speedup_of(pair)[0]) for pair in cell}
        shown.append(
            dict(zip(HEADS[language], (_named(cell[0], WORDS[language]), ms, beside_it), strict=True))
            | {NAMES[name]: others.get(name, "-") for name in ASKED}
        )
    return markdown(shown)


def _named(pair: Pair, words: dict[str, str]) -> str:
    """The group and the shape, and what is not as in most lines."""
    unlike = [words[pair[axis]] for axis in ("mode", "clock", "ours") if pair[axis] in words]
    return ", ".join([f"{pair['group']}: {_spaced(pair)}", *unlike])


def _spaced(pair: Pair) -> str:
    return shape(pair).replace("x", " x ")


ATTENTION_TABLES: dict[str, Callable[[Documents], str]] = {
    f"attention-{group}": partial(beside, group) for group in GROUPS
}
FRONT_TABLES: dict[str, Callable[[Documents], str]] = {
    f"attention-front-{language}": partial(front, language) for language in HEADS
}
"""By the names in the marks of README.md and README.zh.md."""
