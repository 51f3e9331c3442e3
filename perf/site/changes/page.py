"""Changes page: every step in the history, by the range of commits in question."""

import functools
import itertools
import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from perf import units
from perf.gate.acceptance import Acceptance
from perf.gate.evidence import Outcome
from perf.gate.explanation import is_around_kernels, is_host_time, why_larger, why_slower
from perf.gate.verdicts import BAD, Verdict
from perf.gate.wording import ORDER, change, name, values
from perf.selection import Negligible
from perf.site import newest, pages
from perf.site.changes.rows import Change, Drifting, Series, judge, series_of
from perf.site.gates import Gate
from perf.site.newest import Site
from perf.site.sparkline import sparkline

MOST_RANGES = 100
MOST_NAMED = 3
"""Cases that a command selects one by one. More are selected by their classes."""

MOST_ROWS = 200
"""Rows shown of one range of commits. asv's graphs have the others."""

STEPS = 8
"""Commits of a range that the command to narrow it measures."""

MAX_BEYOND_CONTROLS = 2.0
"""Change of a time, of the largest one of a row without project code at the same commit, that the machine explains."""


@dataclass(frozen=True)
class MachineChanges:
    """Changes on one machine, newest first."""

    name: str
    changes: Sequence[Change]
    commits: int
    """Number of commits with any measured case."""

    series: int
    described: Callable[[int], pages.Commit]
    """Describes a commit by asv's revision number."""

    revisions: Mapping[str, int]
    """Revision numbers by hash, including accepted and gated commits."""

    gates: Sequence[Gate]
    accepted: Sequence[Acceptance]
    drifting: Sequence[Drifting] = ()
    """Drifting series, fastest first."""

    comparable: Container[str] = frozenset()
    """Hashes of commits on the Compare page."""

    outcomes: Callable[[int], Mapping[tuple[str, tuple[Any, ...]], Outcome]] = lambda revision: {}
    """Outcomes of a commit, by asv's revision number, then by class and parameters."""

    @functools.cached_property
    def controls(self) -> set[int]:
        """Revision numbers at which rows without project code changed, possibly by the machine."""
        return {one.revision for one in self.changes if one.series.is_control}

    @functools.cached_property
    def moved(self) -> dict[int, list[float]]:
        """Changes of the times of rows without project code, by revision number, sorted; see `Step.change`."""
        moved: dict[int, list[float]] = {}
        for one in self.changes:
            if one.series.is_control and one.series.quantity == "time":
                moved.setdefault(one.revision, []).append(one.step.change)
        return {revision: sorted(changes) for revision, changes in moved.items()}

    def arms(self, one: Change) -> tuple[Outcome, Outcome] | None:
        """Return the outcomes before and after a change; None unless both are on record."""
        case = one.series.method.rpartition(".")[0], tuple(one.series.params.values())
        found = [self.outcomes(revision).get(case) for revision in (one.last_before, one.revision)]
        return (found[0], found[1]) if found[0] and found[1] else None

    def around_kernels(self, one: Change) -> Literal["machine", "host", ""]:
        """Name the cause of a changed time whose kernels are the same and take as long as before; "" otherwise.

        "machine": times of rows without project code changed at the same commit, in the same direction and by at least
        1 / `MAX_BEYOND_CONTROLS` of it. "host": one commit shows it, and the GPU waits for the host in most of a call.
        """
        if one.series.quantity != "time" or not (arms := self.arms(one)):
            return ""
        step, moved = one.step, self.moved.get(one.revision, [])
        sign = 1 if step.change > 0 else -1
        most = max((sign * math.log1p(change) for change in moved), default=0.0)
        explained = sign * math.log1p(step.change) <= MAX_BEYOND_CONTROLS * most
        if explained and is_around_kernels(*arms, step.after - step.before):
            return "machine"
        own = one.series.values[
            step.index - 1 : step.index + 1
        ]  # Of the arms' commits; a level is a median of several.
        return "host" if step.alone and is_host_time(*arms, *own) else ""

    @property
    def by_range(self) -> list[list[Change]]:
        """Changes grouped by range of commits, newest and shortest range first."""

        def ends(one: Change) -> tuple[int, int]:
            return -one.revision, -one.last_before

        return [list(some) for _, some in itertools.groupby(sorted(self.changes, key=ends), ends)]

    def why(self, one: Change) -> str:
        """Return the reason for which a change was accepted; "" if it was not."""
        for acceptance in self.accepted:
            at = self.revisions.get(acceptance.commit)
            ours = at is not None and one.last_before < at <= one.revision
            if ours and any(row.covers(one.verdict) for row in acceptance.rows):
                return acceptance.reason
        return ""

    def is_open(self, one: Change) -> bool:
        """Whether project code is worse to this day, not accepted, and not by the machine or the host alone."""
        return self._stands(one) and not self.around_kernels(one)

    def is_host_time(self, one: Change) -> bool:
        """Whether it would be open if its kernels had changed, and not the host's time alone."""
        return self._stands(one) and self.around_kernels(one) == "host"

    def _stands(self, one: Change) -> bool:
        """Whether a row of project code is worse to this day and not accepted."""
        stands = one.back is None and not one.step.border and not one.series.is_control
        return one.verdict.word in BAD and stands and not self.why(one)

    def is_unconfirmed(self, one: Change) -> bool:
        """Whether it is open and rests on one commit."""
        return self.is_open(one) and one.step.alone

    @property
    def open(self) -> list[Change]:
        """Open changes, confirmed before unconfirmed, each worst first."""
        return sorted(
            filter(self.is_open, self.changes), key=lambda one: (one.step.alone, -abs(math.log1p(one.step.change)))
        )

    def confirming(self, changes: Iterable[Change]) -> str:
        """Return the command that measures both ends of a range in turn."""
        some = list(changes)
        before, after = (self.described(at).hash[:8] for at in (some[0].last_before, some[0].revision))
        return f"python -m perf gate {before} {after} -b {_rows(some)}"

    def narrowing(self, changes: Iterable[Change]) -> str:
        """Return the command that measures commits within a range, so that the next site shows a shorter one."""
        some = list(changes)
        before, after = (self.described(at).hash[:8] for at in (some[0].last_before, some[0].revision))
        return f"asv run {before}..{after} --steps {STEPS} --skip-existing-commits -b {_rows(some)}"


