"""`python -m perf select`: print the pattern of a named set of cases, for `asv run -b`."""

import click

from perf.selection import SETS, shard


@click.command("select")
@click.argument("name", type=click.Choice(sorted(SETS)))
@click.option("--shard", "part", metavar="I/N", help="Only shard I of N; the shards are disjoint and complete.")
def command(name: str, part: str | None) -> None:
    """Print the pattern of a named set of cases.

    \b
    asv run -b "$(python -m perf select history)" HEAD^!
    """
    if part is None:
        click.echo(SETS[name])
        return
    number, _, count = part.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise click.BadParameter(f"{part!r} was given; allowed: I/N with 1 <= I <= N, as in 2/4", param_hint="--shard")
    click.echo(shard(SETS[name], int(number), int(count)))
