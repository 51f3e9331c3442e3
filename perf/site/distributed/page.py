"""Distributed page: exposed communication, bucket sizes and sharded optimizer states."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perf import units
from perf.harness.records import CaseResult
from perf.site import conditions, pages
from perf.site.distributed.bucket_picture import picture
from perf.site.distributed.headlines import half_width, headlines, interval, percent, place, seconds, setting
from perf.site.distributed.rows import (
    CLASSES,
    FULLY_SHARDED,
    OURS_SWEPT,
    POINTS,
    SHARDING,
    STRATEGIES,
    SWEEPS,
    Collective,
    FullyShard,
    Group,
    Shard,
    Strategy,
    Where,
    collectives_of,
    fully_sharded_of,
    groups_of,
    model_of,
    shards_of,
    torchs_of,
)
from perf.site.estimate import Estimate, estimate
from perf.site.failures import by_reason, with_class
from perf.site.newest import NewestCell, Site
from perf.site.wording import status, varying

_OF_A_CEILING = ("Ceilings", "Of ceiling")
"""Facts that say nothing here: no figure of the page is held against a ceiling."""


@dataclass(frozen=True)
class MachineDistributed:
    """Multi-rank measurements of one machine."""

    name: str
    cells: Mapping[str, Sequence[NewestCell]]
    """Cells by class."""

    commits: Mapping[str, pages.Commit]
    """Commits of the cells, by hash."""

    series: frozenset[str]
    """Names of asv's benchmarks with a graph of this machine."""

    def link(self, result: CaseResult | None, method: str = "track_time") -> str:
        """Return asv's graph of a case; "" if there is none."""
        return pages.known_link(self.series, f"{result.benchmark}.{method}", self.name, result.params) if result else ""

    def of(self, *classes: str) -> Iterator[NewestCell]:
        """Cells of these classes."""
        for benchmark in classes:
            yield from self.cells.get(benchmark, ())


def collect(site: Site, machine: str) -> MachineDistributed:
    """Collect a machine's data from what asv publishes."""
    cells = {benchmark: found for benchmark, found in site.cells(machine).items() if benchmark in CLASSES}
    commits = dict.fromkeys(cell.commit for of_class in cells.values() for cell in of_class)
    return MachineDistributed(machine, cells, {one: site.describe(one) for one in commits}, site.series(machine))


def render(project: str, machines: Iterable[MachineDistributed], show_commit_url: str) -> str:
    """Render the page."""
    every = list(machines)
    return pages.render(
        "distributed",
        project=project,
        machines=[_machine(one) for one in every if one.cells],
        silent=[one.name for one in every if not one.cells],
        show_commit_url=show_commit_url,
    )


def _machine(one: MachineDistributed) -> dict[str, Any]:
    results = [cell.result for cell in one.of(*CLASSES)]
    groups, sweeps = groups_of(one.of(*STRATEGIES)), groups_of(one.of(*SWEEPS))
    timed, collectives = [group for group in groups if group.shortest], collectives_of(one.cells)
    shards = [group for group in shards_of(one.of(*SHARDING)) if any(shard.time for shard in group)]
    fully_sharded = [group for group in fully_sharded_of(one.of(*FULLY_SHARDED)) if any(row.step for row in group)]
    facts = [fact for fact in conditions.facts(results) if fact[0] not in _OF_A_CEILING]
    nccl = dict.fromkeys(result.session.software.get("nccl", "") for result in results)
    return {
        "id": pages.ident(one.name),
        "name": one.name,
        "headlines": list(headlines(timed, collectives, shards, fully_sharded)),
        "has_numbers": any(map(estimate, results)),
        "on_gpu": any(result.session.device.get("sm_count") for result in results),
        "strategies": _settings([group.where for group in timed]),
        "strategy_rows": [_strategy(one, group, row) for group in timed for row in group.strategies],
        "sweeps": [_sweep(one, sweep) for sweep in sweeps if sweep.shortest],
        "collectives": [_collective(one, row) for row in collectives],
        "shards": _settings([group[0].where for group in shards]),
        "shard_rows": [_shard(one, group, row) for group in shards for row in group],
        "fully_sharded": _settings([group[0].where for group in fully_sharded]),
        "fully_sharded_rows": [_fully_shard(one, group, row) for group in fully_sharded for row in group],
        "points": [point.removesuffix("_bytes").replace("_", " ") for point in POINTS],
        "failures": by_reason(results, with_class),
        "commits": list(one.commits.values()),
        "facts": facts + [("NCCL", "; ".join(filter(None, nccl)))] * any(nccl),
        "commands": [
            f"asv run --bench '^{re.escape(benchmark)}\\.' {commit[:8]}^!"
            for benchmark, cells in one.cells.items()
            for commit in dict.fromkeys(cell.commit for cell in cells)
        ],
    }


