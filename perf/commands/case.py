"""`python -m perf case`: the inner loop of a kernel author. The working tree's cases beside their peers, in seconds.

Everything that makes a number is the harness's own: its supervisor, its worker process, its check, its clock. Only the
records go to a folder that is thrown away, because a working tree is no commit.
"""

import dataclasses
import difflib
import math
import re
from collections.abc import Iterator, Sequence

import click

from perf import units
from perf.commands.case_profile import profile
from perf.files import scratch_folder
from perf.harness import working_tree
from perf.harness.case import Case, case_key
from perf.harness.progress import Progress, TerminalBar
from perf.harness.records import CaseResult, best_ceilings, known_ceilings, read_lines
from perf.harness.suite import NOT_APPLICABLE, cases_of
from perf.harness.supervisor import Effort, measure, visits_of
from perf.harness.working_tree import ROOT
from perf.selection import asv_classes
from perf.site.ceiling import attained
from perf.site.conditions import CLOCKS
from perf.site.estimate import Estimate, estimate

MAX_CASES = 60
WORKING_TREE = "working-tree"

_SEE_ALL = "python -m perf case --list"


def run(name: str | None, *, impls: str | None, visits: int, list_only: bool, profiler: str | None) -> None:
    """Time, list or profile the cases that `name` selects. Raises `click.ClickException` with one line."""
    if name is None and not list_only:
        raise click.UsageError(f"NAME was not given; see all names with {_SEE_ALL}")
    cases = select(name or "", impls)
    if list_only:
        for case in cases:
            click.echo(case.key)
    elif profiler:
        named = [case for case in cases if _matches(case, name or "")]  # a peer that only came along is not meant
        profile(_one(named or cases, narrowed=impls is not None), profiler)
    else:
        _time(cases, visits)


def select(name: str, impls: str | None = None) -> list[Case]:
    """Cases in whose cell `name` is found: a cell is a case with all its implementations."""
    every = []
    for _, cls, broken in asv_classes():
        every += cases_of(cls()) if cls else []
        if broken:
            click.echo(broken, err=True)
    matched = {_cell(case) for case in every if _matches(case, name)}
    if not matched:
        raise click.ClickException(f"no case matches {name!r}; {_near(every, name)}see all names with {_SEE_ALL}")
    cases = [case for case in every if _cell(case) in matched]
    return _only(cases, impls) if impls is not None else cases


def _time(cases: list[Case], visits: int) -> None:
    if len(cases) > MAX_CASES:
        raise click.ClickException(
            f"{len(cases)} cases match, at most {MAX_CASES} are timed: give more of the name, or --impl; "
            "asv run measures whole grids"
        )
    measured, refusals = [], []
    with TerminalBar(visits_of(cases, _effort(visits))) as bar:
        for device in dict.fromkeys(case.device for case in cases):
            found = _measure([case for case in cases if case.device == device], visits, bar)
            if found[0].session.id:
                measured.append(found)
            else:  # the machine lacks the device
                refusals.append(f"{len(found)} cases were not timed: {found[0].reason}")
    if not measured:
        raise click.ClickException("; ".join(refusals))
    for refusal in refusals:
        click.echo(refusal, err=True)
    for results in measured:
        click.echo(_heading(results, visits))
        click.echo(_table(results))
    everything = [result for results in measured for result in results]
    failed = [result for result in everything if result.status != "ok"]
    for result in failed:
        click.echo(f"{_key(result)}: {result.status.replace('_', ' ')}: {result.reason}")
    if len(failed) == len(everything) or any(result.status not in NOT_APPLICABLE for result in failed):
        raise click.ClickException(f"{len(failed)} of {len(everything)} cases have no time; the reasons are above")


def _measure(cases: list[Case], visits: int, bar: Progress) -> list[CaseResult]:
    working_tree.make_importable()
    effort = _effort(visits)
    with scratch_folder("perf-case-") as records:
        results = measure(cases, commit=WORKING_TREE, checkout=ROOT, records=records, effort=effort, progress=bar)
        session = results[0].session
        if not session.id:
            return results
        processes = read_lines(records, session.machine, WORKING_TREE, kinds=("process",))
    if not all(process["package_digest"] for process in processes):
        raise click.ClickException(f"the measuring process cannot import cs336_systems from {ROOT}: nothing was timed")
    # Shares as the site has them: of the best rates that any run on this device ever saw.
    known = known_ceilings(ROOT / "perf" / "records", session.machine, session.device["name"])
    best = dataclasses.replace(session, ceilings=best_ceilings([known, session.ceilings]))
    return [dataclasses.replace(result, session=best) for result in results]


def _effort(visits: int) -> Effort:
    return Effort("case", rounds=visits + 1, processes=1)


def _heading(results: Sequence[CaseResult], visits: int) -> str:
    session = results[0].session
    software = ", ".join(f"{name} {session.software[name]}" for name in ("torch", "triton") if name in session.software)
    clock = " or ".join(dict.fromkeys(CLOCKS.get(result.clock, result.clock) for result in results if result.clock))
    return (
        f"Working tree of {ROOT} on {session.device['name']}, {software}\n"
        f"Median of {visits} visit{'s' if visits > 1 else ''} after one that checks the result; "
        f"{clock}, {results[0].cache} cache"
    )


