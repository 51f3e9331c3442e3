"""`python -m perf case`: time cases of the working tree beside their peers, in seconds.

Supervisor, worker process, check and clock are the harness's own. The records go to a temporary folder, because a
working tree is not a commit.
"""

import dataclasses
import difflib
import itertools
import re
from collections.abc import Iterator, Sequence
from functools import partial

import click

from perf import units
from perf.commands.case_profile import profile
from perf.files import scratch_folder
from perf.harness import working_tree
from perf.harness.case import Case, case_key
from perf.harness.lock import measuring
from perf.harness.progress import Progress, TerminalBar
from perf.harness.records import CaseResult, best_ceilings, known_ceilings, read, read_machine
from perf.harness.status import NOT_APPLICABLE, describe, words
from perf.harness.suite import cases_of
from perf.harness.supervisor import Effort, measure, visits_of
from perf.harness.working_tree import RECORDS, ROOT
from perf.options import command_line
from perf.selection import asv_classes, names
from perf.site.ceiling import attained, times_the_work
from perf.site.conditions import CLOCKS
from perf.site.estimate import estimate, ratio
from perf.tables import text_table

MAX_CASES = 60
WORKING_TREE = "working-tree"

_SEE_ALL = "python -m perf case --list"


def select(name: str, impls: str | None = None) -> list[Case]:
    """Select the cells that `name` matches: a cell is a case with all its implementations."""
    all_cases = []
    for _, cls, broken in asv_classes():
        all_cases += cases_of(cls()) if cls else []
        if broken:
            click.echo(broken, err=True)
    cells = {_cell(case) for case in all_cases if _matches(case, name)}
    if not cells:
        raise click.ClickException(f"no case matches {name!r}; {_near(all_cases, name)}see all names with {_SEE_ALL}")
    cases = [case for case in all_cases if _cell(case) in cells]
    return _with_impls(cases, impls) if impls is not None else cases


def _time(cases: list[Case], visits: int) -> None:
    if len(cases) > MAX_CASES:
        raise click.ClickException(
            f"{len(cases)} cases match, at most {MAX_CASES} are timed: give more of the name, or --impl; "
            "asv run measures whole grids"
        )
    measured, refusals = [], []
    with TerminalBar(visits_of(cases, _effort(visits))) as bar:
        for device in dict.fromkeys(case.device for case in cases):
            results = _measure([case for case in cases if case.device == device], visits, bar)
            if results[0].session.id:
                measured.append(results)
            else:  # the machine lacks the device
                refusals.append(f"{len(results)} cases were not timed: {results[0].reason}")
    if not measured:
        raise click.ClickException("; ".join(refusals))
    for refusal in refusals:
        click.echo(refusal, err=True)
    for results in measured:
        click.echo(_heading(results, visits))
        click.echo(_table(results))
    total = sum(map(len, measured))
    failed = [result for results in measured for result in results if result.status != "ok"]
    for result in failed:
        click.echo(f"{result.key}: {describe(vars(result))}")
    if len(failed) == total or any(result.status not in NOT_APPLICABLE for result in failed):
        raise click.ClickException(f"{len(failed)} of {total} cases have no time; the reasons are above")


def _measure(cases: list[Case], visits: int, bar: Progress) -> list[CaseResult]:
    working_tree.make_importable()
    effort = _effort(visits)
    with scratch_folder("perf-case-") as records:
        results = measure(cases, commit=WORKING_TREE, checkout=ROOT, records=records, effort=effort, progress=bar)
        session = results[0].session
        if not session.id:
            return results
        lines = read(records, session.machine, WORKING_TREE).lines
    if not all(line["package_digest"] for line in lines if line["kind"] == "process"):
        raise click.ClickException(f"the measuring process cannot import cs336_systems from {ROOT}: nothing was timed")
    # As on the site, rates are compared with the best ceilings of any run on this device.
    on_file = read_machine(RECORDS, session.machine, partial(click.echo, err=True))
    known = known_ceilings(on_file, session.device["name"])
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
        f"Median of {units.counted(visits, 'visit')} after one that checks the result; "
        f"{clock}, {results[0].cache} cache"
    )


def _table(results: Sequence[CaseResult]) -> str:
    """Format a row per implementation, under the name of its cell."""
    rows: list[dict[str, str] | str] = []
    all_ok = all(result.status == "ok" for result in results)
    for cell, group in itertools.groupby(results, _cell):
        first, *others = group
        rows.append(cell)
        for result in (first, *others):
            status = {} if all_ok else {"status": words(result.status)}
            rows.append({"impl": str(result.params.get("impl", "-"))} | _figures(result, first) | status)
    return text_table(rows, keys=8, align=["left", *["right"] * 6, "left"])


