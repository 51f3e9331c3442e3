"""Rows become text and colours: heat maps, tables of every implementation, tables of every case, and failures."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from perf import units
from perf.harness.records import CaseResult
from perf.harness.status import Status
from perf.site.attention.catalogue import Section
from perf.site.attention.rows import AttentionRow, Speedup, figure
from perf.site.ceiling import attained, rate
from perf.site.table import Cell, Row, duration, number, parameter
from perf.site.wording import FASTEST, label, reading_order, status, value_text, words

Link = Callable[[str, dict[str, Any]], str]
"""Return asv's graph of a method and its parameters; "" if there is none."""

WORDS = {
    "time": {"better": "faster", "worse": "slower", "even": "no clear difference", "needs": "takes", "one": "time"},
    "memory": {"better": "less", "worse": "more", "even": "as much", "needs": "needs", "one": "figure"},
}
_NOTHING = "\u2013"  # an en dash
_FULL_TINT = math.log2(4)  # a factor of four has the full colour


def sentence(config: dict[str, Any], axes: Iterable[str]) -> str:
    """Format the values of these axes."""
    return ", ".join(words(axis, config[axis]) for axis in axes)


def extent(configs: Sequence[dict[str, Any]], axes: Iterable[str]) -> str:
    """Format the values of varying axes: numbers as a range, all others listed."""
    said = []
    for axis in axes:
        values = list(dict.fromkeys(config[axis] for config in configs if axis in config))
        if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            said.append(f"{axis} {min(values)} to {max(values)}")
        else:
            said.append(" and ".join(words(axis, value) for value in values))
    return ", ".join(said)


def maps(rows: Sequence[AttentionRow], peer: str, section: Section, axes: Sequence[str]) -> list[dict[str, Any]]:
    """One heat map of seq_len by d for each combination of the other axes."""
    groups: dict[str, dict[tuple[Any, Any], AttentionRow]] = {}
    for row in rows:
        config = dict(row.config)
        caption = sentence(config, [axis for axis in reversed(axes) if axis not in ("seq_len", "d")])
        groups.setdefault(caption, {})[config.get("seq_len", ""), config.get("d", "")] = row
    return [
        {
            "label": caption,
            "columns": sorted({d for _, d in cells}),
            "rows": [
                (seq_len, [_heat(cells.get((seq_len, d)), peer, section) for d in sorted({d for _, d in cells})])
                for seq_len in sorted({seq_len for seq_len, _ in cells})
            ],
        }
        for caption, cells in groups.items()
    ]


def ladders(
    rows: Sequence[AttentionRow], peers: Sequence[str], section: Section, axes: Sequence[str], link: Link
) -> list[dict[str, Any]]:
    """Return a table of all implementations for each case, in reading order."""
    impls = sorted({section.ours, *peers} - {FASTEST}, key=reading_order)
    found = [_ladder(row, impls, section, axes, link) for row in rows]
    # Beside another ladder there is no room for a rate, and the share of the ceiling says as much.
    columns = ("rate", "ceiling", "memory") if len(found) == 1 else ("ceiling", "memory")
    shown = [column for column in columns if any(rung.get(column) for one in found for rung in one["rungs"])]
    return [one | {"shown": shown} for one in found]


def _ladder(
    row: AttentionRow, impls: Sequence[str], section: Section, axes: Sequence[str], link: Link
) -> dict[str, Any]:
    config = dict(row.config)
    found = {impl: row.ours if impl == section.ours else row.speedups[impl].peer for impl in impls}
    numbers = {impl: figure(result, section.quantity) for impl, result in found.items()}
    longest = max((number.median for number in numbers.values() if number), default=0.0)
    rungs = []
    for impl, result in found.items():
        number, params = numbers[impl], config | {"impl": impl}
        rung = {
            "label": label(impl),
            "ours": impl == section.ours,
            "name": ", ".join([label(impl), *map(words, config, config.values())]),
            "status": status(result.status)[0] if result else "not measured",
            "reason": result.reason if result else "",
            "ratio": None if impl == section.ours else _speedup(row.speedups[impl], section),
            "text": "",
            "spread": "",
        }
        if result and number:
            rung |= {
                "text": _text(section)(number.median),
                "href": link(section.method, params),
                "bar": f"{100 * number.median / longest:.1f}",
                **_details(result, number.median, section),
                "spread": units.percent((number.high - number.median) / number.median),
                "memory_href": link("track_peak_memory", params),
            }
        rungs.append(rung)
    return {"label": sentence(config, axes or config), "rungs": rungs}


def _details(result: CaseResult, median: float, section: Section) -> dict[str, str]:
    """Columns beside a time."""
    if section.quantity == "memory":
        return {"rate": "", "ceiling": "", "memory": ""}
    speed, share = rate(result, median), attained(result, median)
    return {
        "rate": units.rate(speed) if speed else "",
        "ceiling": units.percent(share) if share else "",
        "memory": units.memory(result.peak_bytes) if result.peak_bytes is not None else "",
    }


