"""Roofline plot: rate over intensity, both logarithmic, under the measured roofs."""

from collections.abc import Callable, Sequence
from typing import Any

from perf import units
from perf.site.attention.catalogue import SECTIONS
from perf.site.axes import LogAxis
from perf.site.conditions import dtype_label
from perf.site.roofline.rows import RooflineRow

FAMILIES = {
    "peer": "peers, and other implementations",
    "control": "controls",
    "other": "other work",
    "transformer": "training steps",
    "attention": "attention",
}
"""Families of marks in drawing order: ours last, on top."""


def picture(rows: Sequence[RooflineRow], describe: Callable[[RooflineRow], tuple[str, str]]) -> dict[str, Any] | None:
    """Marks, roofs and ticks in a square of 100, y downwards; None where no row has an intensity.

    `describe` gives a mark's title and its link. Peers are a crowd without either, in one path: they are as many again.
    """
    placed = [(row, row.intensity, row.flops_per_s) for row in rows]
    marks = [(row, x, y) for row, x, y in placed if x and y]
    if not marks:
        return None
    bandwidth = max(row.result.session.ceilings["copy_bytes_per_s"] for row, *_ in marks)
    peaks: dict[str, float] = {}
    for row, *_ in marks:
        dtype, ceilings = row.result.matmul_dtype, row.result.session.ceilings
        label = dtype_label(dtype, row.result.session)
        peaks[label] = max(peaks.get(label, 0.0), ceilings["matmul_flops_per_s"][dtype])
    ridges = [peak / bandwidth for peak in peaks.values()]
    across = LogAxis([x for _, x, _ in marks] + ridges, digits=(1,))
    up = LogAxis([y for *_, y in marks] + list(peaks.values()), digits=(1,))
    scale, unit = units.rate_unit(list(peaks.values()))
    order = list(FAMILIES)
    places = [(across.at(x), round(100 - up.at(y), 2), row) for row, x, y in marks]
    return {
        "count": len(marks),
        "across": [(_power(tick), across.at(tick)) for tick in across.ticks],
        "up": [(units.digits(tick / scale, 1), 100 - up.at(tick)) for tick in up.ticks],
        "unit": unit,
        "roofs": [
            {
                "label": f"{label} {units.rate(peak)}",
                "from": across.at(peak / bandwidth),
                "at": round(100 - up.at(peak), 2),
            }
            for label, peak in sorted(peaks.items(), key=lambda item: item[1])
        ],
        "slope": _slope(across, up, bandwidth, max(ridges)),
        "bandwidth": units.bandwidth(bandwidth),
        "crowd": [("peer", "".join(f"M{x} {y}h0" for x, y, row in places if row.whose == "peer"))],
        "marks": [
            (x, y, family(row), *describe(row))
            for x, y, row in sorted(places, key=lambda place: order.index(family(place[2])))
            if row.whose != "peer"
        ],
        "families": [(name, FAMILIES[name]) for name in reversed(order) if name in {family(row) for row, *_ in marks}],
    }


def _slope(across: LogAxis, up: LogAxis, bandwidth: float, ridge: float) -> dict[str, float]:
    """Return the visible part of the memory roof, up to the highest roof."""
    start = max(across.low, up.low / bandwidth)
    return {
        "x1": across.at(start),
        "y1": round(100 - up.at(start * bandwidth), 2),
        "x2": across.at(ridge),
        "y2": round(100 - up.at(ridge * bandwidth), 2),
    }


def _power(tick: float) -> str:
    """ "0.1", "100", "10k"."""
    return f"{units.digits(tick / 1000, 1)}k" if tick >= 10_000 else units.digits(tick, 1)


def family(row: RooflineRow) -> str:
    """Return the key in `FAMILIES`."""
    if row.whose != "ours":
        return row.whose
    if row.result.benchmark in SECTIONS:
        return "attention"
    return "transformer" if "size" in row.result.params else "other"  # the axis of a model's size
