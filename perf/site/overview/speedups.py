"""The overview's picture: speed-up of our attention over the fastest peer, by sequence length."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from perf.site.attention.collected import Measured
from perf.site.attention.rows import AttentionRow, build_rows
from perf.site.axes import LinearAxis
from perf.site.estimate import Ratio
from perf.site.wording import FASTEST, label

BENCHMARK = "attention.MultiHeadAttention"
CUDNN = "sdpa_cudnn"
HEADS = {"is_causal": True, "dtype": "bfloat16"}


@dataclass(frozen=True)
class Speedup:
    """Ratio of a peer's time to ours in a row."""

    row: AttentionRow
    ratio: Ratio

    def __getitem__(self, axis: str) -> Any:
        return dict(self.row.config)[axis]


def speedups(rows: Iterable[AttentionRow], peer: str) -> list[Speedup]:
    """Return the speed-up of each causal bfloat16 case that was measured for ours and a peer."""
    found = []
    for row in rows:
        one = row.speedups.get(peer)
        if HEADS.items() <= dict(row.config).items() and one and one.ratio and math.isfinite(one.half):
            found.append(Speedup(row, Ratio(one.ratio, one.half)))
    return found


def picture(measured: Sequence[Measured]) -> dict[str, Any] | None:
    """Lines by mode and head dimension, for the template; None where nothing of it was measured."""
    grid = next((one for one in measured if one.benchmark == BENCHMARK), None)
    rows = build_rows(grid.results, "triton")[0] if grid else []
    found = speedups(rows, FASTEST)
    if grid is None or not found:
        return None
    up = LinearAxis([1.0, *(one.ratio.high for one in found)])
    lines: dict[tuple[str, int], list[Speedup]] = {}
    for one in found:
        lines.setdefault((one["mode"], one["d"]), []).append(one)
    lengths = sorted({one["seq_len"] for one in found})
    modes, sizes = (sorted({line[at] for line in lines}) for at in (0, 1))
    return {
        "lines": [
            {
                "name": f"{mode}, d {d}",
                "style": f"line-{modes.index(mode) % 2}{' dashed' if sizes.index(d) % 2 else ''}",
                "points": [
                    {
                        "x": _place(lengths, one["seq_len"]),
                        "y": 100 - up.at(one.ratio.value),
                        "low": 100 - up.at(one.ratio.low),
                        "high": 100 - up.at(one.ratio.high),
                        "href": grid.link("track_time", {**dict(one.row.config), "impl": "triton"}),
                        "title": f"{mode}, d {d}, {one['seq_len']} keys: {one.ratio.words} as fast as {_peer(one)}",
                    }
                    for one in sorted(some, key=lambda each: each["seq_len"])
                ],
            }
            for (mode, d), some in sorted(lines.items())
        ],
        "across": [(f"{length}", _place(lengths, length)) for length in lengths],
        "up": [(f"{tick:g}\u00d7", 100 - up.at(tick)) for tick in up.ticks],
        "even": 100 - up.at(1.0),
        "commit": grid.commit,
        "cudnn": _against_cudnn(rows, lengths[-1]),
    }


def _place(lengths: Sequence[int], length: int) -> float:
    return round(100 * lengths.index(length) / max(1, len(lengths) - 1), 2)


def _peer(one: Speedup) -> str:
    peer = one.row.speedups[FASTEST].peer
    return label(peer.params["impl"]) if peer else ""


def _against_cudnn(rows: Sequence[AttentionRow], longest: int) -> dict[str, Any] | None:
    """At the longest sequence: the mode, the head dimension and the speed-up in words."""
    found = [one for one in speedups(rows, CUDNN) if one["seq_len"] == longest]
    cells = [(f"{one['mode']}, d {one['d']}", one.ratio.words) for one in found]
    return {"longest": longest, "cells": cells} if cells else None