def _settings(wheres: Sequence[Where]) -> dict[str, Any]:
    """Return axes that vary between rows, and the constant axes as text."""
    axes = varying(where._asdict() for where in wheres)
    return {
        "axes": axes,
        "constants": ", ".join(setting(axis, wheres[0]) for axis in Where._fields if wheres and axis not in axes),
    }


def _time(found: Estimate | None, result: CaseResult | None, href: str) -> dict[str, Any]:
    """Return a cell: a time with the half-width of its interval, or the reason why there is none."""
    if found is None:
        failed = result is not None and result.status != "ok"
        return {
            "text": "",
            "value": "",
            "spread": "",
            "href": "",
            "status": status(result.status)[1] if result and failed else "",
            "title": result.reason if result and failed else "not measured",
        }
    return {
        "text": seconds(found.median),
        "value": f"{found.median:.6g}",
        "spread": half_width(found),
        "href": href,
        "status": "",
        "title": "",
    }


def _strategy(one: MachineDistributed, group: Group, row: Strategy) -> dict[str, Any]:
    step, exposed = row.result("step"), row.result("exposed")
    peak, sent, calls, share = row.peak_bytes, row.fact("bytes"), row.fact("calls"), row.share
    hidden = min(max(share, 0.0), 1.0) if share is not None else None
    ratio = group.baseline.median / row.step.median if group.baseline and row.step else None
    return {
        "where": group.where._asdict(),
        "name": row.name,
        "full": f"{row.name}, {place(group.where)}",
        "fastest": row is group.fastest,
        "step": _time(row.step, step, one.link(step)),
        "ratio": units.times(ratio) if ratio and row.name != "torch" else "",
        "exposed": _time(row.exposed, exposed, one.link(exposed)),
        "share": percent(share) if share is not None else "",
        "share_value": share if share is not None else "",
        "parts": []
        if hidden is None
        else [("compute", round(100 * (1 - hidden), 2)), ("communication", round(100 * hidden, 2))],
        "calls": f"{calls:g}" if calls is not None else "",
        "megabytes": units.digits(sent / 1e6) if sent is not None else "",
        "megabytes_value": sent if sent is not None else "",
        "peak": units.memory(peak) if peak else "",
        "peak_value": peak or "",
        "peak_href": one.link(step, "track_peak_memory"),
        "commits": row.commits,
    }


def _sweep(one: MachineDistributed, sweep: Group) -> dict[str, Any]:
    model = model_of(sweep)
    ours = [(row.exposed, row) for row in sweep.strategies if row.name == OURS_SWEPT and row.exposed]
    least = min(ours, key=lambda each: each[0].median) if ours else None
    best = model.best_bucket_bytes if model else None
    return {
        "place": place(sweep.where),
        "picture": picture(sweep, model, lambda row: one.link(row.result("exposed"))),
        "measured": f"{least[1].bucket_size_mb:g} MiB ({interval(least[0])})" if least else "",
        "bandwidth": units.bandwidth(model.bandwidth) if best and model else "",
        "overhead": units.seconds(model.overhead) if best and model else "",
        "fitted": model is not None,
        "best": units.memory(best) if best else "",
        "best_exposed": units.seconds(model.exposed(best)) if model and best else "",
        "rows": [
            {
                "name": row.name,
                "full": f"{row.name}, {row.bucket_size_mb:g} MiB, {place(sweep.where)}",
                "bucket": f"{row.bucket_size_mb:g}",
                "mean": units.memory(row.bucket_bytes) if row.bucket_bytes else "",
                "mean_value": row.bucket_bytes or "",
                "calls": f"{calls:g}" if (calls := row.fact("calls")) is not None else "",
                "exposed": _time(row.exposed, row.result("exposed"), one.link(row.result("exposed"))),
                "model": units.seconds(model.exposed(row.bucket_bytes)) if model and row.bucket_bytes else "",
                "model_value": model.exposed(row.bucket_bytes) if model and row.bucket_bytes else "",
                "step": _time(row.step, row.result("step"), one.link(row.result("step"))),
                "fastest": row is sweep.fastest,
            }
            for row in sweep.strategies
        ],
    }


