"""Attention page: measurements of each machine by section."""

import re
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from perf import units
from perf.labels import FASTEST, label
from perf.site import conditions, pages, sparkline
from perf.site.attention import cells
from perf.site.attention.catalogue import SECTIONS, Section
from perf.site.attention.collected import MachineAttention, Measured, collect
from perf.site.attention.rows import AttentionRow, Overview, build_rows, overview
from perf.site.changes.rows import Series
from perf.site.failures import by_reason, implementation
from perf.site.table import table
from perf.site.wording import sentence, varying

__all__ = ["collect", "render"]

FEW = 8
"""Up to as many cases have a row for each implementation; more have one for ours, and heat maps."""

_HEADLINE = ("reference", "sdpa", "sdpa_flash", "sdpa_cudnn", FASTEST)


def render(project: str, machines: Iterable[MachineAttention], show_commit_url: str) -> str:
    """Render the page; machines in the order of their first sections."""
    every, known = list(machines), list(SECTIONS)
    shown = sorted((one for one in every if one.measured), key=lambda one: known.index(one.measured[0].benchmark))
    others = {one.name: one.silence for one in every if not one.measured}
    found = {one.name: _machine(one.measured) for one in shown} | dict.fromkeys(others)
    return pages.render("attention", project, show_commit_url, found, silence=others)


def _machine(measured: Sequence[Measured]) -> dict[str, Any]:
    """One machine: what holds for all its sections is said once."""
    facts, own = conditions.split([conditions.facts(one.results, SECTIONS[one.benchmark].quantity) for one in measured])
    commits = {one.commit for one in measured}
    return {
        "commit": measured[0].commit if len(commits) == 1 else None,
        "facts": facts,
        "sections": [_section(one, facts_of_one) for one, facts_of_one in zip(measured, own, strict=True)],
    }


def _section(one: Measured, facts: list[tuple[str, str]]) -> dict[str, Any]:
    section = SECTIONS[one.benchmark]
    rows, peers = build_rows(one.results, section.ours, section.quantity)
    axes = varying(dict(row.config) for row in rows)
    done = [row for row in rows if row.figure]
    overviews = {peer: overview(rows, peer) for peer in peers}
    ceilings = sorted(row.ceiling for row in done if row.ceiling is not None)
    few = len(rows) <= FEW
    show = cells.Show(section, one.link, units.rate_unit([row.flops_per_s for row in done if row.flops_per_s]))
    first = dict(rows[0].config)
    return {
        "id": pages.ident(one.machine, one.benchmark),
        "known": section,
        "subject": section.subject[0].upper() + section.subject[1:],
        "ours": label(section.ours),
        "has_peers": bool(peers),
        "say": cells.WORDS[section.quantity],
        "constants": sentence({axis: first[axis] for axis in first if axis not in axes}) if axes else "",
        "commit": one.commit,
        "newer": one.newer,
        "cases": len(rows),
        "cells": cells.extent([dict(row.config) for row in rows], axes),
        "done": len(done),
        "takes": _range([row.figure.median for row in done if row.figure])
        if section.quantity == "time" and (len(rows) == 1 or not peers)
        else "",
        "headline": _headline(overviews, few, section),
        "ceiling": units.percent(statistics.median(ceilings)) if ceilings else "",
        "best_ceiling": units.percent(ceilings[-1]) if ceilings else "",
        "implementations": table(one for row in rows for one in cells.implementations(row, peers, axes, show))
        if few
        else None,
        "grid": None if few else _grid(rows, overviews, axes, show),
        "history": _cards(one, section),
        "history_span": _span(one.history),
        "failures": by_reason(one.results, implementation),
        "facts": facts,
        "command": f"asv run --bench '^{re.escape(one.benchmark)}\\.' {one.commit.hash[:8]}^!",
    }


def _range(seconds: list[float]) -> str:
    """Format what one case takes, or the shortest and the longest: 5.44 to 11.2 s."""
    return " to ".join(units.seconds_together(sorted({min(seconds), max(seconds)}), 3)) if seconds else ""


def _grid(
    rows: list[AttentionRow], overviews: dict[str, Overview | None], axes: list[str], show: cells.Show
) -> dict[str, Any]:
    """Many cases: each peer's overview and heat maps, and a table of every case of ours."""
    return {
        "peers": [
            {
                "id": peer,
                "label": label(peer),
                "overview": _overview_text(found),
                "maps": cells.maps(rows, peer, show.section, axes),
            }
            for peer, found in overviews.items()
        ],
        "cases": table(cells.case_row(row, axes, show) for row in rows),
    }


def _headline(overviews: dict[str, Overview | None], few: bool, section: Section) -> list[tuple[str, str]]:
    """Return ratio and name of the main peers, without a ratio for equal memory."""
    # Beside one or two peers the fastest of them says nothing new, and among a few cases it may be another of ours.
    wanted = [peer for peer in _HEADLINE if peer != FASTEST or (len(overviews) > 3 and not few)]
    found = [(one.mean, label(peer)) for peer in wanted if (one := overviews.get(peer))]
    if section.quantity == "time":
        return [(mean.words, peer) for mean, peer in found]
    even = units.times(1)
    return [(ratio if (ratio := units.times(mean.value)) != even else "", peer) for mean, peer in found]


def _overview_text(found: Overview | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "mean": units.times(found.mean.value),
        "half": units.percent(found.mean.half),
        "low": units.times(found.low),
        "high": units.times(found.high),
        "cases": found.cases,
        "better": found.better,
        "worse": found.worse,
    }


def _cards(one: Measured, section: Section) -> list[dict[str, str]]:
    text = units.seconds if section.quantity == "time" else units.memory
    configs = [{axis: value for axis, value in series.params.items() if axis != "impl"} for series in one.history]
    axes = varying(configs)
    return [
        sparkline.card(series.values, text)
        | {
            "name": sentence({axis: config[axis] for axis in axes or config}),
            "href": one.link(section.method, series.params),
        }
        for series, config in zip(one.history, configs, strict=True)
    ]


def _span(history: Iterable[Series]) -> tuple[str, str] | None:
    """Return the minimum and maximum ratio of the oldest to the newest value."""
    changes = sorted(series.values[0] / series.values[-1] for series in history)
    return (units.times(changes[0]), units.times(changes[-1])) if changes else None
