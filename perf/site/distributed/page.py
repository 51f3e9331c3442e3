"""Distributed page: exposed communication, bucket sizes and sharded optimizer states."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perf import units
from perf.harness.records import CaseResult
from perf.site import conditions, pages
from perf.site.distributed.bucket_picture import picture
from perf.site.distributed.headlines import headlines, interval, percent, place, seconds, setting, spread
from perf.site.distributed.rows import (
    BASELINE,
    CLASSES,
    FULLY_SHARDED,
    OURS_SWEPT,
    SHARDING,
    STRATEGIES,
    SWEEPS,
    Collective,
    FullyShard,
    Group,
    Shard,
    Where,
    collectives_of,
    fully_sharded_of,
    groups_of,
    model_of,
    shards_of,
    torchs_of,
)
from perf.site.estimate import Estimate, estimate, ratio
from perf.site.failures import by_reason
from perf.site.newest import NewestCell, Site, commands
from perf.site.table import Cell, Row, duration, number, parameter, table, text
from perf.site.wording import varying
from perf.workloads.rank_step import POINTS

_OF_A_CEILING = ("Ceilings", "Of ceiling")
"""Facts that say nothing here: no figure of the page is held against a ceiling."""

_TITLES = {"context_length": "context", "world_size": "ranks"}
"""Column titles of axes that have another one than their name."""


@dataclass(frozen=True)
class MachineDistributed(pages.Machine):
    """Multi-rank measurements of one machine."""

    cells: Mapping[str, Sequence[NewestCell]]
    """Cells by class."""

    commits: Mapping[str, pages.Commit]
    """Commits of the cells, by hash."""

    def of(self, *classes: str) -> Iterator[NewestCell]:
        """Cells of these classes."""
        for benchmark in classes:
            yield from self.cells.get(benchmark, ())


def collect(site: Site, machine: str) -> MachineDistributed:
    """Collect a machine's data from what asv publishes."""
    cells = {benchmark: found for benchmark, found in site.cells(machine).items() if benchmark in CLASSES}
    commits = dict.fromkeys(cell.commit for of_class in cells.values() for cell in of_class)
    return MachineDistributed(machine, site.series(machine), cells, {one: site.describe(one) for one in commits})


def render(project: str, machines: Iterable[MachineDistributed], show_commit_url: str) -> str:
    """Render the page."""
    shown = {one.name: _machine(one) if one.cells else None for one in machines}
    return pages.render("distributed", project, show_commit_url, shown)


def _machine(one: MachineDistributed) -> dict[str, Any]:
    results = [cell.result for cell in one.of(*CLASSES)]
    groups, sweeps = groups_of(one.of(*STRATEGIES)), groups_of(one.of(*SWEEPS))
    timed, collectives = [group for group in groups if group.shortest], collectives_of(one.cells)
    shards = [group for group in shards_of(one.of(*SHARDING)) if any(shard.step for shard in group)]
    fully_sharded = [group for group in fully_sharded_of(one.of(*FULLY_SHARDED)) if any(row.step for row in group)]
    facts = [fact for fact in conditions.facts(results) if fact[0] not in _OF_A_CEILING]
    nccl = dict.fromkeys(result.session.software.get("nccl", "") for result in results)
    return {
        "headlines": list(headlines(timed, collectives, shards, fully_sharded)),
        "has_numbers": any(map(estimate, results)),
        "on_gpu": any(result.session.device.get("sm_count") for result in results),
        "strategies": _by_setting([(group.where, _strategies(one, group)) for group in timed]),
        "sweeps": [_sweep(one, sweep) for sweep in sweeps if sweep.shortest],
        "collectives": table(_collective(one, row) for row in collectives),
        "shards": _by_setting([(group[0].where, _shards(one, group)) for group in shards]),
        "fully_sharded": _by_dtype(one, fully_sharded),
        "failures": by_reason(results),
        "commits": list(one.commits.values()),
        "facts": facts + [("NCCL", "; ".join(filter(None, nccl)))] * any(nccl),
        "commands": commands(one.of(*CLASSES)),
    }


def _by_setting(groups: Sequence[tuple[Where, Iterable[Mapping[str, Cell]]]]) -> dict[str, Any]:
    """Return the table of all groups, with a column for each axis that varies, and the constant axes as text."""
    wheres = [where for where, _ in groups]
    axes = varying(where._asdict() for where in wheres)

    def row(where: Where, cells: Mapping[str, Cell]) -> Row:
        (title, head), *others = cells.items()
        varied = {_TITLES.get(name, name): parameter(getattr(where, name)) for name in axes}
        return f"{head.text}, {place(where)}", {title: head} | varied | dict(others)

    return {
        "table": table(row(where, cells) for where, rows in groups for cells in rows),
        "constants": ", ".join(setting(axis, wheres[0]) for axis in Where._fields if wheres and axis not in axes),
    }


def _by_dtype(one: MachineDistributed, groups: Sequence[Sequence[FullyShard]]) -> dict[str, Any]:
    """Return the table of `_by_setting`, with a column for the dtype of the gathered weights where it varies."""
    dtypes = {group[0].compute_dtype for group in groups}
    known = _by_setting([(group[0].where, _fully_sharded(one, group, len(dtypes) > 1)) for group in groups])
    if len(dtypes) == 1:
        known["constants"] += f", gathered in {dtypes.pop()}"
    return known


def _time(one: MachineDistributed, result: CaseResult | None, classes: str = "") -> Cell:
    """Return a time with the half-width of its interval, or the reason why there is none."""
    found = estimate(result)
    beside = spread(found, result.params.get("mode") == "exposed") if found and result else ""
    return duration(result, found, written=seconds, href=one.link(result), beside=beside, classes=classes)


