"""The problems of the 2025 handout in its order: points, the tests that hold them, the measurements they ask for."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from perf.harness.status import ANSWERED
from perf.writeup.source import Source

Axes = dict[str, Any]
PLACE = "perf/studies/results"


@dataclass(frozen=True)
class Need:
    """Rows that a problem asks for, and the command that makes them."""

    study: str
    """NAME of `python -m perf study NAME`, or an asv class: "attention.FlashAttention"."""

    options: str = ""
    asked: tuple[Axes, ...] = ({},)
    """Each is measured if a row has these values; {} stands for any row."""

    document: str = ""
    """The name of its JSON, where it is not the study's."""

    ranks: int = 1

    @property
    def is_asv(self) -> bool:
        """Whether asv measures it."""
        return "." in self.study

    def command(self, machine: str) -> str:
        """Shell command that makes the rows, run in the root of the repository."""
        if self.is_asv:
            return f"asv run -b '^{re.escape(self.study)}\\.' HEAD^!"
        folder = machine if self.ranks == 1 else f"{re.sub(r'-x[0-9]+$', '', machine)}-x{self.ranks}"
        return " ".join(f"python -m perf study {self.study} {self.options} --out {PLACE}/{folder}".split())

    def missing(self, source: Source) -> list[Axes]:
        """Parts of `asked` without a number in the rows on file."""
        if self.is_asv:
            rows = source.newest_cells(self.study).to_dict("records")
        else:
            rows = [row for study in source.named(self.document or self.study) for row in study.rows]
        measured = [row for row in rows if row.get("status", "ok") in ANSWERED]
        return [
            axes
            for axes in self.asked
            if not any(all(row.get(name) == value for name, value in axes.items()) for row in measured)
        ]


@dataclass(frozen=True)
class Problem:
    """One problem."""

    name: str
    points: int
    tests: tuple[str, ...]
    """Under tests/: a file, or file::function."""

    needs: tuple[Need, ...] = ()
    answered: Literal["measured", "worked", "code"] = "measured"
    """By rows; by a closed form; by code, which the tests hold."""

    def missing(self, source: Source) -> Iterator[str]:
        """The commands that would make what is not there."""
        for need in self.needs:
            if need.missing(source):
                yield need.command(source.machine)


def _grid(**axes: tuple[Any, ...]) -> tuple[Axes, ...]:
    return tuple(dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))


SIZES = ("small", "medium", "large", "xl", "2.7B")
XL = {"size": "xl", "world_size": 2}
BUCKETS_MB = (1, 10, 100, 1000)
DDP = "--world-size 2 --size xl " + " ".join(f"--bucket-size-mb {size}" for size in BUCKETS_MB)


def _ddp(*asked: Axes) -> Need:
    """One command for all of them: a study writes one document, and a second run would replace it."""
    return Need("ddp", DDP, tuple(axes | XL for axes in asked), ranks=2)


FLASH = Need(
    "attention.FlashAttention",
    asked=_grid(
        seq_len=tuple(2**n for n in range(7, 17)),
        d=(16, 32, 64, 128),
        dtype=("bfloat16", "float32"),
        mode=("forward", "backward", "forward_backward"),
        impl=("triton", "reference"),
    ),
)
LEADERBOARD = Need("attention.Leaderboard", asked=({"impl": "triton_compiled"},))
ALL_REDUCE = tuple(
    Need(
        "all-reduce",
        f"--world-size {ranks}",
        _grid(device=("cuda", "cpu"), world_size=(ranks,), megabytes=(1, 10, 100, 1000)),
        ranks=ranks,
    )
    for ranks in (2, 4, 6)
)
BUCKETS = _ddp(*({"strategy": "bucketed", "bucket_size_mb": size} for size in BUCKETS_MB))
OVERLAP = Need("overlap", "--size xl", tuple({"strategy": one} | XL for one in ("naive", "overlapped")), ranks=2)
SHARDING = Need(
    "sharding", "--world-size 2 --size xl", tuple({"sharding": one} | XL for one in ("none", "sharded")), ranks=2
)
EQUIVALENCE = Need(
    "ddp-equivalence", "--world-size 2 --steps 3 --local-batch-size 8", ({"strategy": "naive"},), ranks=2
)
STEPS = Need(
    "end-to-end",
    "--context 128 --context 256 --context 512 --context 1024 --precision fp32 --precision bf16",
    _grid(size=SIZES, precision=("fp32", "bf16")),
)
KERNELS = Need("kernels", asked=_grid(size=SIZES, context=(128, 256, 512, 1024)))
COMPILE_ATTENTION = Need(
    "compile",
    "--part attention",
    _grid(seq_len=(256, 1024, 4096, 8192, 16384), d=(16, 32, 64, 128), variant=("eager", "compiled")),
    document="compile-attention",
)

