"""`python -m perf mutations`: score the gate on slow-downs of real kinds, planted in the code."""

import re

import click

from perf.files import refuse_unwritable
from perf.gate import checkouts
from perf.gate.mutations import mutations
from perf.gate.report import place
from perf.harness.lock import measuring
from perf.options import Finite, NotJudged, Regex, Shard, command_line


@click.command("mutations")
@click.argument("commit", required=False)
@click.option("-k", "pattern", default="", type=Regex(), help="Only mutations whose kind or name matches.")
@click.option("--shard", "part", type=Shard(), help="Only shard I of N: every Nth mutation.")
@click.option("--budget", default=6.0, show_default=True, type=Finite(min=0.1), help="Minutes for each mutation.")
@click.option("--list", "only_list", is_flag=True, help="Print the mutations and their rows, and measure nothing.")
def command(commit: str | None, pattern: str, part: tuple[int, int] | None, budget: float, only_list: bool) -> None:
    """Score the gate: plant each slow-down or leak of a fixed list in COMMIT's code, and gate it against COMMIT.

    \b
    python -m perf mutations                        # all, in the working tree
    python -m perf mutations HEAD -k 'tile table'
    python -m perf mutations --shard 3/7            # a seventh, as every night

    A mutation is found if its row gets the verdict that it deserves. The record is kept under perf/records and shown on
    the site's trust page.
    """
    matching = [one for one in mutations() if re.search(pattern, f"{one.kind}: {one.name}")]
    if not matching:
        raise click.UsageError(f"-k {pattern!r} was given; allowed: what matches a kind or name (--list prints all)")
    number, count = part or (1, 1)
    if not (chosen := matching[number - 1 :: count]):
        raise click.UsageError(f"--shard {number}/{count} was given; allowed: up to {len(matching)} shards")
    try:
        arm = checkouts.resolve(commit) if commit else checkouts.working_tree()
    except click.ClickException as error:
        raise click.UsageError(error.message) from None
    if only_list:
        for mutation in chosen:
            click.echo(f"{mutation.kind}: {mutation.name} ({mutation.wanted}: {mutation.row})")
        return
    refuse_unwritable(place("mutations"))
    from perf.gate.mutation_score import score  # loads scipy for a second, which --help need not wait for

    with measuring(command_line()):
        if not score(arm, chosen, budget_s=60 * budget):
            raise NotJudged("no row could be judged, and nothing is kept; the reasons are above")
