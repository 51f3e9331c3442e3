"""Headlines of the Distributed page, and its formats of settings, shares and times."""

import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

from perf import units
from perf.site.distributed.rows import BASELINE, Collective, FullyShard, Group, Shard, Stepped, Where, torchs_of
from perf.site.estimate import Estimate, ratio, shortest
from perf.workloads.fully_sharded import PREFETCH

Sharded = TypeVar("Sharded", Shard, FullyShard)


def headlines(
    groups: Sequence[Group],
    collectives: Sequence[Collective],
    shards: Sequence[Sequence[Shard]],
    fully_sharded: Sequence[Sequence[FullyShard]],
) -> Iterator[tuple[str, str, str]]:
    """Yield the headline of the largest setting of each kind: a figure, and the words before and after it.

    Settings whose steps have an interval come before all others.
    """
    if groups:
        group = max(reversed(groups), key=lambda one: _rank(one.where, one.strategies))
        best, *even = group.shortest
        if best.step:
            names = ", ".join(one.name for one in even)
            others = f"; not distinguishable: {names}" if even else ""
            hidden = (
                f", {interval(found, True)} of it exposed communication"
                if (found := best.exposed) and best.share
                else ""
            )
            base = group.baseline
            gain = (
                f", {ratio(best.step, base).words} as fast as torch's DistributedDataParallel"
                if base and best.name != BASELINE
                else ""
            )
            what = "has the shortest median step," if even else "has the shortest step,"
            yield f"{place(group.where)}: {best.name} {what}", interval(best.step), f"{gain}{hidden}{others}."
    if collectives:
        one = max(collectives, key=lambda each: each.bus_bandwidth)
        what = f"An all-reduce of {one.megabytes} MB over {one.world_size} ranks ({one.backend}):"
        rate = f"{units.bandwidth(one.bus_bandwidth)} {one.time.spread}"
        yield what, rate, " of bus bandwidth per GPU and direction."
    if shards:
        group_of_shards = _largest(shards)
        by_name = {shard.name: shard for shard in group_of_shards}
        whole, ours = by_name.get("none"), by_name.get("sharded")
        all_bytes, our_bytes = (one.fact("optimizer_bytes") if one else None for one in (whole, ours))
        if whole and ours and whole.step and ours.step and all_bytes and our_bytes:
            what = f"{place(ours.where)}: a sharded optimizer holds"
            step, speedup = interval(ours.step), ratio(ours.step, whole.step).words
            more = f" of the state on each rank; its step takes {step}, {speedup} as fast as without sharding."
            yield what, percent(our_bytes / all_bytes), more
    if fully_sharded:
        yield from _fully_sharded_headline(_largest(fully_sharded))


def _fully_sharded_headline(rows: Sequence[FullyShard]) -> Iterator[tuple[str, str, str]]:
    steps = {row.name: row.step for row in rows if row.step}
    ours = shortest({name: step for name, step in steps.items() if name in PREFETCH})
    torchs = torchs_of(rows)
    if ours and torchs and torchs.step:
        peer = f"FSDP2's, which reduces gradients in {torchs.reduce_dtype}"
        sent = "" if torchs.reduce_dtype == torchs.compute_dtype else f" (ours sends them in {torchs.compute_dtype})"
        speedup = ratio(steps[ours[0]], torchs.step).words
        what = f"{place(rows[0].where)}: a fully sharded step ({' or '.join(ours)}) takes"
        yield what, interval(steps[ours[0]]), f", {speedup} as fast as {peer}{sent}."


def interval(found: Estimate, is_exposed: bool = False) -> str:
    """ "240 ms ± 1.3 %"."""
    return f"{seconds(found.median)} {spread(found, is_exposed)}"


def spread(found: Estimate, is_exposed: bool) -> str:
    """ "± 1.3 %"; of exposed communication, which may be 0, "± 248 µs"."""
    if is_exposed and math.isfinite(found.high):
        return f"±\u00a0{units.seconds(found.high - found.median)}"
    return found.spread


def _largest(groups: Sequence[Sequence[Sharded]]) -> Sequence[Sharded]:
    return max(reversed(groups), key=lambda rows: _rank(rows[0].where, rows))


def _rank(where: Where, rows: Sequence[Stepped]) -> tuple[bool, int, int]:
    """Return whether every step has an interval, the number of ranks and the context length.

    The largest model of a setting is the last of its grid.
    """
    return all(math.isfinite(row.step.high) for row in rows if row.step), where.world_size, where.context_length


def setting(axis: str, where: Where) -> str:
    """ "context 1024"."""
    value = getattr(where, axis)
    named = {"context_length": f"context {value}", "batch": f"batch {value}", "world_size": f"{value} ranks"}
    return named.get(axis, str(value))


def place(where: Where) -> str:
    """ "xl, context 1024, bf16, 2 ranks"."""
    return ", ".join(setting(axis, where) for axis in ("size", "context_length", "precision", "world_size"))


def percent(fraction: float) -> str:
    """Format a share that noise can make negative or larger than 1."""
    if fraction > 1:
        return "over 100\u00a0%"
    return units.percent(fraction) if fraction >= 0 else f"\u2212{units.percent(-fraction)}"


def seconds(value: float) -> str:
    """Format a time that may be negative."""
    return f"\u2212{units.seconds(-value)}" if value < 0 else units.seconds(value)
