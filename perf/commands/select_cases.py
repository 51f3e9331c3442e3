"""`python -m perf select`: print the pattern of a named set of cases, for `asv run -b`."""

import click

from perf.options import Shard
from perf.selection import SETS, shard


@click.command("select")
@click.argument("name", type=click.Choice(sorted(SETS)))
@click.option("--shard", "part", type=Shard(), help="Only shard I of N; the shards are disjoint and complete.")
def command(name: str, part: tuple[int, int] | None) -> None:
    """Print the pattern of a named set of cases.

    \b
    asv run -b "$(python -m perf select history)" HEAD^!

    \b
    smoke    small cases of everything, on a CPU
    gpu      everything else: the whole grids
    pr       judges a pull request on a GPU: our code in 49 cases
    history  a commit in one to two minutes: attention of ours
    quick    a first look: two lengths of attention beside its peers
    demo     what `perf demo` measures on a CPU

    Of a new class "gpu" selects all cases, or "smoke" if it stands in smoke.py; the
    other sets list theirs in perf/selection.py.
    """
    click.echo(shard(SETS[name], *part) if part else SETS[name])
