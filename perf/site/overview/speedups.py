"""The overview's picture: speed-up of our attention over the fastest peer, by sequence length."""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from perf.labels import FASTEST, label
from perf.site.attention.collected import Measured
from perf.site.attention.rows import AttentionRow, build_rows
from perf.site.axes import LogAxis
from perf.site.estimate import Ratio

BENCHMARK = "attention.MultiHeadAttention"
CUDNN = "sdpa_cudnn"
FINE, COARSE = (1, 1.2, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 5)
"""Digits of the ticks of a short axis and of a long one."""

HEADS = {"is_causal": True, "dtype": "bfloat16"}


def speedups(rows: Iterable[AttentionRow], peer: str) -> list[tuple[dict[str, Any], Ratio, str]]:
    """Return parameters, speed-up and peer's name of each causal bfloat16 case that was measured for ours and a peer.

    They are sorted by mode, head dimension and length.
    """
    found = []
    for row in rows:
        config, one = dict(row.config), row.speedups.get(peer)
        if HEADS.items() <= config.items() and one and one.peer and one.ratio and math.isfinite(one.ratio.half):
            found.append((config, one.ratio, label(one.peer.params["impl"])))
    return sorted(found, key=lambda one: (*_line(one[0]), one[0]["seq_len"]))


def _line(config: dict[str, Any]) -> tuple[str, int]:
    return config["mode"], config["d"]


def picture(measured: Sequence[Measured]) -> dict[str, Any] | None:
    """Lines by mode and head dimension, for the template; None where nothing of it was measured."""
    grid = next((one for one in measured if one.benchmark == BENCHMARK), None)
    rows = build_rows(grid.results, "triton")[0] if grid else []
    found = speedups(rows, FASTEST)
    if grid is None or not found:
        return None
    up = _axis([1.0, *(end for _, ratio, _ in found for end in (ratio.low, ratio.high))])
    lengths = sorted({config["seq_len"] for config, *_ in found})
    modes, sizes = (sorted({_line(config)[at] for config, *_ in found}) for at in (0, 1))
    return {
        "lines": [
            {
                "name": f"{mode}, d {d}",
                "style": f"line-{modes.index(mode) % 2}{' dashed' if sizes.index(d) % 2 else ''}",
                "points": [
                    {
                        "x": _place(lengths, config["seq_len"]),
                        "y": 100 - up.at(ratio.value),
                        "low": 100 - up.at(ratio.low),
                        "high": 100 - up.at(ratio.high),
                        "href": grid.link("track_time", config | {"impl": "triton"}),
                        "title": f"{mode}, d {d}, {config['seq_len']} keys: {ratio.words} as fast as {peer}",
                    }
                    for config, ratio, peer in line
                ],
            }
            for (mode, d), line in itertools.groupby(found, lambda one: _line(one[0]))
        ],
        "across": [(f"{length}", _place(lengths, length)) for length in lengths],
        "up": [(f"{tick:g}\u00d7", 100 - up.at(tick)) for tick in up.ticks],
        "even": 100 - up.at(1.0),
        "commit": grid.commit,
        "longest": lengths[-1],
        "cudnn": [
            (f"{config['mode']}, d {config['d']}", ratio.words)
            for config, ratio, _ in speedups(rows, CUDNN)
            if config["seq_len"] == lengths[-1]
        ],
    }


def _axis(ratios: Sequence[float]) -> LogAxis:
    """Return a logarithmic axis, on which 2 times as fast and half as fast are as far from 1."""
    return LogAxis(ratios, FINE if max(ratios) < 3 * min(ratios) else COARSE)


def _place(lengths: Sequence[int], length: int) -> float:
    return round(100 * lengths.index(length) / max(1, len(lengths) - 1), 2)