PROBLEMS = (
    Problem("benchmarking_script", 4, ("studies/test_lm.py",), (STEPS, Need("warm-up", asked=_grid(size=SIZES)))),
    Problem("nsys_profile", 5, ("studies/test_kernels.py",), (KERNELS,)),
    Problem(
        "mixed_precision_accumulation",
        1,
        ("studies/test_precision.py",),
        (Need("precision", asked=({"part": "accumulation"},)),),
    ),
    Problem(
        "benchmarking_mixed_precision",
        2,
        ("studies/test_precision.py",),
        (Need("precision", asked=_grid(part=("dtypes", "variances", "training"))), STEPS, KERNELS),
    ),
    Problem(
        "memory_profiling",
        4,
        ("studies/test_memory.py",),
        (Need("memory", asked=_grid(context=(128, 256, 512), precision=("fp32", "bf16"))), STEPS),
    ),
    Problem(
        "pytorch_attention",
        2,
        ("studies/attention/test_memory.py", "accounting/test_attention.py"),
        (COMPILE_ATTENTION, Need("attention-memory")),
    ),
    Problem(
        "torch_compile",
        2,
        ("studies/test_compile.py",),
        (
            COMPILE_ATTENTION,
            Need(
                "compile",
                "--part model --variant eager --variant compiled_blocks --variant compiled",
                _grid(size=SIZES, variant=("eager", "compiled")),
                document="compile-model",
            ),
            KERNELS,
        ),
    ),
    Problem(
        "flash_forward",
        15,
        (
            "attention/test_flash.py::test_flash_forward_pass_pytorch",
            "attention/test_flash.py::test_flash_forward_pass_triton",
            "attention/test_flash.py::test_flash_is_as_exact_as_eager",
        ),
        answered="code",
    ),
    Problem(
        "flash_backward",
        5,
        (
            "attention/test_flash.py::test_flash_backward_pytorch",
            "attention/test_flash.py::test_flash_backward_triton",
            "attention/test_compiled_backward.py",
        ),
        answered="code",
    ),
    Problem("flash_benchmarking", 5, ("workloads/test_workloads.py", "writeup/test_flash.py"), (FLASH,)),
    Problem("leaderboard", 0, ("attention/test_flash.py",), (LEADERBOARD,)),
    Problem(
        "distributed_communication_single_node",
        5,
        ("studies/parallel/test_ranked.py", "workloads/test_rank_workloads.py"),
        ALL_REDUCE,
    ),
    Problem("naive_ddp", 5, ("distributed/test_ddp_training.py",), (EQUIVALENCE,)),
    Problem("naive_ddp_benchmarking", 3, ("studies/parallel/test_ranked.py",), (_ddp({"strategy": "naive"}),)),
    Problem(
        "minimal_ddp_flat_benchmarking",
        2,
        ("studies/parallel/test_ranked.py",),
        (_ddp(*_grid(strategy=("naive", "flat"))),),
    ),
    Problem(
        "ddp_overlap_individual_parameters",
        5,
        ("test_ddp_individual_parameters.py", "distributed/test_ddp_communication.py"),
        answered="code",
    ),
    Problem(
        "ddp_overlap_individual_parameters_benchmarking",
        1,
        ("studies/parallel/test_ranked.py",),
        (_ddp(*_grid(strategy=("naive", "flat", "overlapped"))), OVERLAP),
    ),
    Problem("ddp_overlap_bucketed", 8, ("test_ddp.py", "distributed/test_buckets.py"), answered="code"),
    Problem(
        "ddp_bucketed_benchmarking", 3, ("studies/parallel/test_ranked.py", "accounting/test_buckets.py"), (BUCKETS,)
    ),
    Problem("communication_accounting", 10, ("accounting/test_mesh.py",), answered="worked"),
    Problem(
        "optimizer_state_sharding", 15, ("test_sharded_optimizer.py", "optimizer/test_sharding.py"), answered="code"
    ),
    Problem(
        "optimizer_state_sharding_accounting",
        5,
        ("studies/parallel/test_ranked.py", "accounting/test_sharding.py"),
        (SHARDING,),
    ),
)
"""0 points: optional."""

POINTS = 107
"""Problems of the handout of spring 2025."""
