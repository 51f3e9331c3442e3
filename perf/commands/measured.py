"""`python -m perf measured`: what a run of asv measured and what failed, from its records, in a line a case.

asv prints whole grids, most of them n/a after `-b`, and reasons only with `-e`.
"""

import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from perf import units
from perf.gate import checkouts
from perf.harness import device, records
from perf.harness.case import case_key
from perf.harness.records import CaseResult
from perf.harness.suite import NOT_APPLICABLE
from perf.options import nearby
from perf.printable import collapsed, printable_lines, shortened
from perf.selection import asv_classes
from perf.site.conditions import software
from perf.site.estimate import estimate
from perf.site.failures import by_reason
from perf.site.newest import DAMAGED

RECORDS = Path(__file__).resolve().parents[1] / "records"

_WIDEST = 120
_FIGURES = 44
"""Columns of a terminal that everything but a case's name takes in the table."""

_NAMED = 3
"""Of the cases that share a reason, how many are named."""


class _Nothing(click.ClickException):
    """There is nothing to show; status 1 would say that a case failed."""

    exit_code = 2


@click.command("measured")
@click.argument("name", metavar="[COMMIT]", required=False)
@click.option("--machine", help="asv's name of the machine; default: this one.")
@click.option("-b", "--bench", "pattern", metavar="REGEX", help="Only these cases, as asv run -b selects them.")
def command(name: str | None, machine: str | None, pattern: str | None) -> None:
    """Print what `asv run` measured of COMMIT, and what failed, with its reason.

    \b
    python -m perf measured
    python -m perf measured HEAD~2 -b "$(python -m perf select history)"

    COMMIT is by default the one that was measured last. Shows its newest session on this machine: all that was
    measured in one day with one effort, device and software. A line a case, with the median of its samples, half of
    its 95 % interval, its peak memory and how many samples count; then each reason of cases without a number; then how
    many there are, and how long the runs of their classes took.

    Exit status 0: nothing failed; 1: something did; 2: nothing to show. Unavailable, which asv calls n/a, is what this
    machine or commit cannot do, or what does not fit into memory; it is no failure. Without a GPU nothing is recorded
    of GPU cases: `python -m perf doctor` says what can run.
    """
    wanted = _compiled(pattern)
    where = _known_machine(machine or device.machine()["machine"])
    try:
        commit, others = (_commit(name, where), []) if name else _newest(where)
        session = _newest_session(records.read_lines(RECORDS, where, commit))
        results = [one for one in records.summarize(session) if wanted is None or _matches(one, wanted)]
        if not results:
            raise _Nothing(_why_none(session, commit, where, pattern))
        text = _text(results, session, others)
    except DAMAGED as error:
        raise _Nothing(_why_damaged(error, where)) from None
    click.echo(printable_lines(text))
    if any(_failed(result) for result in results):
        sys.exit(1)


def _compiled(pattern: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern) if pattern is not None else None
    except re.error as error:
        raise click.UsageError(f"-b {pattern!r} was given; allowed: a regular expression ({error})") from None


def _known_machine(name: str) -> str:
    known = [one for one in records.machines(RECORDS) if records.commits(RECORDS, one)]
    if name in known:
        return name
    others = nearby(name, known) or (f"--machine takes {' or '.join(known)}" if known else "")
    raise _Nothing(f"no records of the machine {name!r}; `asv run` writes them{'; ' if others else ''}{others}")


def _newest(machine: str) -> tuple[str, list[str]]:
    """The commit whose newest session began last, and the others of that day, newest first."""
    began = {}
    for commit in records.commits(RECORDS, machine):
        try:
            sessions = records.read_lines(RECORDS, machine, commit, kinds=("session",))
            began[commit] = max((str(line["id"]), str(line["day"])) for line in sessions)
        except DAMAGED as error:
            click.echo(f"{commit[:8]} is left out: {_why_damaged(error, machine)}", err=True)
    if not began:
        raise _Nothing(f"no session in the records of {machine}; `asv run` writes one")
    newest, *others = sorted(began, key=began.__getitem__, reverse=True)
    return newest, [one for one in others if began[one][1] == began[newest][1]]


def _commit(name: str, machine: str) -> str:
    """The full hash of a recorded commit, by any name that git knows; by its hash without git."""
    recorded = records.commits(RECORDS, machine)
    found = [one for one in recorded if re.fullmatch("[0-9a-f]{7,40}", name) and one.startswith(name)]
    if len(found) == 1:
        return found[0]
    try:
        commit = checkouts.resolve(name).commit
    except click.ClickException as error:
        raise _Nothing(error.message) from None
    if commit not in recorded:
        raise _Nothing(f"{name!r} has no records of {machine}; `asv run {commit[:8]}^!` measures it")
    return commit


