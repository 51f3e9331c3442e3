"""Training step page: time and memory by phase, and the time of each variant."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from perf import units
from perf.harness.records import CaseResult
from perf.site import conditions, pages
from perf.site.ceiling import rate
from perf.site.estimate import estimate, ratio, shortest
from perf.site.failures import by_reason
from perf.site.newest import Site, commands
from perf.site.step.rows import MODES, PHASES, VARIANTS, NewestCell, Phases, Ways, phases_of, utilization, ways_of
from perf.site.table import Cell, Row, duration, number, parameter, table

BASELINE = ("bf16", "eager", "sdpa")
"""Baseline of the variants: plain PyTorch with its own attention."""


@dataclass(frozen=True)
class MachineSteps(pages.Machine):
    """Training steps of one machine."""

    phases: Sequence[NewestCell]
    variants: Sequence[NewestCell]
    commits: Sequence[pages.Commit]
    """Commits of the cells."""


def collect(site: Site, machine: str) -> MachineSteps:
    """Collect a machine's data from what asv publishes."""
    cells = site.cells(machine)
    phases, variants = cells.get(PHASES, []), [cell for way in VARIANTS for cell in cells.get(way, ())]
    commits = dict.fromkeys(cell.commit for cell in (*phases, *variants))
    return MachineSteps(machine, site.series(machine), phases, variants, [site.describe(one) for one in commits])


def render(project: str, machines: Iterable[MachineSteps], show_commit_url: str) -> str:
    """Render the page."""
    shown = {one.name: _machine(one) if one.commits else None for one in machines}
    return pages.render("step", project, show_commit_url, shown)


def _machine(one: MachineSteps) -> dict[str, Any]:
    phases, ways = phases_of(one.phases), ways_of(one.variants)
    scale, unit = units.rate_unit([row.flops_per_s for row in phases if row.flops_per_s])
    results = [cell.result for cell in (*one.phases, *one.variants)]
    return {
        "phases": table(_phases(one, row, scale, unit) for row in phases if row.says_anything),
        "ways": table(line for row in ways for line in _ways(one, row)),
        "fastest": next(filter(None, map(_fastest, reversed(ways))), None),
        "has_baseline": any(row.time(BASELINE) for row in ways),
        "failures": by_reason(results),
        "commits": one.commits,
        "commands": commands((*one.phases, *one.variants)),
        "facts": conditions.facts(results),
    }


def _fastest(row: Ways) -> dict[str, str] | None:
    """Say which variant of a model has the shortest step; None without a time."""
    times = row.times
    if not times:
        return None
    first, *even = shortest(times)
    found, result, baseline = times[first], row.cells[first].result, times.get(BASELINE)
    flops_per_s = rate(result, found.median)
    share = utilization(result, flops_per_s) if flops_per_s else None
    figures = [
        f"{ratio(found, baseline).words} as fast as {', '.join(BASELINE)}" if baseline and first != BASELINE else "",
        units.rate(flops_per_s) if flops_per_s else "",
        f"{units.percent(share)} MFU" if share else "",
    ]
    return {
        "place": f"{row.size}, context {row.context_length}",
        "way": ", ".join(first),
        "even": "; ".join(", ".join(way) for way in even),
        "time": f"{units.seconds(found.median)} {found.spread}",
        "figures": "".join(f", {figure}" for figure in figures if figure),
    }


def _phases(one: MachineSteps, row: Phases, scale: float, unit: str) -> Row:
    times = {mode: _time(one, row.wall.get(mode)) for mode in MODES[:-1]}
    flops_per_s, share = row.flops_per_s, row.utilization
    return f"{row.size}, context {row.context_length}, {row.precision}", {
        "size": parameter(row.size),
        "context": parameter(row.context_length),
        "precision": parameter(row.precision),
        "step": _step(one, row.wall.get("step")),
        "breakdown": Cell(parts=tuple(row.parts.items())),
        "busy": number(row.busy_share, units.percent),
        **times,
        unit: number(
            flops_per_s, lambda value: units.digits(value / scale), beside=units.percent(share) if share else ""
        ),
        "peak, forward": _peak(one, row.wall.get("forward"), None),
        "peak, step": _peak(one, row.wall.get("step"), row.predicted_step_bytes),
        "commit": Cell(commits=(row.commit,) if len(one.commits) > 1 else ()),
    }


def _time(one: MachineSteps, result: CaseResult | None, **more: Any) -> Cell:
    return duration(result, estimate(result), href=one.link(result), **more)


def _step(one: MachineSteps, result: CaseResult | None, gain: str = "", classes: str = "") -> Cell:
    """Return a step's time with the half-width of its interval and a speed-up, if it has one."""
    found = estimate(result)
    beside = ", ".join(filter(None, (found.spread if found else "", gain)))
    return _time(one, result, beside=beside, classes=classes)


def _peak(one: MachineSteps, result: CaseResult | None, predicted: int | None) -> Cell:
    """Return a peak of memory with its deviation from the predicted one."""
    peak = result.peak_bytes if result and result.status == "ok" else None
    beside = units.change(peak / predicted - 1) if peak and predicted else ""
    return number(peak or None, units.memory, href=one.link(result, "track_peak_memory"), beside=beside)


def _ways(one: MachineSteps, row: Ways) -> Iterator[Row]:
    """Yield a row per precision and attention of one model, with a cell per variant."""
    baseline, fastest = row.time(BASELINE), row.fastest
    lines: dict[tuple[str, str], dict[str, Cell]] = {}
    for way, cell in row.cells.items():
        precision, variant, attention = way
        found = row.time(way)
        gain = units.times(baseline.median / found.median) if baseline and found and way != BASELINE else ""
        line = lines.setdefault((precision, attention), {})
        line[variant] = _step(one, cell.result, gain, "fastest" if way == fastest else "")
    for (precision, attention), line in lines.items():
        yield (
            f"{row.size}, context {row.context_length}, {precision}, {attention}",
            {
                "size": parameter(row.size),
                "context": parameter(row.context_length),
                "precision": parameter(precision),
                "attention": parameter(attention),
                **line,
            },
        )
