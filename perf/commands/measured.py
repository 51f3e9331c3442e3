"""`python -m perf measured`: the results and failures of an `asv run`, from its records, in a line a case.

asv itself prints whole grids, most of them n/a after `-b`, and reasons only with `-e`.
"""

import itertools
import re
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

import click

from perf import units
from perf.gate import checkouts
from perf.harness import device, records
from perf.harness.records import CaseResult
from perf.harness.status import NOT_APPLICABLE, describe
from perf.harness.working_tree import RECORDS
from perf.options import Regex, nearby
from perf.printable import collapsed, printable_lines, shortened
from perf.selection import names
from perf.site.conditions import software
from perf.site.estimate import estimate
from perf.tables import terminal_width, text_table

_MAX_NAMED = 3
"""Number of cases that are named for a shared reason."""


class _NothingToShow(click.ClickException):
    """There is nothing to show, which differs from status 1: a case failed."""

    exit_code = 2


@click.command("measured")
@click.argument("name", metavar="[COMMIT]", required=False)
@click.option("--machine", help="asv's name of the machine; default: this one.")
@click.option(
    "-b", "--bench", "pattern", default="", type=Regex(), help="Only these cases, by name; asv's method may be missing."
)
def command(name: str | None, machine: str | None, pattern: str) -> None:
    """Print the results of `asv run` for COMMIT, and its failures with their reasons.

    \b
    python -m perf measured
    python -m perf measured HEAD~2 -b "$(python -m perf select history)"

    COMMIT is by default the commit that was measured last. Shows its newest session on this machine: all measurements
    of a day by the same suite with the same effort, device and software. Each case has a line with the median of its
    samples, half of its 95 % interval, its peak memory and the number of its counted samples; then come the reasons of
    cases without a number, the number of cases, and the duration of their classes' runs.

    Exit status 0: nothing failed; 1: a case failed; 2: nothing to show. Unavailable, asv's n/a, means that this machine
    or commit cannot run the case, or that it does not fit into memory; this is not a failure. Without a GPU nothing is
    recorded for GPU cases: `python -m perf doctor` lists the classes that can run.
    """
    machine = _known_machine(machine or device.machine()["machine"])
    commit, others = (_commit(name, machine), []) if name else _newest(machine)
    damage: list[str] = []
    session = _newest_session(records.read(RECORDS, machine, commit, warn=damage.append).lines)
    results = [one for one in records.summarize(session) if any(re.search(pattern, name) for name in names(one))]
    if not results:
        raise _NothingToShow(shortened(damage[0], 300) if damage else _why_none(session, commit, machine, pattern))
    for line in damage:
        _warn(line)
    click.echo(printable_lines(_text(results, session, others)))
    if any(_failed(result) for result in results):
        sys.exit(1)


def _known_machine(name: str) -> str:
    known = [machine for machine in records.machines(RECORDS) if records.commits(RECORDS, machine)]
    if name in known:
        return name
    hint = nearby(name, known) or (f"--machine takes {' or '.join(known)}" if known else "")
    writer = "`asv run` writes them, without a GPU those of CPU classes alone"
    raise _NothingToShow("; ".join(filter(None, (f"no records of the machine {name!r}", writer, hint))))


def _newest(machine: str) -> tuple[str, list[str]]:
    """Return the commit that was measured last, and the others of that day, newest first."""
    ended = {}
    damage: list[str] = []
    for commit in records.commits(RECORDS, machine):
        lines = records.read(RECORDS, machine, commit, ("session", "run"), damage.append).lines
        if sessions := [line for line in lines if line["kind"] == "session"]:
            times = [line.get("ended_at") or line.get("started_at", "") for line in lines]
            last = max(sessions, key=lambda line: line["id"])
            ended[commit] = max(times), last["id"], last["day"]
    if not ended:
        none = f"the records of {machine} have no session; `asv run` writes it"
        raise _NothingToShow(shortened(damage[0], 300) if damage else none)
    for line in damage:
        _warn(line)
    newest, *others = sorted(ended, key=ended.__getitem__, reverse=True)
    return newest, [commit for commit in others if ended[commit][2] == ended[newest][2]]


def _commit(name: str, machine: str) -> str:
    """Return the full hash of a recorded commit from its hash, or from any name that git resolves."""
    recorded = records.commits(RECORDS, machine)
    matching = [commit for commit in recorded if re.fullmatch("[0-9a-f]{7,40}", name) and commit.startswith(name)]
    if len(matching) == 1:
        return matching[0]
    try:
        commit = checkouts.resolve(name).commit
    except click.ClickException as error:
        raise _NothingToShow(error.message) from None
    if commit not in recorded:
        raise _NothingToShow(f"{name!r} has no records of {machine}; `asv run {commit[:8]}^!` measures it")
    return commit


