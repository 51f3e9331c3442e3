"""The problems of the handouts of spring 2025 and spring 2026, each in its own order."""

import itertools
from dataclasses import replace
from typing import Any

from perf.studies.lm import SIZES_2025
from perf.writeup.problems import Axes, Edition, Need, Problem


def _grid(**axes: tuple[Any, ...]) -> tuple[Axes, ...]:
    return tuple(dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))


SIZES_2026 = ("small", "medium", "large", "2.7B")
"""Without 10B, whose states alone exceed every GPU that is on file."""

BUCKETS_MB = (1, 10, 100, 1000)


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
EQUIVALENCE = Need(
    "ddp-equivalence", "--world-size 2 --steps 3 --local-batch-size 8", ({"strategy": "naive"},), ranks=2
)
STEPS = Need(
    "end-to-end",
    "--context 128 --context 256 --context 512 --context 1024 --precision fp32 --precision bf16",
    _grid(size=SIZES_2025, precision=("fp32", "bf16")),
)
KERNELS = Need("kernels", asked=_grid(size=SIZES_2025, context=(128, 256, 512, 1024)))
COMPILE_ATTENTION = Need(
    "compile",
    "--part attention",
    _grid(seq_len=(256, 1024, 4096, 8192, 16384), d=(16, 32, 64, 128), variant=("eager", "compiled")),
    document="compile-attention",
)


def _memory(*contexts: int) -> Need:
    """One command for both editions: a study writes one document, and a second run would replace it."""
    contexts_of_both = " ".join(f"--context {context}" for context in (128, 256, 512, 2048))
    return Need("memory", contexts_of_both, _grid(context=contexts, precision=("fp32", "bf16")))


def _compiled_model(*sizes: str) -> Need:
    return Need(
        "compile",
        "--part model --variant eager --variant compiled_blocks --variant compiled",
        _grid(size=sizes, variant=("eager", "compiled")),
        document="compile-model",
    )


def _on(xl: str) -> dict[str, tuple[Need, ...]]:
    """Rows that the problems of two GPUs need, on the size that a handout calls xl."""
    place = {"size": xl, "world_size": 2}
    folder = "" if xl == "xl" else xl

    def need(study: str, options: str, *asked: Axes) -> Need:
        options = f"--world-size 2 --size {xl} {options}"
        return Need(study, options, tuple(axes | place for axes in asked), ranks=2, folder=folder)

    def ddp(*asked: Axes) -> Need:
        return need("ddp", " ".join(f"--bucket-size-mb {size}" for size in BUCKETS_MB), *asked)

    overlapped = ddp(*_grid(strategy=("naive", "flat", "overlapped")))
    return {
        "naive_ddp_benchmarking": (ddp({"strategy": "naive"}),),
        "minimal_ddp_flat_benchmarking": (ddp(*_grid(strategy=("naive", "flat"))),),
        "ddp_overlap_individual_parameters_benchmarking": (
            overlapped,
            need("overlap", "", *_grid(strategy=("naive", "overlapped"))),
        ),
        "ddp_bucketed_benchmarking": (ddp(*_grid(strategy=("bucketed",), bucket_size_mb=BUCKETS_MB)),),
        "optimizer_state_sharding_accounting": (need("sharding", "", *_grid(sharding=("none", "sharded"))),),
        "fsdp_accounting": (need("fsdp", "", {}),),
    }


XL_2025 = _on("xl")
XL_2026 = _on("2.7B")