def collect(
    site: Site,
    machine: str,
    gates: Sequence[Gate],
    negligible: Negligible,
    accepted: Sequence[Acceptance],
    comparable: Container[str] = frozenset(),
) -> MachineChanges:
    """Collect a machine's data from what asv publishes."""
    harness_of = functools.cache(lambda revision: newest.harness_of(site.directory, machine, site.hashes[revision]))
    sitting_of = functools.cache(lambda revision: newest.sitting_of(site.directory, machine, site.hashes[revision]))
    series = list(series_of(site.graphs, site.benchmarks, machine, harness_of, sitting_of))
    changes, drifting = judge(series, negligible)
    ends = {arm["commit"] for gate in gates for arm in (gate.report.base, gate.report.head)}
    return MachineChanges(
        machine,
        changes,
        len(site.measured(machine)),
        len(series),
        lambda revision: site.describe(site.hashes[revision]),
        {**site.revisions, **site.numbered(ends | {one.commit for one in accepted})},
        gates,
        accepted,
        drifting,
        comparable,
        lambda revision: newest.outcomes_of(site.directory, machine, site.hashes[revision]),
    )


def render(project: str, machines: Iterable[MachineChanges], show_commit_url: str) -> str:
    """Render the page."""
    shown = {one.name: _machine(one) for one in machines}
    return pages.render("changes", project, show_commit_url, shown, beyond=MAX_BEYOND_CONTROLS)


def anchor(one: MachineChanges, change: Change) -> str:
    """Return the id of the section of a change's range."""
    return pages.ident(one.name, span(one, change))


def span(one: MachineChanges, change: Change) -> str:
    """Return the commits in question for a change: a hash, or a range in git's syntax."""
    before, after = (one.described(at).hash[:8] for at in (change.last_before, change.revision))
    return after if change.revision == change.last_before + 1 else f"{before}..{after}"


def counted(changes: Iterable[Change]) -> str:
    """ "2 slower, 1 faster, 3 between sessions"."""
    words = Counter("" if one.step.border else one.verdict.word for one in changes)
    said = [f"{words[word]} {word.lower()}" for word in ORDER if words[word]]
    return ", ".join(said + [f"{words['']} between sessions"] * bool(words[""]))


def _machine(one: MachineChanges) -> dict[str, Any]:
    by_range = one.by_range
    return {
        "commits": one.commits,
        "series": one.series,
        "changes": sum(not each.step.border for each in one.changes),
        "borders": sum(each.step.border for each in one.changes),
        "drifting": [_drifting(one.name, each) for each in one.drifting[:MOST_ROWS]],
        "open": len(one.open) - (unconfirmed := sum(map(one.is_unconfirmed, one.changes))),
        "unconfirmed": unconfirmed,
        "host": sum(map(one.is_host_time, one.changes)),
        "changed": [_range(one, some) for some in by_range[:MOST_RANGES]],
        "older": max(0, len(by_range) - MOST_RANGES),
    }


