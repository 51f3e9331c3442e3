"""Shared parts of the studies over several ranks: options and ranks."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from perf.harness import working_tree
from perf.harness.ranks import RankPool, Ranks
from perf.harness.working_tree import ROOT
from perf.options import Count, gathered
from perf.studies.device import Device, bench, device_kind
from perf.studies.lm import PRECISIONS, SIZES_2025, WITH_PHASES

UNSCALED = tuple(name for name in PRECISIONS if name != "fp16")
"""Precisions without loss scaling, which would have to agree over the ranks."""


world_size_option = click.option(
    "--world-size",
    "world_sizes",
    multiple=True,
    type=click.IntRange(2, 64),
    help="Ranks. Default: 2, 4 and 6, up to the number of GPUs; 2 on a CPU.",
)


@dataclass(frozen=True)
class Steps:
    """The steps to time: those requested, or what suits this machine. Iterates over the params that arms share."""

    device: Device
    world_sizes: tuple[int, ...]
    sizes: tuple[str, ...]
    contexts: tuple[int, ...]
    common: dict[str, Any]
    """precision, variant and batch."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for world_size, size, context in itertools.product(self.world_sizes, self.sizes, self.contexts):
            yield {"size": size, "context_length": context, **self.common, "world_size": world_size}

    def __str__(self) -> str:
        return f"batch {self.common['batch']} a rank, {self.common['precision']}, {self.common['variant']}"


def step_options(
    precisions: Sequence[str] = ("fp32", "tf32", "bf16"), variants: Sequence[str] = WITH_PHASES
) -> Callable[[Callable[..., None]], Any]:
    """Add --world-size, --size, --context, --precision, --variant and --batch: the command gets `steps`."""
    return gathered(
        "steps",
        _steps,
        world_size_option,
        click.option(
            "--size", multiple=True, type=click.Choice(("tiny", *SIZES_2025)), help="Default: xl; tiny on a CPU."
        ),
        click.option("--context", multiple=True, type=Count(2), help="Default: 512; 64 on a CPU."),
        click.option("--precision", type=click.Choice(precisions), help="Default: bf16; fp32 on a CPU."),
        click.option("--variant", type=click.Choice(variants), help="Default: compiled_blocks; eager on a CPU."),
        click.option("--batch", default=4, show_default=True, type=Count(), help="Sequences on each rank."),
    )


def _steps(
    world_sizes: tuple[int, ...],
    size: tuple[str, ...],
    context: tuple[int, ...],
    precision: str | None,
    variant: str | None,
    batch: int,
) -> Steps:
    device = device_kind()
    defaults = ("xl", 512, "bf16", "compiled_blocks") if device == "cuda" else ("tiny", 64, "fp32", "eager")
    common = {"precision": precision or defaults[2], "variant": variant or defaults[3], "batch": batch}
    world_sizes = some_world_sizes(world_sizes, device)
    return Steps(device, world_sizes, size or defaults[:1], context or defaults[1:2], common)


def world_sizes_of(requested: tuple[int, ...], device: Device) -> tuple[int, ...]:
    """Return the requested world sizes, or those that this machine has: none on one GPU."""
    import torch

    if requested:
        return requested
    return tuple(size for size in (2, 4, 6) if size <= torch.cuda.device_count()) if device == "cuda" else (2,)


def some_world_sizes(requested: tuple[int, ...], device: Device) -> tuple[int, ...]:
    """Return `world_sizes_of` these. Raises `click.ClickException` if there are none."""
    if sizes := world_sizes_of(requested, device):
        return sizes
    raise click.ClickException("this machine has one GPU; allowed: two or more")


@contextlib.contextmanager
def running_ranks(device: Device) -> Iterator[Callable[[int], Ranks]]:
    """Yield a function that returns the ranks of a world size, reusing living ones. They end with the block."""
    working_tree.make_importable()
    if device == device_kind():
        bench().instruments.measure_ceilings()  # while there is memory
    with contextlib.closing(RankPool(device, ROOT)) as pool:
        yield pool.of
