"""`python -m perf self-test`: measure the gate's own error rate on this machine."""

import tempfile
from pathlib import Path

import click

from perf.commands import judging
from perf.files import refuse_unwritable
from perf.gate import checkouts
from perf.gate.report import place
from perf.harness.lock import measuring
from perf.harness.preflight import full_disks, objection
from perf.options import Finite, command_line


@click.command("self-test", cls=judging.Judging, interrupted="nothing was judged, and the parts that ended are kept")
@click.argument("commit", default="HEAD")
@judging.chosen_set("pr on a GPU machine, else smoke")
@judging.bench
@click.option("--budget", default=10.0, show_default=True, type=Finite(min=0.1), help="Minutes to measure each part.")
@judging.gpus
@click.option(
    "--plant",
    multiple=True,
    type=Finite(min=0, max=100, min_open=True),
    metavar="PERCENT",
    help="Size of a planted slow-down, instead of the default set.",
)
def command(
    commit: str, chosen: str | None, pattern: str | None, budget: float, gpus: int | None, plant: tuple[float, ...]
) -> None:
    """Test the gate on this machine: gate COMMIT against itself, as it is and with planted slow-downs.

    \b
    python -m perf self-test
    python -m perf self-test HEAD~1 -b 'FlashAttention.*triton' --plant 1 --plant 2

    One arm is slowed down by 0.5 to 5 % and enlarged by 1 MiB unless --plant says otherwise. The table states how often
    identical code got a false verdict, and how often a row that is the only changed one was detected. The record is
    kept under perf/records and shown on the site's trust page.
    """
    if reason := objection(full_disks(Path(tempfile.gettempdir()))):
        raise click.ClickException(reason)
    from perf.gate.self_test import planting, prove  # loads scipy for a second, which --help need not wait for

    with measuring(command_line()):
        refuse_unwritable(place("self-test"))
        cases = planting([percent / 100 for percent in plant])
        arm = checkouts.resolve(commit)
        with checkouts.exported(arm, arm) as places:
            prove(arm, places, lambda: judging.selected(chosen, pattern, gpus), cases, budget_s=60 * budget)
