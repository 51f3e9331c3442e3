"""Roofline page: share of the measured ceiling of each case, and its history."""

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perf import units
from perf.labels import label
from perf.site import conditions, newest, pages
from perf.site.failures import by_reason
from perf.site.newest import NewestCell, Site
from perf.site.roofline import rows
from perf.site.roofline.picture import picture
from perf.site.roofline.rows import Class, History, Point, RooflineRow, classes_of
from perf.site.sparkline import sparkline
from perf.site.table import Cell, Row, number, parameter, table, text
from perf.site.wording import sentence


@dataclass(frozen=True)
class Moment:
    """A commit of a history and its environment."""

    commit: pages.Commit
    environment: Mapping[str, str]


@dataclass(frozen=True)
class MachineRoofline(pages.Machine):
    """Measurements of one machine."""

    cells: Mapping[str, Sequence[NewestCell]]
    """Cells by class."""

    histories: Mapping[str, History]
    """Histories by class."""

    moments: Mapping[int, Moment]
    """Commits of the histories' points, by asv's number."""

    commits: Mapping[str, pages.Commit]
    """Commits of the cells, by hash."""


def collect(site: Site, machine: str) -> MachineRoofline:
    """Collect a machine's data from what asv publishes."""
    cells = site.cells(machine)
    classes = classes_of(cells)
    histories = {}
    for one in classes:
        if found := site.benchmarks.get(f"{one.benchmark}.track_time"):
            histories[one.benchmark] = rows.history(one, site.graphs, found, machine)
    moments = {
        revision: Moment(site.describe(commit), newest.environment(site.directory, machine, commit))
        for revision in {point.revision for history in histories.values() for point in history.points}
        for commit in [site.hashes[revision]]
    }
    commits = {row.cell.commit for one in classes for row in one.rows}
    return MachineRoofline(
        machine, site.series(machine), cells, histories, moments, {one: site.describe(one) for one in commits}
    )


def render(project: str, machines: Iterable[MachineRoofline], show_commit_url: str) -> str:
    """Render the page."""
    shown = {one.name: _machine(one) if classes_of(one.cells) else None for one in machines}
    return pages.render("roofline", project, show_commit_url, shown)


def _machine(one: MachineRoofline) -> dict[str, Any]:
    classes = classes_of(one.cells)
    rows = [row for each in classes for row in each.rows]
    ours = sorted((row for row in rows if row.whose == "ours"), key=lambda row: row.fraction)
    others = sorted((row for row in rows if row.whose != "ours"), key=lambda row: row.fraction)
    scale, unit = units.rate_unit([row.flops_per_s for row in rows if row.flops_per_s])
    results = [cell.result for each in classes for cell in one.cells[each.benchmark]]
    histories = [found for each in classes if (found := _history(one, each))]
    return {
        "summary": _summary(one, ours),
        "picture": picture(rows, lambda row: (_title(row), one.link(row.result))),
        "flat": sum(1 for row in rows if not row.flops_per_s),
        "classes": table(_class(one, each) for each in classes),
        "commands": newest.commands(row.cell for row in rows),
        "histories": histories,
        "history": table(each["row"] for each in histories),
        "cases": table(_row(one, row, scale, unit) for row in (*ours, *others)),
        "failures": by_reason(results),
        "commits": [one.commits[commit] for commit in dict.fromkeys(row.cell.commit for row in rows)],
        "facts": conditions.facts(results),
    }


