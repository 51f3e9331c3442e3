"""Rows become tables and heat maps: of every implementation of a case, and of every case."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perf import units
from perf.harness import status
from perf.harness.records import CaseResult
from perf.labels import FASTEST, label, reading_order
from perf.site.attention.catalogue import Section
from perf.site.attention.rows import AttentionRow, Speedup, figure
from perf.site.ceiling import attained, rate
from perf.site.estimate import Estimate
from perf.site.table import Cell, Row, duration, number, parameter
from perf.site.wording import sentence, value_text, words

Link = Callable[[str, dict[str, Any]], str]
"""Return asv's graph of a method and its parameters; "" if there is none."""

WORDS = {
    "time": {"better": "faster", "worse": "slower", "even": "no clear difference", "needs": "takes", "one": "time"},
    "memory": {"better": "less", "worse": "more", "even": "as much", "needs": "needs", "one": "figure"},
}
_NOTHING = "\u2013"  # an en dash
_FULL_TINT = math.log2(4)  # a factor of four has the full colour


@dataclass(frozen=True)
class Show:
    """Cells of a case in a section."""

    section: Section
    link: Link
    rate_unit: tuple[float, str]
    """Scale and name of the unit of all rates."""

    def cells(self, result: CaseResult | None, found: Estimate | None, params: dict[str, Any]) -> dict[str, Cell]:
        """Return time, rate, share of the ceiling and memory, or the memory alone."""
        memory_href = self.link("track_peak_memory", params)
        if self.section.quantity == "memory":
            return {"memory": duration(result, found, written=units.memory, href=memory_href)}
        done, (scale, unit) = result if found else None, self.rate_unit
        speed, ceiling = (of(done, found.median) if done and found else None for of in (rate, attained))
        return {
            "time": duration(result, found, href=self.link("track_time", params), beside=found.spread if found else ""),
            unit: number(speed, lambda value: units.digits(value / scale)),
            "of ceiling": number(ceiling, units.percent, share=ceiling),
            "peak memory": number(done.peak_bytes if done else None, units.memory, href=memory_href),
        }


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
        caption = sentence({axis: config[axis] for axis in reversed(axes) if axis not in ("seq_len", "d")})
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


def implementations(row: AttentionRow, peers: Sequence[str], axes: Sequence[str], show: Show) -> Iterator[Row]:
    """Yield a row for each implementation of a case, in reading order."""
    config, ours = dict(row.config), show.section.ours
    for impl in sorted({ours, *peers} - {FASTEST}, key=reading_order):
        result = row.ours if impl == ours else row.speedups[impl].peer
        ratio = Cell() if impl == ours else _speedup(row.speedups[impl], show.section)
        cells = show.cells(result, figure(result, show.section.quantity), config | {"impl": impl})
        name = {"implementation": parameter(impl, label(impl), classes="ours" if impl == ours else "")}
        over = {_over(ours): ratio} if peers else {}
        yield sentence(config | {"impl": label(impl)}), _parameters(config, axes) | name | cells | over


def case_row(row: AttentionRow, axes: Sequence[str], show: Show) -> Row:
    """Return the row of one case of ours."""
    config = dict(row.config)
    cells = show.cells(row.ours, row.figure, config | {"impl": show.section.ours})
    peers = {_over(peer): _speedup(one, show.section) for peer, one in row.speedups.items() if peer != FASTEST}
    return sentence(config), _parameters(config, axes) | cells | peers


def _parameters(config: dict[str, Any], axes: Sequence[str]) -> dict[str, Cell]:
    return {axis: parameter(config[axis], value_text(axis, config[axis])) for axis in axes}


def _over(impl: str) -> str:
    """Return the title of a column of ratios."""
    return f"\u00d7\u00a0{label(impl)}"


def _heat(row: AttentionRow | None, peer: str, section: Section) -> tuple[Cell, int]:
    """Return the cell of a heat map, and its tint in per cent."""
    if row is None:
        return _empty("not measured"), 0
    if row.ours is not None and row.ours.status != "ok":
        return replace(_failed(row.ours, label(section.ours)), classes="failed"), 0
    cell = _speedup(row.speedups[peer], section)
    if cell.classes not in ("better", "worse"):
        return cell, 0
    return cell, round(12 + 48 * min(abs(math.log2(cell.value)) / _FULL_TINT, 1.0))


def _speedup(one: Speedup, section: Section) -> Cell:
    peer = label(one.peer.params["impl"]) if one.peer else ""
    if ratio := one.ratio:
        say, text = WORDS[section.quantity], units.times(ratio.value)
        spread = ratio.spread if section.quantity == "time" else ""
        known = f"{text} {spread}".rstrip()
        title = f"{say[ratio.verdict]}: {peer} {say['needs']} {known} the {section.quantity} of {label(section.ours)}"
        return number(ratio.value, units.times, classes=ratio.verdict, title=title, beside=spread)
    if one.peer is None:
        return _empty("not measured")
    if one.peer.status == "ok":
        return _empty(f"no {section.quantity} of {label(section.ours)} to compare with")
    return _failed(one.peer, peer)


def _failed(result: CaseResult, impl: str) -> Cell:
    return _empty(f"{impl}: {status.words(result.status)}", status.abbreviation(result.status))


def _empty(title: str, text: str = _NOTHING) -> Cell:
    return Cell(text, classes="none", title=title, is_number=True)