def _collective(one: MachineDistributed, row: Collective) -> dict[str, Any]:
    return {
        "backend": row.backend,
        "world_size": row.world_size,
        "megabytes": row.megabytes,
        "full": f"{row.megabytes} MB over {row.world_size} ranks, {row.backend}",
        "time": _time(row.time, row.cell.result, one.link(row.cell.result)),
        "algorithm": units.bandwidth(row.algorithm_bandwidth),
        "algorithm_value": row.algorithm_bandwidth,
        "bus": units.bandwidth(row.bus_bandwidth),
        "bus_value": row.bus_bandwidth,
    }


def _shard(one: MachineDistributed, group: Sequence[Shard], row: Shard) -> dict[str, Any]:
    facts = row.result.facts
    whole = next((shard.time for shard in group if shard.name == "none" and shard.time), None)
    held, formula = facts.get("optimizer_bytes"), row.predicted("optimizer_bytes")
    sent = facts.get("communicated_bytes")
    return {
        "where": row.where._asdict(),
        "name": row.name,
        "full": f"{row.name}, {place(row.where)}",
        "time": _time(row.time, row.result, one.link(row.result)),
        "ratio": units.times(whole.median / row.time.median) if row.time and whole and row.name != "none" else "",
        "points": [
            {
                "text": units.memory(facts[point]) if facts.get(point) else "",
                "value": facts.get(point) or "",
                "href": one.link(row.result, f"track_{point}"),
                "formula": units.memory(predicted) if facts.get(point) and (predicted := row.predicted(point)) else "",
            }
            for point in POINTS
        ],
        "held": units.memory(held) if held else "",
        "held_value": held or "",
        "off": f"{100 * (held / formula - 1):+.1f}\u00a0%" if held and formula else "",
        "megabytes": units.digits(sent / 1e6) if sent else "",
        "megabytes_value": sent or "",
    }


def _fully_shard(one: MachineDistributed, group: Sequence[FullyShard], row: FullyShard) -> dict[str, Any]:
    step, exposed, share = row.result("step"), row.result("exposed"), row.share
    torchs = torchs_of(group)
    base = torchs.step if torchs else None
    full = f"{row.name}, {row.compute_dtype}, {place(row.where)}"

    def moved(name: str) -> dict[str, Any]:
        num_bytes, formula = row.fact(name), row.predicted(name)
        return {
            "text": units.digits(num_bytes / 1e6) if num_bytes else "",
            "value": num_bytes or "",
            "formula": units.digits(formula / 1e6) if num_bytes and formula else "",
        }

    def held(point: str) -> dict[str, Any]:
        num_bytes, formula = row.fact(point), row.predicted(point) if point != POINTS[0] else None
        return {
            "text": units.memory(num_bytes) if num_bytes else "",
            "value": num_bytes or "",
            "href": one.link(step, f"track_{point}"),
            "formula": units.memory(formula) if num_bytes and formula else "",
        }

    return {
        "where": row.where._asdict(),
        "name": row.name,
        "compute_dtype": row.compute_dtype,
        "full": full,
        "step": _time(row.step, step, one.link(step)),
        "ratio": units.times(base.median / row.step.median) if base and row.step and row is not torchs else "",
        "exposed": _time(row.exposed, exposed, one.link(exposed)),
        "share": percent(share) if share is not None else "",
        "share_value": share if share is not None else "",
        "points": [held(point) for point in POINTS],
        "moved": [moved(name) for name in ("gathered_bytes", "scattered_bytes")],
    }
