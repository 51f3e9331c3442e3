"""Answer the course's problems that need no measurement."""

import dataclasses
import json
from pathlib import Path

import click

from perf.files import write_aside
from perf.studies.accounting import communication, leaderboard, limits, memory
from perf.studies.accounting.problem import CourseProblem, text
from perf.studies.document import out_option

PROBLEMS = {
    function.__name__: function
    for function in (
        memory.pytorch_attention,
        communication.ddp_bucketed_benchmarking,
        communication.communication_accounting,
        memory.optimizer_state_sharding_accounting,
        memory.gradient_checkpointing,
        memory.fsdp_accounting,
        limits.alternate_ring_all_reduce,
        limits.data_parallel_calcs,
        limits.fsdp_calcs,
        limits.tp_calcs,
        limits.fsdp_tp_calcs,
        leaderboard.leaderboard,
    )
}
"""By the course's names, in its order: 2025's, then what 2026 adds."""


@click.command()
@click.option("--problem", "names", multiple=True, type=click.Choice(list(PROBLEMS)), help="Default: all.")
@out_option
def command(names: tuple[str, ...], out: Path) -> None:
    """Answer the problems that need no measurement. Runs at once, without a GPU.

    \b
    python -m perf study accounting --problem communication_accounting

    Each figure with its formula and its numbers, and the answer in words. The formulas are functions of
    cs336_systems.accounting, for any sizes.
    """
    problems = [PROBLEMS[name]() for name in names or PROBLEMS]
    click.echo("\n\n".join("\n".join(text(problem)) for problem in problems))
    write_aside(out / "accounting.json", to_json(problems))


def to_json(problems: list[CourseProblem]) -> str:
    """Return the problems as JSON."""
    return json.dumps([dataclasses.asdict(problem) for problem in problems], indent=1) + "\n"