def _summary(one: MachineRoofline, ours: Sequence[RooflineRow]) -> dict[str, Any] | None:
    """Summarize the project's own cases, which are sorted by fraction."""
    if not ours:
        return None
    return {
        "cases": len(ours),
        "median": units.percent(statistics.median(row.fraction for row in ours)),
        "low": units.percent(ours[len(ours) // 4].fraction),
        "high": units.percent(ours[3 * len(ours) // 4].fraction),
        "best": {
            "text": units.percent(ours[-1].fraction),
            "name": f"{ours[-1].result.benchmark}, {sentence(ours[-1].result.params)}",
            "href": one.link(ours[-1].result),
        },
    }


def _title(row: RooflineRow) -> str:
    speed = (
        f", {units.rate(row.flops_per_s)} at {units.digits(row.intensity)} FLOP/byte"
        if row.flops_per_s and row.intensity
        else ""
    )
    return f"{row.result.benchmark}, {sentence(row.result.params)}: {units.percent(row.fraction)} of the ceiling{speed}"


def _class(one: MachineRoofline, each: Class) -> Row:
    ours, found = each.ours, one.histories.get(each.benchmark)
    case = found.first if found and found.first else ours[len(ours) // 2].result.params
    commit = one.commits[statistics.mode(row.cell.commit for row in ours)]
    return each.benchmark, {
        "class": text(each.benchmark, href=one.graph(f"{each.benchmark}.track_time", case)),
        "cases": number(len(ours), str),
        "median": number(each.median, units.percent, share=each.median),
        "peers\u2019 median": number(each.peers_median, units.percent),
        "worst": _which(one, ours[0]),
        "best": _which(one, ours[-1]),
        "limited by memory": number(sum(row.bound.limit == "memory" for row in ours) or None, str),
        "most cases at": Cell(commits=(commit.hash,), beside=commit.date),
    }


def _which(one: MachineRoofline, row: RooflineRow) -> Cell:
    """Return a share of the ceiling with the case beside it."""
    return Cell(
        units.percent(row.fraction),
        row.fraction,
        href=one.link(row.result),
        beside=sentence(row.result.params),
        classes="which",
    )


def _row(one: MachineRoofline, row: RooflineRow, scale: float, unit: str) -> Row:
    result, time = row.result, row.time
    impl, dtype = result.params.get("impl"), result.matmul_dtype if result.flops else ""
    return f"{result.benchmark}, {sentence(result.params)}", {
        "case": text(sentence(result.params), href=one.link(row.result)),
        "of ceiling": number(row.fraction, units.percent, share=row.fraction),
        "class": parameter(result.benchmark),
        "whose": parameter(row.whose),
        "implementation": parameter(label(impl) if impl else "\u2013"),
        "dtype": parameter(dtype or "\u2013"),
        "limit": parameter(row.bound.limit),
        "time": number(time.median, units.seconds, beside=time.spread),
        "FLOP/byte": number(row.intensity, units.digits),
        unit: number(row.flops_per_s, lambda value: units.digits(value / scale)),
        "bytes": number(row.bytes_per_s or None, units.bandwidth),
    }


def _history(one: MachineRoofline, each: Class) -> dict[str, Any] | None:
    found = one.histories.get(each.benchmark)
    if found is None or len(found.points) < 2:
        return None
    fractions = tuple(point.fraction for point in found.points)
    environments = [{**one.moments[point.revision].environment, **point.versions} for point in found.points]
    changes = ["", *(changed(before, after) for before, after in itertools.pairwise(environments))]
    moves = [None, *(after / before - 1 for before, after in itertools.pairwise(fractions))]
    href = pages.permalink(f"{each.benchmark}.track_time", one.name, found.first)
    row = {
        "class": text(each.benchmark),
        "history": Cell(picture=sparkline(fractions, 0.0, -1, changes), href=href),
        "now": number(fractions[-1], units.percent),
        "last change": number(moves[-1], units.change),
        "cases": number(found.cases, str),
        "commits": number(len(fractions), str),
    }
    points = reversed(list(zip(found.points, moves, changes, strict=True)))
    commits = [_moment(one.moments[point.revision].commit, point, move, change) for point, move, change in points]
    return {"name": each.benchmark, "row": (each.benchmark, row), "commits": table(commits)}


def _moment(commit: pages.Commit, point: Point, move: float | None, change: str) -> Row:
    return commit.hash[:8], {
        "commit": Cell(commits=(commit.hash,)),
        "subject": Cell(commit.subject),
        "date": Cell(commit.date, classes="whole"),
        "median": number(point.fraction, units.percent),
        "change": number(move, units.change),
        "environment": Cell(change, classes="environment"),
    }


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """ "torch 2.11.0 to 2.13.0": what differs of what is known of both."""
    return ", ".join(
        f"{name} {before[name]} to {after[name]}" for name in after if name in before and before[name] != after[name]
    )
