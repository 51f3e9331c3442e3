"""Rows of the attention page: our cases and their peers, from the records of one machine and commit."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from perf.harness.records import CaseResult
from perf.labels import FASTEST, reading_order
from perf.site.ceiling import attained, rate
from perf.site.estimate import Estimate, Ratio, estimate, geometric_mean, ratio
from perf.site.wording import Quantity

Config = tuple[tuple[str, Any], ...]
"""A case without its implementation: (axis, value) pairs in the order of the axes."""


@dataclass(frozen=True)
class Speedup:
    """Ratio of a peer's time (or memory) to ours for the same case, or the reason why there is none."""

    peer: CaseResult | None
    ratio: Ratio | None = None


@dataclass(frozen=True)
class AttentionRow:
    """One case of ours beside its peers."""

    config: Config
    ours: CaseResult | None
    figure: Estimate | None
    """Our time, or our memory."""

    flops_per_s: float | None
    ceiling: float | None
    """Fraction of what the device can do at most for this much work: the roofline, from rates measured in the run."""

    speedups: dict[str, Speedup]


@dataclass(frozen=True)
class Overview:
    """One peer over all cases."""

    cases: int
    mean: Ratio
    """Geometric mean of the ratios."""

    low: float
    high: float
    better: int
    worse: int


def figure(result: CaseResult | None, quantity: Quantity) -> Estimate | None:
    """Return a case's time or memory; None if it failed."""
    if quantity == "time":
        return estimate(result)
    if result is None or result.status != "ok" or result.peak_bytes is None:
        return None
    return Estimate(*[float(result.peak_bytes)] * 3)


def build_rows(
    results: Iterable[CaseResult], ours: str, quantity: Quantity = "time"
) -> tuple[list[AttentionRow], list[str]]:
    """Rows by the other axes, then d, then seq_len; and the peers, the fastest of each case first among them."""
    by_config: dict[Config, dict[str, CaseResult]] = {}
    for result in results:
        config = tuple((axis, value) for axis, value in result.params.items() if axis != "impl")
        by_config.setdefault(config, {})[result.params["impl"]] = result
    impls = sorted({impl for found in by_config.values() for impl in found if impl != ours}, key=reading_order)
    rows = [_row(config, by_config[config], ours, impls, quantity) for config in _in_reading_order(by_config)]
    return rows, [FASTEST, *impls] if len(impls) > 1 else impls


def overview(rows: Sequence[AttentionRow], peer: str) -> Overview | None:
    """One peer over all rows in which both have a time."""
    ratios = [one for row in rows if (one := row.speedups[peer].ratio)]
    if not ratios:
        return None
    return Overview(
        cases=len(ratios),
        mean=geometric_mean(ratios),
        low=min(one.value for one in ratios),
        high=max(one.value for one in ratios),
        better=sum(one.verdict == "better" for one in ratios),
        worse=sum(one.verdict == "worse" for one in ratios),
    )


def _row(
    config: Config, found: dict[str, CaseResult], ours: str, impls: Sequence[str], quantity: Quantity
) -> AttentionRow:
    mine = found.get(ours)
    number = figure(mine, quantity)
    speedups = {impl: _speedup(number, found.get(impl), quantity) for impl in impls}
    if len(impls) > 1:
        speedups[FASTEST] = min(speedups.values(), key=lambda one: one.ratio.value if one.ratio else math.inf)
    seconds = number.median if number and quantity == "time" else None
    return AttentionRow(
        config=config,
        ours=mine,
        figure=number,
        flops_per_s=rate(mine, seconds) if mine and seconds else None,
        ceiling=attained(mine, seconds) if mine and seconds else None,
        speedups=speedups,
    )


def _speedup(mine: Estimate | None, peer: CaseResult | None, quantity: Quantity) -> Speedup:
    other = figure(peer, quantity)
    return Speedup(peer, ratio(mine, other) if mine and other else None)


def _in_reading_order(configs: Iterable[Config]) -> list[Config]:
    """Sort by group (mode, dtype) in measured order, then by head size, then by length."""
    seen: dict[str, dict[Any, int]] = {}
    configs = list(configs)
    for config in configs:
        for axis, value in config:
            seen.setdefault(axis, {}).setdefault(value, len(seen[axis]))
    last = {"d": 1, "seq_len": 2}

    def key(config: Config) -> list[float]:
        axes = sorted(config, key=lambda item: last.get(item[0], 0))
        return [value if axis in last else seen[axis][value] for axis, value in axes]

    return sorted(configs, key=key)
