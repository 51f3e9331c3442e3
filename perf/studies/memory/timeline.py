"""Bytes in use over a recorded pass: the peak, its phase, its allocations, and a figure."""

from collections import Counter
from pathlib import Path
from typing import Any

from perf.harness.memory import peak_of
from perf.studies import figures
from perf.studies.memory.recording import Recording
from perf.studies.rows import Row

POINTS = 1000
"""Approximate number of values kept for a phase; the extremes of every stretch are among them."""

NARROWEST = 0.09
"""Minimum share of the figure's width for a phase, so that the fused optimizer, with few allocations, is visible."""

COLOURS = {"zero_grad": "#b8b8b8", "forward": "#4c78a8", "backward": "#e4803c", "optimizer": "#54a24b"}


def summary(recording: Recording, gradients: dict[int, str]) -> dict[str, Any]:
    """Return the summary of a recording that goes into a row.

    `peak_bytes` and `before_bytes` are torch's count of allocated bytes; `requested_..` and `phases` (name, events,
    start, peak and end bytes, and a thinned course) are requested bytes, which are what the trace has.
    `largest`: bytes, count, phase and where of the blocks that the pass made and that were alive at its peak.
    """
    phases, alive = _replayed(recording)
    peak = max(phases, key=lambda phase: phase["peak_bytes"])
    before_bytes, peak_bytes = recording.allocated_bytes or (recording.baseline_bytes, peak["peak_bytes"])
    return {
        "before_bytes": before_bytes,
        "peak_bytes": peak_bytes,
        "requested_before_bytes": recording.baseline_bytes,
        "requested_peak_bytes": peak["peak_bytes"],
        "peak_phase": peak["name"],
        "phases": phases,
        "largest": _grouped(alive, gradients),
    }


def _replayed(recording: Recording) -> tuple[list[dict[str, Any]], list[tuple[dict[str, Any], str, bool]]]:
    """Return the phases, and the blocks alive at the peak: each with its phase, and whether it stays at its address."""
    now = most = recording.baseline_bytes
    phases = []
    alive: dict[int, tuple[dict[str, Any], str]] = {}
    last: dict[int, dict[str, Any]] = {}
    at_peak: list[tuple[dict[str, Any], str]] = []
    for name, entries in recording.phases:
        course = [now]
        for entry in entries:
            if change := _change(entry):
                now += change
                course.append(now)
                if change < 0:
                    alive.pop(entry["addr"], None)
                    continue
                alive[entry["addr"]], last[entry["addr"]] = (entry, name), entry
                if now > most:
                    most, at_peak = now, list(alive.values())
        ends = {"start_bytes": course[0], "peak_bytes": max(course), "end_bytes": now}
        phases.append({"name": name, "events": len(course) - 1, **ends, "bytes": thinned(course)})
    return phases, [(entry, phase, last[entry["addr"]] is entry) for entry, phase in at_peak]


def _change(entry: dict[str, Any]) -> int:
    """Return the change of the bytes in use; a block counts until the device no longer uses it."""
    return {"alloc": 1, "free_completed": -1}.get(entry["action"], 0) * entry["size"]


def _grouped(alive: list[tuple[dict[str, Any], str, bool]], gradients: dict[int, str]) -> list[Row]:
    """Group equal blocks from one place, the largest first, without the smallest."""
    groups: Counter[tuple[int, str, str]] = Counter()
    for block, phase, stays in alive:
        _, [[size, where]] = peak_of([block], 0)  # names the place as the harness does
        if stays and block["addr"] in gradients:
            where = gradients[block["addr"]]
        groups[size, phase, where or "autograd, whose thread has no Python frames"] += 1
    largest = sorted(groups.items(), key=lambda group: (-group[0][0], -group[1], group[0]))[:12]
    return [{"bytes": size, "count": count, "phase": phase, "where": where} for (size, phase, where), count in largest]