def _newest_session(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Its lines: of the session that was written to last; [] if none has measured anything."""
    written = [line["session"] for line in lines if line["kind"] in ("visit", "run")]
    return [line for line in lines if line.get("session", line.get("id")) == written[-1]] if written else []


def _matches(result: CaseResult, pattern: re.Pattern[str]) -> bool:
    """asv's own rule; a class that is gone has both methods that most have."""
    cls = next((cls for name, cls, _ in asv_classes() if name == result.benchmark and cls), None)
    methods = [one for one in dir(cls) if one.startswith("track_")] if cls else ["track_time", "track_peak_memory"]
    return any(pattern.search(case_key(f"{result.benchmark}.{one}", result.params.values())) for one in methods)


def _why_none(session: list[dict[str, Any]], commit: str, machine: str, pattern: str | None) -> str:
    classes = dict.fromkeys(line["benchmark"] for line in session if line["kind"] == "visit")
    if not classes:
        return f"no case of {commit[:8]} is in the records of {machine} yet; `asv run {commit[:8]}^!` measures it"
    return collapsed(f"no case of {commit[:8]} matches {pattern!r}; measured were some of {', '.join(classes)}")


def _why_damaged(error: BaseException, machine: str) -> str:
    """In one line; a `SystemExit` of the records has said it, with the file's name."""
    if isinstance(error, SystemExit):
        return shortened(str(error.code), 300)
    return shortened(f"records of {machine} are of another form: {type(error).__name__}: {error}", 300)


def _text(results: list[CaseResult], session: list[dict[str, Any]], others: list[str]) -> str:
    width = min(shutil.get_terminal_size((_WIDEST, 24)).columns, _WIDEST)
    failed = [one for one in results if _failed(one)]
    unavailable = [one for one in results if one.status in NOT_APPLICABLE]
    measured = [one for one in results if one.status == "ok"]
    counts = (
        f"{len(measured)} measured, {len(failed)} failed, {len(unavailable)} unavailable, {_spent(results, session)}"
    )
    parts = [_heading(results[0], width)]
    parts += [_table(measured, width)] if measured else []
    parts += [
        _reasons(title, some, width) for title, some in (("Failed", failed), ("Unavailable", unavailable)) if some
    ]
    parts += [_filled(f"Measured on that day too: {', '.join(one[:8] for one in others)}", width)] if others else []
    return "\n\n".join([*parts, counts])


def _failed(result: CaseResult) -> bool:
    return result.status != "ok" and result.status not in NOT_APPLICABLE


def _heading(result: CaseResult, width: int) -> str:
    session = result.session
    began = session.started_at.replace("T", " ")[:16]
    about = (
        f"{session.commit[:8]} on {session.machine}: {session.device['name']}, {software(session.software)}",
        f"{began} UTC, {session.effort} run; median of the samples, ± half of its 95 % interval",
    )
    return "\n".join(_filled(line, width) for line in about)


def _table(results: Sequence[CaseResult], width: int) -> str:
    """A row a case, under the name of its class."""
    from tabulate import tabulate

    rows, benchmark = [], ""
    for result in results:
        if result.benchmark != benchmark:
            benchmark = result.benchmark
            rows.append([collapsed(benchmark), *[""] * 4])
        rows.append([collapsed(f"({_values(result)})"), *_figures(result)])
    headers = ["case", "median", "±", "peak memory", "samples"]
    widths = [max(width - _FIGURES, 20), *[None] * 4]
    return tabulate(rows, headers, disable_numparse=True, maxcolwidths=widths, colalign=("left", *["right"] * 4))


def _figures(result: CaseResult) -> list[str]:
    """Time, its interval, memory and samples; "-" for what was not asked for."""
    time = estimate(result)
    return [
        units.seconds(time.median) if time else "-",
        units.percent((time.high - time.median) / time.median) if time and time.median > 0 else "-",
        units.memory(result.peak_bytes) if result.peak_bytes is not None else "-",
        str(len(result.samples_s)) if time else "-",
    ]


def _reasons(title: str, results: Sequence[CaseResult], width: int) -> str:
    """A line a reason with its number of cases, and under it the first of them."""
    lines = [f"{title}:"]
    for group in by_reason(results, name=lambda one: f"{one.benchmark}({_values(one)})"):
        cases = group["cases"]
        count = f"{len(cases)} case{'s' if len(cases) > 1 else ''}"
        lines.append(_filled(f"{count}, {group['status']}: {shortened(group['reason'], 300)}", width, 2))
        more = f"; and {len(cases) - _NAMED} more" if len(cases) > _NAMED else ""
        lines.append(_filled(collapsed("; ".join(cases[:_NAMED])) + more, width, 6))
    return "\n".join(lines)


def _values(result: CaseResult) -> str:
    return ", ".join(map(str, result.params.values()))


def _spent(results: Sequence[CaseResult], session: list[dict[str, Any]]) -> str:
    """How long the session's runs of these classes took; a run that died or is under way has not said it."""
    classes = {result.benchmark for result in results}
    took = [line["seconds"] for line in session if line["kind"] == "run" and line["benchmark"] in classes]
    return units.seconds(sum(took)) if took else "seconds not on file"


def _filled(text: str, width: int, indent: int = 0) -> str:
    return textwrap.fill(text, width, initial_indent=" " * indent, subsequent_indent=" " * (indent + 2))
