"""Parts of each chapter of an edition."""

import functools
from collections.abc import Callable
from pathlib import Path

from perf.writeup import answered, distributed, flash
from perf.writeup.problems import Edition
from perf.writeup.source import Source
from perf.writeup.worked import closed_form

Part = Callable[[Source, Path], str]

CODE = (
    "flash_forward",
    "flash_backward",
    "ddp_overlap_individual_parameters",
    "ddp_overlap_bucketed",
    "optimizer_state_sharding",
    "fsdp",
)
"""Problems with nothing to measure; templates/code describes what answers them."""

CALCULATIONS = (
    "communication_accounting",
    "alternate_ring_all_reduce",
    "data_parallel_calcs",
    "fsdp_calcs",
    "tp_calcs",
    "fsdp_tp_calcs",
)
"""Problems that a closed form answers."""


def _worked(name: str, *arguments: str) -> Part:
    return lambda source, figures: closed_form(name, *arguments)


@functools.cache
def parts(edition: Edition) -> dict[str, tuple[Part | str, ...]]:
    """Parts of each chapter, the answers by the names of their templates; those of `CODE` need no measurement."""
    on_xl = functools.partial(distributed.data_parallel, size=edition.xl)
    all_parts: dict[str, tuple[Part | str, ...]] = {
        **{name: (name,) for name in answered.CHAPTERS},
        "gradient_checkpointing": (
            _worked("gradient_checkpointing"),
            distributed.of_study("checkpointing", edition.xl),
        ),
        "flash_benchmarking": (flash.benchmarking,),
        "leaderboard": (flash.leaderboard,),
        "distributed_communication_single_node": (distributed.communication,),
        "naive_ddp": (distributed.equivalence,),
        "naive_ddp_benchmarking": (on_xl("naive_ddp_benchmarking", "naive"),),
        "minimal_ddp_flat_benchmarking": (on_xl("minimal_ddp_flat_benchmarking", "naive", "flat"),),
        "ddp_overlap_individual_parameters_benchmarking": (
            on_xl("ddp_overlap_individual_parameters_benchmarking", "naive", "flat", "overlapped"),
            distributed.traces(edition.xl),
        ),
        "ddp_bucketed_benchmarking": (on_xl("ddp_bucketed_benchmarking"), _worked("ddp_bucketed_benchmarking")),
        "optimizer_state_sharding_accounting": (
            distributed.state_sharding(edition.xl),
            _worked("optimizer_state_sharding_accounting", edition.xl),
        ),
        "fsdp_accounting": (_worked("fsdp_accounting"), distributed.of_study("fsdp", edition.xl)),
        **{name: (_worked(name),) for name in CALCULATIONS},
    }
    if edition.year == "2026":
        all_parts |= {
            "memory_profiling": ("memory_profiling_2026",),
            "leaderboard": (_worked("leaderboard"), distributed.of_study("leaderboard-2026")),
        }
    return {problem.name: all_parts[problem.name] for problem in edition.problems if problem.name not in CODE}


def extras(edition: Edition) -> dict[str, tuple[str, Part | str]]:
    """Chapters beyond the handout, after the problem that they belong to; left out where they were not measured."""
    every: dict[str, tuple[str, Part | str]] = {
        "torch_compile": ("The fastest step", "fastest_step"),
        "flash_benchmarking": ("Attention beside every other in PyTorch", "attention"),
        "ddp_bucketed_benchmarking": (
            "Beside torch's DistributedDataParallel",
            distributed.beside_torch("ddp", edition.xl),
        ),
        "optimizer_state_sharding_accounting": (
            "Beside torch's ZeroRedundancyOptimizer",
            distributed.beside_torch("sharding", edition.xl),
        ),
        "fsdp_accounting": (
            "When a fully sharded step computes and communicates",
            distributed.traces(edition.xl, is_fully_sharded=True),
        ),
    }
    asked = {problem.name for problem in edition.problems}
    return {name: extra for name, extra in every.items() if name in asked}
