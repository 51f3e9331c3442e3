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
    """
    click.echo(shard(SETS[name], *part) if part else SETS[name])