def _newest_session(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines of the session that was written last, and of those like it; [] if none has measured anything.

    Shards of a run have a session each, on as many GPUs.
    """
    written = [line["session"] for line in lines if line["kind"] in ("visit", "run")]
    sessions = [line | {"device": line["device"] | {"uuid": ""}} for line in lines if line["kind"] == "session"]
    conditions = {session["id"]: records.conditions(session) for session in sessions}
    alike = {name for name, of in conditions.items() if written and of == conditions[written[-1]]}
    return [line for line in lines if line.get("session", line.get("id")) in alike]


def _why_none(session: list[dict[str, Any]], commit: str, machine: str, pattern: str) -> str:
    classes = dict.fromkeys(line["benchmark"] for line in session if line["kind"] == "visit")
    if not classes:
        return f"no case of {commit[:8]} is in the records of {machine} yet; `asv run {commit[:8]}^!` measures it"
    return collapsed(f"no case of {commit[:8]} matches {pattern!r}; its records have {', '.join(classes)}")


def _warn(damage: str) -> None:
    click.echo(shortened(damage, 300), err=True)


def _text(results: list[CaseResult], session: list[dict[str, Any]], others: list[str]) -> str:
    width = terminal_width()
    failed = [result for result in results if _failed(result)]
    unavailable = [result for result in results if result.status in NOT_APPLICABLE]
    measured = [result for result in results if result.status == "ok"]
    parts = [_heading(results[0], width)]
    if measured:
        parts.append(_table(measured))
    if failed:
        parts.append(_reasons("Failed", failed, width))
    if unavailable:
        parts.append(_reasons("Unavailable", unavailable, width))
    if others:
        parts.append(_filled(f"Measured on that day too: {', '.join(commit[:8] for commit in others)}", width))
    counts = f"{len(measured)} measured, {len(failed)} failed, {len(unavailable)} unavailable"
    return "\n\n".join([*parts, f"{counts}, {_duration(results, session)}"])


def _failed(result: CaseResult) -> bool:
    return result.status != "ok" and result.status not in NOT_APPLICABLE


def _heading(result: CaseResult, width: int) -> str:
    session = result.session
    began = session.started_at.replace("T", " ")[:16]
    lines = (
        f"{session.commit[:8]} on {session.machine}: {session.device['name']}, {software(session.software)}",
        f"{began} UTC, {session.effort} run; median of the samples, ± half of its 95 % interval",
    )
    return "\n".join(_filled(line, width) for line in lines)


def _table(results: Sequence[CaseResult]) -> str:
    """Format a row for each case, under the name of its class."""
    rows: list[dict[str, str] | str] = []
    order = list(dict.fromkeys(result.benchmark for result in results))  # merged records may come back to a class
    for benchmark, of in itertools.groupby(sorted(results, key=lambda one: order.index(one.benchmark)), _benchmark):
        rows.append(benchmark)
        rows += [{"case": collapsed(f"({_values(result)})")} | _figures(result) for result in of]
    return text_table(rows, keys=5, align=("left", *["right"] * 4))


def _benchmark(result: CaseResult) -> str:
    return collapsed(result.benchmark)


def _figures(result: CaseResult) -> dict[str, str]:
    """Return time, interval, memory and number of samples; "-" for a quantity that was not measured."""
    time = estimate(result)
    return {
        "median": units.seconds(time.median) if time else "-",
        "±": units.percent(time.relative) if time and time.median > 0 else "-",
        "peak memory": units.memory(result.peak_bytes) if result.peak_bytes is not None else "-",
        "samples": str(len(result.samples_s)) if time else "-",
    }


def _reasons(title: str, results: Sequence[CaseResult], width: int) -> str:
    """Format a line for each reason with its number of cases, and the first of them below."""
    lines = [f"{title}:"]
    groups: dict[str, list[str]] = {}
    for result in results:
        groups.setdefault(describe(vars(result)), []).append(f"{result.benchmark}({_values(result)})")
    for outcome, cases in groups.items():
        lines.append(_filled(f"{units.counted(len(cases), 'case')}, {shortened(outcome, 300)}", width, 2))
        more = f"; and {len(cases) - _MAX_NAMED} more" if len(cases) > _MAX_NAMED else ""
        lines.append(_filled(collapsed("; ".join(cases[:_MAX_NAMED])) + more, width, 6))
    return "\n".join(lines)


def _values(result: CaseResult) -> str:
    return ", ".join(map(str, result.params.values()))


def _duration(results: Sequence[CaseResult], session: list[dict[str, Any]]) -> str:
    """Format the duration of the session's runs of these classes; a killed or unfinished run has none on file."""
    classes = {result.benchmark for result in results}
    seconds = [line["seconds"] for line in session if line["kind"] == "run" and line["benchmark"] in classes]
    return units.seconds(sum(seconds)) if seconds else "seconds not on file"


def _filled(text: str, width: int, indent: int = 0) -> str:
    return textwrap.fill(text, width, initial_indent=" " * indent, subsequent_indent=" " * (indent + 2))