PROBLEMS_2025 = (
    Problem("benchmarking_script", 4, ("studies/test_lm.py",), (STEPS, Need("warm-up", asked=_grid(size=SIZES_2025)))),
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
        (_memory(128, 256, 512), STEPS),
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
            _compiled_model(*SIZES_2025),
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
    Problem("naive_ddp_benchmarking", 3, ("studies/parallel/test_ranked.py",), XL_2025["naive_ddp_benchmarking"]),
    Problem(
        "minimal_ddp_flat_benchmarking",
        2,
        ("studies/parallel/test_ranked.py",),
        XL_2025["minimal_ddp_flat_benchmarking"],
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
        XL_2025["ddp_overlap_individual_parameters_benchmarking"],
    ),
    Problem("ddp_overlap_bucketed", 8, ("test_ddp.py", "distributed/test_buckets.py"), answered="code"),
    Problem(
        "ddp_bucketed_benchmarking",
        3,
        ("studies/parallel/test_ranked.py", "accounting/test_buckets.py"),
        XL_2025["ddp_bucketed_benchmarking"],
    ),
    Problem("communication_accounting", 10, ("accounting/test_mesh.py",), answered="worked"),
    Problem(
        "optimizer_state_sharding", 15, ("test_sharded_optimizer.py", "optimizer/test_sharding.py"), answered="code"
    ),
    Problem(
        "optimizer_state_sharding_accounting",
        5,
        ("studies/parallel/test_ranked.py", "accounting/test_sharding.py"),
        XL_2025["optimizer_state_sharding_accounting"],
    ),
)
"""0 points: optional."""

_BOTH = {problem.name: problem for problem in PROBLEMS_2025}


def _again(*names: str) -> tuple[Problem, ...]:
    """Problems of 2025 that 2026 has too, on its own xl."""
    return tuple(replace(_BOTH[name], needs=XL_2026.get(name, _BOTH[name].needs)) for name in names)


PROBLEMS_2026 = (
    *_again("benchmarking_script", "nsys_profile", "mixed_precision_accumulation", "benchmarking_mixed_precision"),
    replace(_BOTH["memory_profiling"], needs=(_memory(128, 2048), STEPS)),
    Problem(
        "gradient_checkpointing",
        4,
        ("accounting/test_checkpointing.py",),
        (Need("checkpointing", asked=_grid(size=("2.7B",), context=(2048,), every=(1, 2))),),
    ),
    *_again("pytorch_attention"),
    replace(_BOTH["torch_compile"], needs=(COMPILE_ATTENTION, _compiled_model(*SIZES_2026), KERNELS)),
    *_again(
        "flash_forward",
        "flash_backward",
        "flash_benchmarking",
        "distributed_communication_single_node",
        "naive_ddp",
        "naive_ddp_benchmarking",
        "minimal_ddp_flat_benchmarking",
        "ddp_overlap_individual_parameters",
        "ddp_overlap_individual_parameters_benchmarking",
        "optimizer_state_sharding",
        "optimizer_state_sharding_accounting",
    ),
    Problem(
        "fsdp",
        15,
        ("test_fsdp.py", "distributed/test_fsdp_training.py", "distributed/test_fsdp_order.py"),
        answered="code",
    ),
    Problem(
        "fsdp_accounting",
        5,
        ("accounting/test_sharding.py", "accounting/test_fully_sharded.py"),
        XL_2026["fsdp_accounting"],
    ),
    Problem("alternate_ring_all_reduce", 1, ("accounting/test_parallelism.py",), answered="worked"),
    Problem("data_parallel_calcs", 3, ("accounting/test_parallelism.py",), answered="worked"),
    Problem("fsdp_calcs", 3, ("accounting/test_parallelism.py",), answered="worked"),
    Problem("tp_calcs", 4, ("accounting/test_parallelism.py",), answered="worked"),
    Problem("fsdp_tp_calcs", 6, ("accounting/test_parallelism.py",), answered="worked"),
    Problem(
        "leaderboard",
        10,
        ("studies/test_accounting.py",),
        (Need("leaderboard-2026", asked=({"num_layers": 34, "world_size": 2},), ranks=2),),
    ),
)

EDITIONS = {
    "2025": Edition("2025", PROBLEMS_2025, "xl"),
    "2026": Edition("2026", PROBLEMS_2026, "2.7B"),
}