def _text(section: Section) -> Callable[[float], str]:
    return units.seconds if section.quantity == "time" else units.memory


def _heat(row: AttentionRow | None, peer: str, section: Section) -> tuple[Cell, int]:
    """Return the cell of a heat map, and its tint in per cent."""
    if row is None:
        return _empty("not measured"), 0
    if row.ours is not None and row.ours.status != "ok":
        long, short = status(row.ours.status)
        return replace(_empty(f"{label(section.ours)}: {long}", short), classes="failed"), 0
    cell = _speedup(row.speedups[peer], section)
    if cell.classes not in ("better", "worse"):
        return cell, 0
    return cell, round(12 + 48 * min(abs(math.log2(cell.value)) / _FULL_TINT, 1.0))


def _speedup(one: Speedup, section: Section) -> Cell:
    peer = label(one.peer.params["impl"]) if one.peer else ""
    if ratio := one.ratio:
        say, text = WORDS[section.quantity], units.times(ratio.value)
        known = ratio.words if section.quantity == "time" else text
        title = f"{say[ratio.verdict]}: {peer} {say['needs']} {known} the {section.quantity} of {label(section.ours)}"
        return number(ratio.value, units.times, classes=ratio.verdict, title=title)
    if one.peer is None:
        return _empty("not measured")
    if one.peer.status == "ok":
        return _empty(f"no {section.quantity} of {label(section.ours)} to compare with")
    long, short = status(one.peer.status)
    return _empty(f"{peer}: {long}", short)


def _empty(title: str, text: str = _NOTHING) -> Cell:
    return Cell(text, classes="none", title=title, is_number=True)


def table_row(
    row: AttentionRow, section: Section, axes: Sequence[str], rate_unit: tuple[float, str], link: Link
) -> Row:
    """One case of ours."""
    config, time, (scale, unit) = dict(row.config), row.figure, rate_unit
    params = config | {"impl": section.ours}
    memory_href, cells = (
        link("track_peak_memory", params),
        {one: parameter(config[one], value_text(one, config[one])) for one in axes},
    )
    if section.quantity == "time":
        spread = f"±{units.percent(time.high / time.median - 1)}" if time else ""
        peak_bytes = row.ours.peak_bytes if row.ours and time else None
        cells |= {
            "time": duration(row.ours, time, href=link("track_time", params), beside=spread),
            unit: number(row.flops_per_s, lambda value: units.digits(value / scale)),
            "of ceiling": number(row.ceiling, units.percent, share=row.ceiling),
            "peak memory": number(peak_bytes, units.memory, href=memory_href),
        }
    else:
        cells |= {"memory": duration(row.ours, row.figure, written=units.memory, href=memory_href)}
    peers = {f"\u00d7 {label(peer)}": _speedup(one, section) for peer, one in row.speedups.items() if peer != FASTEST}
    return ", ".join(map(words, config, config.values())), cells | peers


def failures(results: Sequence[CaseResult], section: Section) -> list[dict[str, Any]]:
    """Cases without a number, grouped by implementation and reason: ours first, what cannot be had last."""
    groups: dict[tuple[str, Status, str], list[dict[str, Any]]] = {}
    for result in results:
        if result.status != "ok":
            key = result.params["impl"], result.status, result.reason
            groups.setdefault(key, []).append({axis: value for axis, value in result.params.items() if axis != "impl"})
    order = sorted(groups, key=lambda key: (key[0] != section.ours, key[1] == "unavailable", key))
    return [
        {
            "impl": label(impl),
            "ours": impl == section.ours,
            "status": status(outcome)[0],
            "reason": reason,
            "count": len(groups[impl, outcome, reason]),
            "cases": _describe(groups[impl, outcome, reason], results),
        }
        for impl, outcome, reason in order
    ]


def _describe(configs: list[dict[str, Any]], results: Sequence[CaseResult]) -> list[str]:
    """Name a block of the grid by its fixed axes ("dtype float32"), and other sets case by case."""
    spans = {axis: list(dict.fromkeys(config[axis] for config in configs)) for axis in configs[0]}
    everywhere = {axis: {result.params[axis] for result in results if axis in result.params} for axis in spans}
    if math.prod(map(len, spans.values())) != len(configs):
        return [sentence(config, [axis for axis in config if len(everywhere[axis]) > 1]) for config in configs]
    narrowed = [
        f"{axis} {', '.join(value_text(axis, value) for value in values)}"
        for axis, values in spans.items()
        if set(values) != everywhere[axis]
    ]
    return ["; ".join(narrowed) or "every case"]
