"""Training step page: time and memory by phase, and the time of each variant."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from perf import units
from perf.harness.records import CaseResult
from perf.site import conditions, pages
from perf.site.failures import by_reason
from perf.site.newest import Site
from perf.site.step.rows import MODES, PHASES, VARIANTS, NewestCell, Phases, Ways, phases_of, ways_of
from perf.site.wording import status

BASELINE = ("bf16", "eager", "sdpa")
"""Baseline of the variants: plain PyTorch with its own attention."""


@dataclass(frozen=True)
class MachineSteps:
    """Training steps of one machine."""

    name: str
    phases: Sequence[NewestCell]
    variants: Sequence[NewestCell]
    commits: Sequence[pages.Commit]
    """Commits of the cells."""

    series: frozenset[str]
    """Names of asv's benchmarks with a graph of this machine."""

    def link(self, result: CaseResult, method: str) -> str:
        """Return asv's graph of a case; "" if there is none."""
        return pages.known_link(self.series, f"{result.benchmark}.{method}", self.name, result.params)


def collect(site: Site, machine: str) -> MachineSteps:
    """Collect a machine's data from what asv publishes."""
    cells = site.cells(machine)
    phases, variants = cells.get(PHASES, []), [cell for way in VARIANTS for cell in cells.get(way, ())]
    commits = dict.fromkeys(cell.commit for cell in (*phases, *variants))
    return MachineSteps(machine, phases, variants, [site.describe(one) for one in commits], site.series(machine))


def render(project: str, machines: Iterable[MachineSteps], show_commit_url: str) -> str:
    """Render the page."""
    every = list(machines)
    return pages.render(
        "step",
        project=project,
        machines=[_machine(one) for one in every if one.commits],
        silent=[one.name for one in every if not one.commits],
        modes=MODES,
        show_commit_url=show_commit_url,
    )


def _machine(one: MachineSteps) -> dict[str, Any]:
    phases, ways = phases_of(one.phases), ways_of(one.variants)
    scale, unit = units.rate_unit([row.flops_per_s for row in phases if row.flops_per_s])
    results = [cell.result for cell in (*one.phases, *one.variants)]
    variants = list(dict.fromkeys(variant for row in ways for _, variant, _ in row.cells))
    lines = [_phases(one, row, scale) for row in phases]
    return {
        "id": pages.ident(one.name),
        "name": one.name,
        "rate_unit": unit,
        "phases": [line for line in lines if _says_anything(line)],
        "variants": variants,
        "ways": [line for row in ways for line in _ways(one, row, variants)],
        "failures": by_reason(results),
        "commits": one.commits,
        "facts": conditions.facts(results),
    }


def _phases(one: MachineSteps, row: Phases, scale: float) -> dict[str, Any]:
    step, rate = row.wall.get("step"), row.flops_per_s
    peaks = {
        mode: result.peak_bytes for mode, result in row.wall.items() if result.status == "ok" and result.peak_bytes
    }
    return {
        "size": row.size,
        "context_length": row.context_length,
        "precision": row.precision,
        "commit": row.commit,
        "times": {mode: _time(one, row.wall.get(mode), row.seconds("wall", mode)) for mode in MODES},
        "busy": units.percent(row.busy_share) if row.busy_share else "",
        "busy_value": row.busy_share or "",
        "parts": [(name, round(100 * share, 2), units.percent(share)) for name, share in row.parts.items()],
        "rate": units.digits(rate / scale) if rate else "",
        "rate_value": rate or "",
        "utilization": units.percent(row.utilization) if row.utilization else "",
        "peaks": [
            {
                "text": units.memory(peaks[mode]) if mode in peaks else "",
                "value": peaks.get(mode, ""),
                "href": one.link(row.wall[mode], "track_peak_memory") if mode in peaks else "",
                "off": _off(peaks.get(mode), row.predicted_step_bytes) if mode == "step" else "",
            }
            for mode in ("forward", "step")
        ],
        "name": f"{row.size}, context {row.context_length}, {row.precision}" + ("" if step else ", no step"),
    }


def _says_anything(line: dict[str, Any]) -> bool:
    """Whether a row of phases has a number or the reason of a failure, and not dashes alone."""
    return any(time["text"] or time["status"] for time in line["times"].values()) or any(
        peak["text"] for peak in line["peaks"]
    )


def _off(found: int | None, predicted: int | None) -> str:
    """ "+0.8 %"."""
    return f"{100 * (found / predicted - 1):+.1f}\u00a0%" if found and predicted else ""


def _time(one: MachineSteps, result: CaseResult | None, seconds: float | None) -> dict[str, Any]:
    cell = {"text": "", "value": "", "href": "", "title": "", "status": "", "gain": "", "fastest": False}
    if result is None:
        return cell | {"title": "not measured"}
    if seconds is None:
        return cell | {"title": result.reason, "status": status(result.status)[1]}
    return cell | {"text": units.seconds(seconds), "value": seconds, "href": one.link(result, "track_time")}


def _ways(one: MachineSteps, row: Ways, variants: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Return a row per precision and attention of one model, with a cell per variant."""
    baseline, fastest = row.time(BASELINE), row.fastest
    for precision, attention in dict.fromkeys((precision, attention) for precision, _, attention in row.cells):
        cells = []
        for variant in variants:
            way = precision, variant, attention
            found, result = row.time(way), row.cells[way].result if way in row.cells else None
            gain = units.times(baseline.median / found.median) if baseline and found and way != BASELINE else ""
            cell = _time(one, result, found.median if found else None)
            cells.append(cell | {"gain": gain, "fastest": way == fastest})
        yield {
            "axes": (row.size, row.context_length, precision, attention),
            "name": f"{row.size}, context {row.context_length}, {precision}, {attention}",
            "cells": cells,
        }