def _table(results: Sequence[CaseResult]) -> str:
    """A row per implementation, under the name of its cell."""
    from tabulate import tabulate

    rows, cells, first = [], [_cell(result) for result in results], results[0]
    for index, result in enumerate(results):
        if cells[index] != cells[index - 1]:
            first = result
        rows.append([str(result.params.get("impl", "-")), *_figures(result, first), result.status.replace("_", " ")])
    headers = ["impl", "median", "±", "rate", "of ceiling", "first's speed-up", "peak memory", "status"]
    text = tabulate(rows, headers, disable_numparse=True, colalign=("left", *["right"] * 6, "left"))
    lines = text.splitlines()
    shown = lines[:2]
    for index, line in enumerate(lines[2:]):
        if index == 0 or cells[index] != cells[index - 1]:
            shown.append(cells[index])
        shown.append(line)
    return "\n".join(shown)


def _figures(result: CaseResult, first: CaseResult) -> list[str]:
    time, base = estimate(result), estimate(first)
    memory = units.memory(result.peak_bytes) if result.peak_bytes is not None else "-"
    if time is None:
        return [*["-"] * 5, memory]
    share = attained(result, time.median) if "dtype" in result.params or not result.flops else None
    return [
        units.seconds(time.median),
        units.percent((time.high - time.median) / time.median),
        _rate(result, time.median),
        units.percent(share) if share else "-",
        _speedup(time, base) if base and result is not first else "-",
        memory,
    ]


def _speedup(time: Estimate, base: Estimate) -> str:
    """Of the first implementation over this one, with half of the 95 % interval: the two are independent."""
    half = math.hypot(*(one.high / one.median - 1 for one in (time, base)))
    return f"{units.times(time.median / base.median)} ± {units.percent(half)}"


def _rate(result: CaseResult, seconds: float) -> str:
    if result.flops:
        return units.rate(result.flops / seconds)
    return units.bandwidth(result.min_bytes / seconds) if result.min_bytes else "-"


def _key(result: CaseResult) -> str:
    return case_key(result.benchmark, result.params.values())


def _cell(case: Case | CaseResult) -> str:
    return case_key(case.benchmark, (value for axis, value in case.params.items() if axis != "impl"))


def _names(case: Case) -> Iterator[str]:
    """What a case may be called: as asv writes it, its cell, with asv's method, each with quotes or without."""
    values = case.params.values()
    keys = [case.key, _cell(case), *(case_key(f"{case.benchmark}.track_{what}", values) for what in _METHODS)]
    for key in keys:
        yield key
        yield key.replace("'", "")


_METHODS = ("time", "peak_memory")


def _matches(case: Case, name: str) -> bool:
    """As a regular expression, or as it stands: a case's name has parentheses, and a shell eats quotes."""
    try:
        pattern = re.compile(name)
    except re.error:
        pattern = re.compile(re.escape(name))
    return any(name in text or pattern.search(text) for text in _names(case))


def _near(every: Sequence[Case], name: str) -> str:
    cells = list(dict.fromkeys(_cell(case).replace("'", "") for case in every))
    near = difflib.get_close_matches(name.replace("'", ""), [*cells, *(cell.partition(".")[2] for cell in cells)], n=3)
    if not near:
        classes = list(dict.fromkeys(case.benchmark for case in every))
        near = difflib.get_close_matches(name.partition("(")[0], classes, n=3) or classes
    return f"near: {'; '.join(near)}; "


def _only(cases: list[Case], impls: str) -> list[Case]:
    """In the order in which they were given, so that the first is the one that the others are held against."""
    wanted = [impl.strip() for impl in impls.split(",") if impl.strip()]
    allowed = list(dict.fromkeys(str(case.params["impl"]) for case in cases if "impl" in case.params))
    if not wanted or not set(wanted) <= set(allowed):
        raise click.ClickException(
            f"--impl {impls!r} was given; allowed for these cases: {', '.join(allowed) or 'none, they have no impl'}"
        )
    cells = list(dict.fromkeys(_cell(case) for case in cases))
    kept = [case for case in cases if case.params.get("impl") in wanted]
    return sorted(kept, key=lambda case: (cells.index(_cell(case)), wanted.index(case.params["impl"])))


def _one(cases: list[Case], *, narrowed: bool) -> Case:
    """The case to profile: of several implementations the first, unless they were asked for."""
    if len({_cell(case) for case in cases}) > 1 or (narrowed and len(cases) > 1):
        raise click.ClickException(f"{len(cases)} cases match, --profile takes one: give more of the name, one --impl")
    return cases[0]


@click.command("case")
@click.argument("name", required=False)
@click.option(
    "--impl", "impls", metavar="A,B", help="Only these implementations; the others are held against the first."
)
@click.option(
    "--visits", default=3, show_default=True, type=click.IntRange(1, 50), help="Visits to each case that count."
)
@click.option("--list", "list_only", is_flag=True, help="Print the names of the matching cases (of all without NAME).")
@click.option("--profile", "profiler", type=click.Choice(["torch", "ncu", "nsys"]), help="Profile one call instead.")
def command(name: str | None, impls: str | None, visits: int, list_only: bool, profiler: str | None) -> None:
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
    run(name, impls=impls, visits=visits, list_only=list_only, profiler=profiler)
