"""Overview page: measured classes, open regressions and newest gates of each machine."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perf.gate.wording import change, headline, in_order, name
from perf.harness.records import CaseResult
from perf.printable import shortened
from perf.selection import is_control
from perf.site import pages
from perf.site.attention.catalogue import SECTIONS
from perf.site.changes import page as change_page
from perf.site.changes.rows import Change
from perf.site.distributed.rows import CLASSES
from perf.site.failures import by_reason, class_and_implementation
from perf.site.gates import Gate
from perf.site.overview.rows import MeasuredClass
from perf.site.step.rows import PHASES, VARIANTS
from perf.site.table import Cell, Row, number, table, text

OWN_PAGES = {"attention.html": SECTIONS, "step.html": (PHASES, *VARIANTS), "distributed.html": CLASSES}
"""Classes of each page; that of a control is the roofline."""

MOST_GATES = 10
MOST_ROWS = 20
MOST_CHANGED = 5
MOST_OPEN = 10


@dataclass(frozen=True)
class MachineOverview:
    """A machine, its hardware and its gates, newest first."""

    name: str
    hardware: str
    measured: Sequence[MeasuredClass]
    gates: Sequence[Gate]
    skipped: Sequence[tuple[str, str]]
    """Files of gates and results that are omitted, each with the reason."""

    changed: change_page.MachineChanges
    about: Mapping[str, str] = field(default_factory=dict)
    """The first line of each class's docstring."""

    newer: Mapping[str, int] = field(default_factory=dict)
    """Number of newer commits, by commit of the first branch; see `Site.newer`."""

    speedups: dict[str, Any] | None = None
    """The result of `speedups.picture`."""

    failing: Sequence[CaseResult] = ()
    """Results of cases that failed at the newest commit that tried them."""

    @property
    def newest(self) -> pages.Commit | None:
        """The newest measured commit."""
        return self.changed.described(self._last) if self.measured else None

    @property
    def oldest(self) -> pages.Commit | None:
        """The newest commit of the case that has gone without a measurement for the longest."""
        return self.changed.described(min(min(one.newest) for one in self.measured)) if self.measured else None

    @property
    def cells(self) -> int:
        """Number of measured cases."""
        return sum(one.cells for one in self.measured)

    @property
    def cells_at_newest(self) -> int:
        """Number of cases with a number at the newest measured commit."""
        return sum(revision == self._last for one in self.measured for revision in one.newest)

    @property
    def _last(self) -> int:
        return max((max(one.revisions) for one in self.measured), default=0)

    def age(self, commit: str) -> int | None:
        """Return the number of newer commits; None for a commit on no published branch."""
        return self.newer.get(commit)

    def is_of_newest_code(self, gate: Gate) -> bool:
        """Whether the gate's head is the newest measured commit or a later one."""
        head, newest = self.age(gate.report.head["commit"]), self.newest
        measured = self.age(newest.hash) if newest else None
        return head is not None and (measured is None or head <= measured)


def render(project: str, machines: Iterable[MachineOverview], show_commit_url: str) -> str:
    """Render the page."""
    return pages.render("overview", project, show_commit_url, {one.name: _machine(one) for one in machines})


def _machine(one: MachineOverview) -> dict[str, Any]:
    gates = [gate for gate in one.gates if not gate.report.is_of_identical_code]  # those are for the trust page
    failures = by_reason(one.failing, lambda one: f"{class_and_implementation(one)} at {one.session.commit[:8]}", ())
    return {
        "hardware": one.hardware,
        "measured": table(_measured(one, each) for each in one.measured),
        "cells": one.cells,
        "cells_at_newest": one.cells_at_newest,
        "commits": one.changed.commits,
        "gate": next((_gate(one, each) for each in gates[:1] if one.is_of_newest_code(each)), None),
        "gates": [_gate(one, each) for each in gates[:MOST_GATES]],
        "more": max(0, len(gates) - MOST_GATES),
        "skipped": one.skipped,
        "changed": [_changed(one, some) for some in one.changed.by_range[:MOST_CHANGED]],
        "newest": one.newest,
        "newer": one.age(one.newest.hash) if one.newest else None,
        "oldest_age": one.age(one.oldest.hash) if one.oldest else None,
        "speedups": one.speedups,
        "failing": sum(group["count"] for group in failures),
        "failures": failures,
        "host": sum(map(one.changed.is_host_time, one.changed.changes)),
        "open": [_open(one, each) for each in one.changed.open[:MOST_OPEN]],
        "unshown": max(0, len(one.changed.open) - MOST_OPEN),
    }


def _open(one: MachineOverview, each: Change) -> dict[str, Any]:
    verdict, commit = each.verdict, one.changed.described(each.revision)
    return {
        "name": name(verdict.key, verdict.quantity),
        "history": pages.permalink(each.series.method, one.name, each.series.params),
        "word": verdict.word.lower(),
        "evidence": _evidence(one, each),
        "change": change(verdict),
        "commit": commit,
        "span": change_page.span(one.changed, each),
        "count": each.revision - each.last_before,
        "href": f"changes.html#{change_page.anchor(one.changed, each)}",
    }


def _evidence(one: MachineOverview, each: Change) -> str:
    if each.series.quantity == "peak_memory":
        return "exact bytes"
    return "one commit: unconfirmed" if one.changed.is_unconfirmed(each) else "several commits"


def _changed(one: MachineOverview, changes: Sequence[Change]) -> dict[str, Any]:
    return {
        "counts": change_page.counted(changes),
        "span": change_page.span(one.changed, changes[0]),
        "count": changes[0].revision - changes[0].last_before,
        "commit": one.changed.described(changes[0].revision),
        "href": f"changes.html#{change_page.anchor(one.changed, changes[0])}",
    }


def _measured(machine: MachineOverview, row: MeasuredClass) -> Row:
    newest = machine.changed.described(max(row.revisions))
    of_control = "roofline.html" if is_control(row.benchmark) else ""
    own = next((page for page, classes in OWN_PAGES.items() if row.benchmark in classes), of_control)
    return row.benchmark, {
        "class": text(row.benchmark, href=own),
        "description": Cell(machine.about.get(row.benchmark, ""), classes="what"),
        "cases": number(row.cells, str, beside="" if row.cells == row.grid else f"of {row.grid}"),
        "commits": number(len(row.revisions), str),
        "newest": Cell(commits=(newest.hash,), beside=newest.date, classes="whole"),
        "graphs": Cell("history", href=pages.permalink(f"{row.benchmark}.{row.method}", machine.name, row.case)),
    }


def _gate(machine: MachineOverview, one: Gate) -> dict[str, Any]:
    report = one.report
    bad = [verdict for verdict in in_order(report.judgement.believed) if verdict.is_bad]
    return {
        "date": f"{one.when:%Y-%m-%d %H:%M}",
        "base": report.base["commit"],
        "head": report.head["commit"],
        "age": machine.age(report.head["commit"]),
        "subject": shortened(report.head["subject"]),
        "says": headline(report),
        "status": report.exit_status,
        "is_of_newest_code": machine.is_of_newest_code(one),
        "rows": [f"{name(verdict.key, verdict.quantity)}: {change(verdict)}" for verdict in bad[:MOST_ROWS]],
        "hidden": max(0, len(bad) - MOST_ROWS),
        "minutes": f"{report.seconds / 60:.1f}",
    }