def _speedup(base: Estimate | None, found: Estimate | None) -> Cell:
    if base is None or found is None:
        return number(None, units.times)
    gain = ratio(found, base)
    return number(gain.value, units.times, beside=gain.spread)


def _count(value: float | None) -> Cell:
    return number(value, "{:g}".format)


def _megabytes(value: float | None, formula: float | None = None) -> Cell:
    return number(value, _in_megabytes, beside=_in_megabytes(formula) if formula else "")


def _in_megabytes(value: float) -> str:
    return units.digits(value / 1e6)


def _points(
    one: MachineDistributed,
    result: CaseResult | None,
    fact: Callable[[str], float | None],
    predicted: Callable[[str], float | None],
) -> dict[str, Cell]:
    """Return a rank's memory at three points, each with its closed form beside it."""
    return {
        point.removesuffix("_bytes").replace("_", " "): number(
            fact(point) or None,
            units.memory,
            href=one.link(result, f"track_{point}"),
            beside=units.memory(formula) if (formula := predicted(point)) else "",
        )
        for point in POINTS
    }


def _strategies(one: MachineDistributed, group: Group) -> Iterator[dict[str, Cell]]:
    for row in group.strategies:
        step, share = row.result("step"), row.share
        hidden = min(max(share or 0.0, 0.0), 1.0)
        yield {
            "strategy": text(row.name),
            "step": _time(one, step, "fastest" if row is group.fastest else ""),
            "\u00d7\u00a0torch": _speedup(group.baseline if row.name != BASELINE else None, row.step),
            "breakdown": Cell(parts=() if share is None else (("compute", 1 - hidden), ("communication", hidden))),
            "exposed": _time(one, row.result("exposed")),
            "share": number(share, percent),
            "calls": _count(row.fact("calls")),
            "MB sent": _megabytes(row.fact("bytes")),
            "peak memory": number(row.peak_bytes or None, units.memory, href=one.link(step, "track_peak_memory")),
            "commit": Cell(commits=row.commits if len(one.commits) > 1 else ()),
        }


def _sweep(one: MachineDistributed, sweep: Group) -> dict[str, Any]:
    model = model_of(sweep)
    ours = [(row.exposed, row) for row in sweep.strategies if row.name == OURS_SWEPT and row.exposed]
    least = min(ours, key=lambda each: each[0].median) if ours else None
    best = model.best_bucket_bytes if model else None
    return {
        "place": place(sweep.where),
        "picture": picture(sweep, model, lambda row: one.link(row.result("exposed"))),
        "measured": f"{least[1].bucket_size_mb:g} MiB ({interval(least[0], True)})" if least else "",
        "bandwidth": units.bandwidth(model.bandwidth) if best and model else "",
        "overhead": units.seconds(model.overhead) if best and model else "",
        "fitted": model is not None,
        "best": units.memory(best) if best else "",
        "best_exposed": units.seconds(model.exposed(best)) if model and best else "",
        "table": table(
            (
                f"{row.name}, {row.bucket_size_mb:g} MiB, {place(sweep.where)}",
                {
                    "strategy": parameter(row.name),
                    "MiB at most": _count(row.bucket_size_mb),
                    "calls": _count(row.fact("calls")),
                    "mean bucket": number(row.bucket_bytes, units.memory),
                    "exposed": _time(one, row.result("exposed")),
                    "by the model": number(
                        model.exposed(row.bucket_bytes) if model and row.bucket_bytes else None, units.seconds
                    ),
                    "step": _time(one, row.result("step"), "fastest" if row is sweep.fastest else ""),
                },
            )
            for row in sweep.strategies
        ),
    }


def _collective(one: MachineDistributed, row: Collective) -> Row:
    return f"{row.megabytes} MB over {row.world_size} ranks, {row.backend}", {
        "backend": parameter(row.backend),
        "ranks": parameter(row.world_size),
        "MB": parameter(row.megabytes),
        "time": _time(one, row.cell.result),
        "algbw": number(row.algorithm_bandwidth, units.bandwidth),
        "busbw": number(row.bus_bandwidth, units.bandwidth),
    }


def _shards(one: MachineDistributed, group: Sequence[Shard]) -> Iterator[dict[str, Cell]]:
    whole = next((shard.step for shard in group if shard.name == "none" and shard.step), None)
    for row in group:
        step, held, formula = row.result("step"), row.fact("optimizer_bytes"), row.predicted("optimizer_bytes")
        yield {
            "sharding": text(row.name),
            "step": _time(one, step),
            "\u00d7\u00a0none": _speedup(whole if row.name != "none" else None, row.step),
            **_points(one, step, row.fact, row.predicted),
            "moments per rank": number(
                held or None, units.memory, beside=units.change(held / formula - 1) if held and formula else ""
            ),
            "MB sent by the optimizer": _megabytes(row.fact("communicated_bytes") or None),
        }


def _fully_sharded(
    one: MachineDistributed, group: Sequence[FullyShard], names_dtype: bool
) -> Iterator[dict[str, Cell]]:
    torchs = torchs_of(group)
    for row in group:
        step = row.result("step")
        yield {
            "sharding": text(row.name),
            **({"gathered in": text(row.compute_dtype)} if names_dtype else {}),
            "step": _time(one, step),
            "\u00d7\u00a0FSDP2": _speedup(torchs.step if torchs and row is not torchs else None, row.step),
            "exposed": _time(one, row.result("exposed")),
            "share": number(row.share, percent),
            **_points(one, step, row.fact, row.predicted),
            "MB gathered": _megabytes(row.fact("gathered_bytes") or None, row.predicted("gathered_bytes")),
            "MB scattered": _megabytes(row.fact("scattered_bytes") or None, row.predicted("scattered_bytes")),
        }