def _range(one: MachineChanges, changes: Sequence[Change]) -> dict[str, Any]:
    before, commit = one.described(changes[0].last_before), one.described(changes[0].revision)
    ordered = sorted(changes, key=lambda each: ORDER.index(each.verdict.word))  # stable: the greatest first
    rows = [_row(one, each) for each in ordered[:MOST_ROWS]]
    unsettled = [each for each in changes if one.is_open(each)]
    levels = [each for each in changes if not each.step.border]
    count = changes[0].revision - changes[0].last_before
    compared = before.hash in one.comparable and commit.hash in one.comparable
    return {
        "id": anchor(one, changes[0]),
        "span": span(one, changes[0]),
        "count": count,
        "commit": commit,
        "before": before,
        "counts": counted(changes),
        "open": [row for row in rows if row["open"]],
        "rest": [row for row in rows if not row["open"]],
        "confirm": one.confirming(unsettled) if unsettled else "",
        "narrow": one.narrowing(unsettled or levels) if count > 1 and levels else "",
        "hidden": max(0, len(changes) - MOST_ROWS),
        "controls": changes[0].revision in one.controls,
        "moved": units.extent(map(units.change, one.moved.get(changes[0].revision, []))),
        "compare": pages.comparison(one.name, before.hash, commit.hash) if compared else "",
    }


def _row(one: MachineChanges, each: Change) -> dict[str, Any]:
    verdict = each.verdict
    before, after = values(verdict)
    return {
        "name": name(verdict.key, verdict.quantity),
        "href": pages.permalink(each.series.method, one.name, each.series.params),
        "word": verdict.word.lower(),
        "bad": verdict.word in BAD,
        "before": before,
        "after": after,
        "change": change(verdict),
        "open": one.is_open(each),
        "unconfirmed": one.is_unconfirmed(each),
        "control": each.series.is_control,
        "alone": each.step.alone,
        "border": each.step.border,
        "back": one.described(each.back) if each.back is not None else None,
        "why": one.why(each),
        "cause": _cause(one, each),
        "around": one.around_kernels(each),
        "gate": _gate_word(one, each, verdict),
        "picture": _picture(each.series, each.step.index),
    }


def _cause(one: MachineChanges, each: Change) -> str:
    """Name the kernel or allocation that moved most; "" without records of both commits."""
    if each.step.border or not (arms := one.arms(each)):
        return ""
    if each.series.quantity == "peak_memory":  # so are all series of bytes
        return why_larger(*arms) if each.series.method.endswith(".track_peak_memory") else ""
    return why_slower(*arms, each.step.after - each.step.before)


def _rows(changes: Sequence[Change]) -> str:
    """Return a quoted argument of `-b` for the cases of changes, or for their classes if there are many."""
    patterns = {_pattern(one.series) for one in changes}
    if len(patterns) > MOST_NAMED:
        patterns = {rf"^{re.escape(one.series.method.rpartition('.')[0])}\." for one in changes}
    return shlex.quote("|".join(sorted(patterns)))


def _pattern(series: Series) -> str:
    """Return a pattern of `-b` for every quantity of a case. A quote matches any character: a shell's is unreadable."""
    benchmark = re.escape(series.method.rpartition(".")[0])
    values = re.escape(", ".join(map(repr, series.params.values()))).replace("\\ ", " ").replace("'", ".")
    return rf"^{benchmark}\.\w+\({values}\)$"


def _drifting(machine: str, each: Drifting) -> dict[str, Any]:
    return {
        "name": each.series.name,
        "href": pages.permalink(each.series.method, machine, each.series.params),
        "rate": f"{each.drift.rate:+.2%}",
        "total": f"{each.drift.total:+.1%}",
        "picture": _picture(each.series, 0),
    }


def _gate_word(one: MachineChanges, each: Change, verdict: Verdict) -> str:
    """Return the verdict of the newest gate that spans the change; "" without one."""
    for gate in one.gates:
        base, head = (one.revisions.get(arm["commit"]) for arm in (gate.report.base, gate.report.head))
        if base is not None and head is not None and base <= each.last_before < each.revision <= head:
            for row in gate.report.judgement.verdicts:
                if (row.key, row.quantity) == (verdict.key, verdict.quantity):
                    return row.word
    return ""


def _picture(series: Series, index: int) -> dict[str, Any]:
    """Draw a series between its minimum and maximum, with a dot at one value."""
    return sparkline(series.values, min(series.values), index)
