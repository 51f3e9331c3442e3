"""`python -m perf`: the commands of the suite that asv does not have."""

from pathlib import Path

import click

from perf.gate.acceptance import command as accept
from perf.gate.command import command as gate
from perf.measured import command as measured
from perf.missed import command as missed
from perf.options import Commands
from perf.report.writeup.command import command as report
from perf.selection import SETS, shard
from perf.studies import Studies


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Performance of cs336_systems, commit by commit.

    Measuring and publishing are asv's own commands (`asv run`, `asv publish`); these come on top.
    """


@main.command()
@click.option("--commits", default=3, show_default=True, type=click.IntRange(1, 50), help="How many commits.")
def demo(commits: int) -> None:
    """Measure this repository's last commits and publish the site: the main job, in small.

    A real `asv run` over the last commits that touch cs336_systems and a real `asv publish`: some CPU-sized cases on a
    machine without a GPU, a quick GPU set on one with. Takes one to two minutes; writes under .asv/demo only.
    """
    from perf.demo import run

    run(commits)


@main.command()
@click.option("--file", "path", type=click.Path(dir_okay=False), help="Instead of asv's ~/.asv-machine.json.")
def machine(path: str | None) -> None:
    """Write asv's machine file for this machine.

    The name comes from the GPU's model and count (the CPU's model where there is no GPU), and nothing that changes over
    a machine's life is in the file: each of its values is part of a series' identity.
    """
    from perf.machine import write

    write(path)


@main.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
def merge(sources: tuple[Path, ...]) -> None:
    """Merge the results and records of other checkouts' perf folders into this one's.

    \b
    python -m perf merge /scratch/shard-2/perf /scratch/shard-3/perf

    Cell by cell: a number before a failure, a failure before n/a. Refuses another GPU under the same machine name and
    another version of a benchmark, what is no result of asv's, and commits that this repository lacks. Takes a second
    per commit.
    """
    from perf.gate.checkouts import resolve
    from perf.merge import commits
    from perf.merge import merge as merge_into

    for commit in sorted(set().union(*map(commits, sources))):
        resolve(commit)
    for source in sources:
        count = merge_into(source, Path(__file__).resolve().parent)
        click.echo(f"{source}: {count} files merged")


@main.command()
@click.argument("name", type=click.Choice(sorted(SETS)))
@click.option("--shard", "part", metavar="I/N", help="Only part I of N: every case is in exactly one part.")
def select(name: str, part: str | None) -> None:
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


@main.command()
def doctor() -> None:
    """Say what this machine has, what of the suite can run here, and why not the rest.

    One line a check: ok, or what to do about it. Takes about 5 seconds, most of them to import torch; changes nothing.
    The exit status is 0 if at least one asv class can run here.
    """
    from perf.doctor import run

    run()


@main.command()
@click.argument("name", required=False)
@click.option(
    "--impl", "impls", metavar="A,B", help="Only these implementations; the others are held against the first."
)
@click.option(
    "--visits", default=3, show_default=True, type=click.IntRange(1, 50), help="Visits to each case that count."
)
@click.option("--list", "list_only", is_flag=True, help="Print the names of the matching cases (of all without NAME).")
@click.option("--profile", "profiler", type=click.Choice(["torch", "ncu", "nsys"]), help="Profile one call instead.")
def case(name: str | None, impls: str | None, visits: int, list_only: bool, profiler: str | None) -> None:
    """Time cases of the working tree beside their peers: the inner loop of a kernel author.

    \b
    python -m perf case 'FlashAttention(8192, 64, bfloat16, forward)'
    python -m perf case 'SmokeAttention(512' --impl pytorch,sdpa

    NAME is a part of a case's name, or a regular expression, quotes optional; where one implementation matches, its
    peers come along. Uncommitted changes count. Every result is checked first; nothing is written to the records.
    About 5 seconds, one more for each case, and the compilation where there is one; 60 cases at most.

    --profile runs one case once, the first of several implementations: torch prints the kernels and their times; ncu
    and nsys are started on that one call, and nsys leaves its report in .asv/profiles.
    """
    from perf.case_command import run

    run(name, impls=impls, visits=visits, list_only=list_only, profiler=profiler)


main.add_command(gate)
main.add_command(accept)
main.add_command(measured)
main.add_command(missed)
main.add_command(report, "report")
main.add_command(Studies("study", help="Answer one question with a table or two: NAME --help teaches."))


if __name__ == "__main__":
    main()