def _figures(result: CaseResult, first: CaseResult) -> dict[str, str]:
    time, base = estimate(result), estimate(first)
    figures = dict.fromkeys(("median", "±", "rate", "of ceiling", "speed-up of first"), "-")
    if time is not None:
        share = attained(result, time.median) if "dtype" in result.params or not result.flops else None
        figures["median"] = units.seconds(time.median)
        figures["±"] = units.percent(time.relative) if time.median > 0 else "-"
        figures["rate"] = _rate(result, time.median)
        figures["of ceiling"] = units.percent(share) if share else "-"
        figures["speed-up of first"] = ratio(base, time).words if base and result is not first else "-"
    return figures | {"peak memory": units.memory(result.peak_bytes) if result.peak_bytes is not None else "-"}


def _rate(result: CaseResult, seconds: float) -> str:
    """Format the rate of the work; "-" of a time that is not the work's."""
    if not times_the_work(result):
        return "-"
    if result.flops:
        return units.rate(result.flops / seconds)
    return units.bandwidth(result.min_bytes / seconds) if result.min_bytes else "-"


def _cell(case: Case | CaseResult) -> str:
    return case_key(case.benchmark, (value for axis, value in case.params.items() if axis != "impl"))


def _names(case: Case) -> Iterator[str]:
    """Yield a case's names, and its cell's, each with and without quotes."""
    for key in (*names(case), _cell(case)):
        yield key
        yield key.replace("'", "")


def _matches(case: Case, name: str) -> bool:
    """Match `name` as a regular expression or literally: a name has parentheses, and a shell removes quotes."""
    try:
        pattern = re.compile(name)
    except re.error:
        pattern = re.compile(re.escape(name))
    return any(name in text or pattern.search(text) for text in _names(case))


def _near(cases: Sequence[Case], name: str) -> str:
    cells = list(dict.fromkeys(_cell(case).replace("'", "") for case in cases))
    near = difflib.get_close_matches(name.replace("'", ""), [*cells, *(cell.partition(".")[2] for cell in cells)], n=3)
    if not near:
        classes = list(dict.fromkeys(case.benchmark for case in cases))
        near = difflib.get_close_matches(name.partition("(")[0], classes, n=3)
    return f"near: {'; '.join(near)}; " if near else ""


def _with_impls(cases: list[Case], impls: str) -> list[Case]:
    """Select implementations, in the given order: the others are compared with the first."""
    selected = [impl.strip() for impl in impls.split(",") if impl.strip()]
    allowed = list(dict.fromkeys(str(case.params["impl"]) for case in cases if "impl" in case.params))
    if not selected or not set(selected) <= set(allowed):
        raise click.ClickException(
            f"--impl {impls!r} was given; allowed for these cases: {', '.join(allowed) or 'none, they have no impl'}"
        )
    cells = list(dict.fromkeys(_cell(case) for case in cases))
    kept = [case for case in cases if case.params.get("impl") in selected]
    return sorted(kept, key=lambda case: (cells.index(_cell(case)), selected.index(case.params["impl"])))


def _only_case(cases: list[Case], *, narrowed: bool) -> Case:
    """Return the case to profile: the first implementation of a cell, unless --impl selected several."""
    if len({_cell(case) for case in cases}) > 1 or (narrowed and len(cases) > 1):
        raise click.ClickException(f"{len(cases)} cases match, --profile takes 1: give more of the name, or --impl")
    return cases[0]


@click.command("case")
@click.argument("name", required=False)
@click.option(
    "--impl",
    "impls",
    metavar="A,B",
    help="Only these of the class; the others are compared with the first. Your own function: study attention --impl.",
)
@click.option("--visits", default=3, show_default=True, type=click.IntRange(1, 50), help="Counted visits to each case.")
@click.option("--list", "list_only", is_flag=True, help="Print the names of the matching cases (of all without NAME).")
@click.option("--profile", "profiler", type=click.Choice(["torch", "ncu", "nsys"]), help="Profile a call instead.")
def command(name: str | None, impls: str | None, visits: int, list_only: bool, profiler: str | None) -> None:
    """Time cases of the working tree beside their peers, in a kernel author's inner loop.

    \b
    python -m perf case 'FlashAttention(8192, 64, bfloat16, forward)'
    python -m perf case 'SmokeAttention(512' --impl pytorch,sdpa

    NAME is a part of a case's name, or a regular expression, quotes optional; the peers of a matching implementation
    are timed too. Uncommitted changes are included. Every result is checked first; nothing is written to the records.
    Takes about 5 seconds, one second a case, and any compilation; 60 cases at most. While a gate or another measurement
    has the device, it is refused in one line.

    --profile runs a single case once, the first of several implementations: torch prints the kernels and their times;
    ncu and nsys are started on that call, and nsys writes its report to .asv/profiles.
    """
    if list_only and profiler:
        raise click.UsageError("--list and --profile were given; allowed: one of them")
    if name is None and not list_only:
        raise click.UsageError(f"NAME was not given; see all names with {_SEE_ALL}")
    cases = select(name or "", impls)
    if list_only:
        for case in cases:
            click.echo(case.key)
        return
    with measuring(command_line()):
        if profiler:
            named = [case for case in cases if _matches(case, name or "")]  # without the peers that were added
            profile(_only_case(named or cases, narrowed=impls is not None), profiler)
        else:
            _time(cases, visits)
