"""Results of the attention study: speed-ups over arms measured side by side, as tables, sentences and figures."""

import itertools
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from perf.harness.status import Status, describe
from perf.labels import label as name_of
from perf.studies import speedup_figure
from perf.studies.attention import sample_figure
from perf.studies.attention.cells import AXES, MASKS
from perf.studies.attention.groups import EVERY_D
from perf.studies.rows import Row, grouped
from perf.studies.speedups import (
    FEWEST,
    Effort,
    best,
    geometric_mean,
    half_percent,
    milliseconds,
    processes_for_speedup,
    speedup_of,
    with_interval,
)
from perf.tables import text_table
from perf.units import digits

Pair = dict[str, Any]
"""Two arms of a cell: its axes, ours, against, status, ours_s, against_s and flops."""

NOT_MEASURED: Status = "not_measured"
FLASH_PEERS = ("sdpa_flash", "flex")
"""Arms for which the worst of all cells is named."""

OVER_CUDNN = (("grid", "forward_backward"), ("gqa", "forward"), ("gqa", "backward"))
"""Groups and modes for which the mean over cuDNN is named."""

ROWS_OF_D = {
    "every d": tuple(EVERY_D),
    "d 16, 32, 64, 128": (16, 32, 64, 128),
    "d 48, 80, 96, 112": (48, 80, 96, 112),
    "d in odd multiples of 8": tuple(d for d in EVERY_D if d % 16),
}
"""Head dimensions over which the random sample has a mean each."""


def pairs(rows: Iterable[Row]) -> Iterator[Pair]:
    """Yield each arm of ours with each other arm of its cell; its status is ok if both are."""
    for axes, arms in itertools.groupby(rows, key=axes_of):
        mine = list(arms)
        ours, others = ([row for row in mine if row["role"] == role] for role in ("ours", "against"))
        for our, other in itertools.product(ours, others):
            yield axes | {
                "ours": our["impl"],
                "against": other["impl"],
                "status": next((row["status"] for row in (our, other) if row["status"] != "ok"), "ok"),
                "ours_s": our["samples_s"],
                "against_s": other["samples_s"],
                "flops": our.get("flops"),
            }


def axes_of(row: Row) -> dict[str, Any]:
    """Return the axes of a row's cell; rows of older files have no kv_heads, which was num_heads."""
    return {axis: row.get(axis, row["num_heads"]) if axis == "kv_heads" else row[axis] for axis in AXES}


def timed(rows: Iterable[Row]) -> list[Pair]:
    """Return the pairs that have a speed-up."""
    return [pair for pair in pairs(rows) if pair["status"] == "ok"]


def processes_wanted(rows: Iterable[Row], effort: Effort) -> int:
    """Return how many processes make every speed-up known well enough; `rows` hold the samples of the pilot."""
    return max((processes_for_speedup(pair, effort) for pair in timed(rows)), default=FEWEST)


def shown(rows: list[Row]) -> Iterator[str]:
    """Yield the tables of each group, its cells and the other arms, then the failures."""
    for (group, dtype, clock, cache), mine in grouped(rows, "group", "dtype", "clock", "cache"):
        for (ours,), arms in grouped([row for row in mine if row["role"] == "ours"], "impl"):
            compared = [pair for pair in timed(mine) if pair["ours"] == ours]
            yield f"\n{group}: {ours}, {dtype}, {clock}, {cache} caches; speed-up over the best of the others"
            yield text_table(_cell(row, compared) for row in arms)
            if compared:
                yield f"\n{text_table(_others(compared))}"
    failed = [row for row in rows if row["status"] != "ok"]
    failed = sorted((row | {"told": describe(row)} for row in failed), key=lambda row: (row["impl"], row["told"]))
    for (impl, why), mine in grouped(failed, "impl", "told"):
        more = f" and {len(mine) - 1} more" if len(mine) > 1 else ""
        yield f"{impl} has no time in {mine[0]['group']} {where(mine[0])}{more}: {why}"


def where(row: Row) -> str:
    """Format the cell within its group: batch x heads x seq_len x d, dtype, mask, mode."""
    return f"{within_mode(row)}, {row['mode']}"


def within_mode(row: Row) -> str:
    """Format the problem: batch x heads x seq_len x d, dtype, mask."""
    return f"{shape(row)} {row['dtype']}, {MASKS[row['is_causal']]}"


def shape(row: Row) -> str:
    """Format the shape of q: batch x heads x seq_len x d; heads are 64/8 if 64 of q share 8 of k."""
    heads, kv_heads = row["num_heads"], row["kv_heads"]
    each = f"{heads}/{kv_heads}" if heads != kv_heads else heads
    return f"{row['batch']}x{each}x{row['seq_len']}x{row['d']}"


def tflops(row: Row, ms: float) -> float:
    """Return the rate of attention's matrix products, without the scores above the diagonal."""
    return row["flops"] / ms * 1e-9


def _cell(row: Row, pairs: list[Pair]) -> dict[str, str]:
    """Return the cells of an arm of ours, beside the fastest other arm."""
    cells = {"B x H x n x d": shape(row), "mask": MASKS[row["is_causal"]], "mode": row["mode"]}
    if row["status"] != "ok":
        return cells | {"ms": "-"}
    ms = milliseconds({"ours_s": row["samples_s"]}, "ours")
    cells |= {"ms": digits(ms, 4), "TFLOP/s": digits(tflops(row, ms))}
    if mine := [pair for pair in pairs if axes_of(pair) == axes_of(row)]:
        speedup, half, name = best(mine, speedup_of)
        cells |= {"speed-up": with_interval(speedup, half), "best of the others": name}
    return cells