def thinned(course: list[int]) -> list[int]:
    """Return the minimum and maximum of each stretch, in order, and the first and last value."""
    stride = -(-len(course) * 2 // POINTS)
    if stride <= 2:
        return course
    kept = [course[0]]
    for begin in range(0, len(course), stride):
        stretch = course[begin : begin + stride]
        low, high = min(stretch), max(stretch)
        kept += [low, high] if stretch.index(low) < stretch.index(high) else [high, low]
    return [*kept, course[-1]]


def draw(passes: dict[str, dict[str, Any]], path: Path, title: str) -> None:
    """Draw a panel for each pass (caption -> summary), in one unit."""
    most = max(each["requested_peak_bytes"] for each in passes.values())
    scale, unit = (2**30, "GiB") if most >= 2**29 else (2**20, "MiB")
    widths = [1 if len(each["phases"]) == 1 else 2 for each in passes.values()]
    size = (1.5 + 3 * sum(widths), 3.9)
    figure, panels = figures.subplots(1, len(passes), figsize=size, width_ratios=widths, squeeze=False)
    for axes, (caption, recorded) in zip(panels[0], passes.items(), strict=True):
        low, high = _extent(recorded)
        _panel(axes, recorded, scale, unit)
        axes.set_title(caption + ("\n(this axis does not begin at 0)" if low else ""), fontsize=9)
        axes.set_ylim(low / scale, (high + 0.3 * (high - low)) / scale)
        axes.set_xticks([])
        axes.set_xlim(0, 1)
    panels[0][0].set_ylabel(f"active memory, {unit}")
    figure.supxlabel("allocations and releases in their order; a phase with few of them is widened", fontsize=8)
    figures.save(figure, path, title)


def _extent(recorded: dict[str, Any]) -> tuple[float, float]:
    """Return the limits of the vertical axis: from 0, unless the pass changes too little to be visible."""
    least = min(min(phase["bytes"]) for phase in recorded["phases"])
    most = recorded["requested_peak_bytes"]
    moved = most - least
    return (least - moved / 2 if 0 < moved < 0.2 * most else 0), most


def _panel(axes: Any, recorded: dict[str, Any], scale: int, unit: str) -> None:
    """Plot active bytes over the pass, its phases shaded and named, its start a line, its peak a dot."""
    from matplotlib.transforms import blended_transform_factory

    top = blended_transform_factory(axes.transData, axes.transAxes)
    events = sum(phase["events"] for phase in recorded["phases"]) or 1
    shares = [max(phase["events"] / events, NARROWEST) for phase in recorded["phases"]]
    left = 0.0
    for phase, share in zip(recorded["phases"], shares, strict=True):
        width = share / sum(shares)
        values = [value / scale for value in phase["bytes"]]
        values = values if len(values) > 1 else values * 2
        places = [left + width * index / (len(values) - 1) for index in range(len(values))]
        colour = COLOURS.get(phase["name"], "#888888")
        axes.axvspan(left, left + width, color=colour, alpha=0.13, linewidth=0)
        axes.fill_between(places, values, color=colour, alpha=0.55, linewidth=0, step="post")
        axes.step(places, values, color=colour, linewidth=0.8, where="post")
        upright = {"rotation": 90} if width < 0.2 else {}
        axes.text(left + width / 2, 0.97, phase["name"], fontsize=8, ha="center", va="top", transform=top, **upright)
        if phase["name"] == recorded["peak_phase"]:
            index = max(range(len(values)), key=values.__getitem__)
            peak = (places[index], values[index])
        left += width
    before = recorded["requested_before_bytes"] / scale
    axes.axhline(before, color="black", linewidth=0.8, linestyle="--")
    axes.annotate(
        f"before: {before:.2f} {unit}", (0.99, before), fontsize=8, ha="right", va="top", xytext=(0, -3),
        textcoords="offset points", bbox={"color": "white", "alpha": 0.7, "pad": 1},
    )  # fmt: skip
    axes.plot(*peak, marker="o", color="black", markersize=4)
    side = "left" if peak[0] < 0.25 else "right" if peak[0] > 0.75 else "center"
    axes.annotate(
        f"peak: {peak[1]:.2f} {unit}, {recorded['peak_phase']}", peak, fontsize=8, ha=side, va="bottom", xytext=(0, 5),
        textcoords="offset points",
    )  # fmt: skip
