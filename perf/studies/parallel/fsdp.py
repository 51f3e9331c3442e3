"""Compare a fully sharded step with torch's fully_shard (FSDP2)."""

from collections.abc import Iterator
from pathlib import Path

import click

from perf.studies.document import out_option
from perf.studies.parallel.ranked import Steps, step_options
from perf.studies.parallel.step import ALONE, Pairs, Way, compare_pairs, draw, shown
from perf.studies.parallel.step import answers as answers_of_steps
from perf.studies.rows import Row
from perf.studies.speedups import NARROW, Effort, effort_options
from perf.workloads.fully_sharded import COMPUTE_DTYPES, PREFETCH

__all__ = ["answers", "command", "draw", "shown"]

AGAINST = "torch"
DEFAULTS = "prefetch_1", "torch_default"
"""Ours and FSDP2 by default: the latter reduces gradients in the dtype of the gathered weights."""

GRADIENTS = "forward and backward"
"""The part of a step that is compared with an unsharded model's."""


@click.command()
@step_options()
@click.option(
    "--prefetch", multiple=True, type=click.IntRange(0, 2), help="Layers gathered ahead. Default: 0, 1 and 2."
)
@click.option(
    "--compute-dtype",
    "requested",
    type=click.Choice(COMPUTE_DTYPES),
    help="Of gathered weights. Default: bfloat16 with bf16.",
)
@click.option(
    "--against",
    type=click.Choice((AGAINST, ALONE)),
    default=AGAINST,
    show_default=True,
    help="FSDP2, or an unsharded model on each GPU: then for ours and FSDP2 the cost of sharding.",
)
@effort_options(rounds=12, processes=6, on_a_cpu=6)
@out_option
def command(
    steps: Steps, prefetch: tuple[int, ...], requested: str | None, against: str, effort: Effort, out: Path
) -> None:
    """Compare a fully sharded step with torch's fully_shard (FSDP2). Ten minutes on two GPUs.

    \b
    python -m perf study fsdp --world-size 2 --context 1024 --batch 16
    python -m perf study fsdp --prefetch 2 --compute-dtype float32
    python -m perf study fsdp --prefetch 1 --against alone

    The same ranks hold both, which take single steps in turn, each timed by its slowest rank, as in parallel-step. Both
    gather a block as a whole, and sum gradients in float32; torch_default in bfloat16. Against "alone", forward and
    backward are compared, since an optimizer has less to do where its parameters are sharded.
    """
    dtype = requested or compute_dtype(steps)
    ours = [name for name, ahead in PREFETCH.items() if ahead in (prefetch or PREFETCH.values())]
    if against == ALONE:
        compare_pairs(_beside_alone([*ours, AGAINST], dtype), steps, effort, out / "fsdp", GRADIENTS)
    else:
        compare_pairs(_beside_torch(ours, dtype), steps, effort, out / "fsdp")


def _beside_torch(ours: list[str], dtype: str) -> Pairs:
    pairs = {(f"{name}/{dtype}", AGAINST): (_way(name, dtype), _way(AGAINST, dtype)) for name in ours}
    mine, torchs = DEFAULTS
    if mine in ours and dtype == "bfloat16":  # in float32 both of FSDP2's are one
        pairs[f"{mine}/{dtype}", torchs] = _way(mine, dtype), _way(torchs, dtype)
    return pairs


def _beside_alone(names: list[str], dtype: str) -> Pairs:
    return {(f"{name}/{dtype}", ALONE): (_way(name, dtype, "gradients"), _way(name, dtype, "alone")) for name in names}


def _way(sharding: str, dtype: str, mode: str = "step") -> Way:
    return "fully_sharded", {"sharding": sharding, "compute_dtype": dtype, "mode": mode}


def compute_dtype(steps: Steps) -> str:
    """Return the dtype of gathered weights that suits the precision of the steps."""
    return "bfloat16" if steps.common["precision"] == "bf16" else "float32"


def answers(rows: list[Row]) -> Iterator[str]:
    """Compare every arm of ours with torch's, or each with an unsharded model, if the interval is narrow."""
    beside_alone = any(row["against"] == ALONE for row in rows)
    return answers_of_steps(rows, NARROW, GRADIENTS if beside_alone else "step")