def _others(pairs: list[Pair]) -> Iterator[Row]:
    """Yield the cells of each other arm over all cells of a mode."""
    for (mode, against), mine in grouped(sorted(pairs, key=lambda pair: pair["mode"]), "mode", "against"):
        least, least_half, worst = worst_of(mine)
        yield {
            "mode": mode,
            "against": against,
            "cells": len(mine),
            "geom. mean": with_interval(*geometric_mean(mine)),
            "worst": with_interval(least, least_half),
            "in": f"{shape(worst)} {MASKS[worst['is_causal']]}",
        }


def answers(rows: list[Row], half_width: float) -> Iterator[str]:
    """Yield for each of ours the worst cells, means over cuDNN and the sample, the leaderboard, and wide intervals."""
    for (ours,), every in grouped(timed(rows), "ours"):
        for against in FLASH_PEERS:
            if mine := [pair for pair in every if pair["against"] == against]:
                speedup, half, worst = worst_of(mine)
                cell = f"{worst['group']} {where(worst)}"
                which = f"{ours} over {against}, worst of {len(mine)} cells, {cell}"
                yield f"{which}: {with_interval(speedup, half)} as fast."
        cudnn = [pair for pair in every if pair["against"] == "sdpa_cudnn"]
        for group, mode in OVER_CUDNN:
            if mine := [pair for pair in cudnn if (pair["group"], pair["mode"]) == (group, mode)]:
                which = f"{group}, {mode}, geometric mean of {len(mine)} cells"
                yield f"{ours} over sdpa_cudnn, {which}: {with_interval(*geometric_mean(mine))} as fast."
        yield from _sampled(ours, nearest(pair for pair in every if pair["group"] == "random"))
        if mine := [pair for pair in every if pair["group"] == "leaderboard"]:
            speedup, half, name = best(mine, speedup_of)
            ms = milliseconds(mine[0], "ours")
            rate = f"{digits(ms, 4)} ms, {digits(tflops(mine[0], ms))} TFLOP/s"
            over = f"{with_interval(speedup, half)} as fast as the best other, {name}"
            yield f"{ours} on the leaderboard: {rate}; {over}."
        if wide := [pair for pair in every if speedup_of(pair)[1] > half_width]:
            most = max(wide, key=lambda pair: speedup_of(pair)[1])
            which = f"{most['against']} in {most['group']} {where(most)}, ± {half_percent(speedup_of(most)[1])}"
            unknown = f"{len(wide)} of {len(every)} speed-ups are not known to {half_percent(half_width)}"
            yield f"{ours}: {unknown}, least of all {which}; raise --processes."


def nearest(pairs: Iterable[Pair]) -> list[Pair]:
    """Return for each cell and each of ours the pair with the fastest of the others."""
    cells = grouped(pairs, *AXES, "ours")
    return [min(mine, key=lambda pair: speedup_of(pair)[0]) for _, mine in cells]


def _sampled(ours: str, pairs: list[Pair]) -> Iterator[str]:
    """Yield the mean and the worst cell of the random sample for each mode and row of head dimensions."""
    for mode, name, mine in by_d(pairs):
        speedup, half, worst = worst_of(mine)
        yield (
            f"{ours} over the best of the others, random, {mode}, {name}, geometric mean of {len(mine)} cells: "
            f"{with_interval(*geometric_mean(mine))} as fast; worst in {within_mode(worst)}: "
            f"{with_interval(speedup, half)}, {worst['against']}."
        )


def by_d(pairs: Iterable[Pair]) -> Iterator[tuple[str, str, list[Pair]]]:
    """Yield the pairs of each mode and row of head dimensions, with both their names."""
    for (mode,), cells in grouped(pairs, "mode"):
        for name, dims in ROWS_OF_D.items():
            if mine := [pair for pair in cells if pair["d"] in dims]:
                yield mode, name, mine


def draw(rows: list[Row], folder: Path, title: str) -> None:
    """Draw attention-GROUP-MODE.png: the speed-up of each cell over each other arm, of the sample over the best."""
    every = timed(rows)
    for (group, mode), mine in grouped(sorted(every, key=lambda pair: (pair["group"], pair["mode"])), "group", "mode"):
        path, title_of_group = folder / f"attention-{group}-{mode}.png", f"{group}, {mode}\n{title}"
        if group == "random":
            sample_figure.draw(nearest(mine), path, title_of_group)
            continue
        several = len({pair["ours"] for pair in mine}) > 1
        label = partial(_arm, several=several)
        speedup_figure.draw(mine, label, path, title_of_group)


def _arm(pair: Pair, *, several: bool) -> str:
    """Label a line of a figure: the problem, and the arm if there are several of ours."""
    return within_mode(pair) + (f": {name_of(pair['ours'])}" if several else "")


def worst_of(pairs: list[Pair]) -> tuple[float, float, Pair]:
    """Return the smallest speed-up, its half-width and its pair."""
    pair = min(pairs, key=lambda pair: speedup_of(pair)[0])
    return *speedup_of(pair), pair
