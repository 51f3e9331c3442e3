"""The attention page: rows become text, links and colours, and a template turns those into HTML."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from perf.harness.records import CaseResult
from perf.report import attention_history, attention_rows, units
from perf.report.attention_facts import facts
from perf.report.attention_history import Series
from perf.report.attention_rows import FASTEST, OURS, Row, Speedup

TEMPLATES = Path(__file__).parent / "templates"

LABELS = {
    "reference": "eager PyTorch",
    "compiled": "compiled PyTorch",
    "pytorch": "tiled PyTorch",
    "triton": "Triton",
    "sdpa": "SDPA",
    "sdpa_flash": "SDPA flash",
    "sdpa_cudnn": "SDPA cuDNN",
    "sdpa_efficient": "SDPA efficient",
    "sdpa_math": "SDPA math",
    "flex": "FlexAttention",
    FASTEST: "the fastest peer",
}
STATUS = {  # in words, and short enough for a cell
    "unavailable": ("not available", "n/a"),
    "out_of_memory": ("out of memory", "OOM"),
    "wrong": ("wrong result", "wrong"),
    "too_fast": ("faster than the hardware allows", "too fast"),
    "throttled": ("the device throttled", "throttled"),
    "error": ("error", "error"),
    "crashed": ("crashed", "crash"),
    "hung": ("hung", "hung"),
}
VALUES = {"forward": "forward", "backward": "backward", "forward_backward": "forward + backward"}
_NOTHING = "\u2013"  # an en dash
_FULL_TINT = math.log2(4)  # a factor of four has the full colour


@dataclass(frozen=True)
class Commit:
    """A commit as a reader knows it."""

    hash: str
    subject: str
    date: str


@dataclass(frozen=True)
class Measured:
    """What one machine recorded of one benchmark at its newest commit."""

    machine: str
    benchmark: str
    commit: Commit
    results: list[CaseResult]
    series: frozenset[str]
    """Names of asv's benchmarks that have a graph to link to."""

    history: tuple[Series, ...] = ()


def render(project: str, measured: Iterable[Measured], silent: Iterable[tuple[str, str]], show_commit_url: str) -> str:
    """The whole page. `silent` names machines without anything to show, each with the reason in words."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("attention.html").render(
        project=project,
        machines=[_machine(one, show_commit_url) for one in measured],
        silent=list(silent),
    )


def permalink(benchmark: str, machine: str, params: dict[str, Any]) -> str:
    """asv's history graph of one series. asv knows a parameter's values by their repr."""
    query = {"machine": machine} | {f"p-{axis}": repr(value) for axis, value in params.items()}
    return f"index.html#{quote(benchmark)}?{urlencode(query, quote_via=quote)}"


def _machine(one: Measured, show_commit_url: str) -> dict[str, Any]:
    ours = OURS[one.benchmark]
    rows, peers = attention_rows.build_rows(one.results, ours)
    ident = re.sub(r"[^a-z0-9]+", "-", f"{one.machine} {one.benchmark}".lower())
    timed = [row for row in rows if row.time]
    scale, unit = units.rate_unit([row.flops_per_s for row in timed if row.flops_per_s])
    overviews = {peer: attention_rows.overview(rows, peer) for peer in peers}
    ceilings = sorted(row.ceiling for row in timed if row.ceiling is not None)
    return {
        "id": ident,
        "name": one.machine,
        "ours": LABELS.get(ours, ours),
        "cases": len(rows),
        "timed": len(timed),
        "headline": _headline(overviews),
        "ceiling": units.percent(ceilings[len(ceilings) // 2]) if ceilings else "",
        "best_ceiling": units.percent(ceilings[-1]) if ceilings else "",
        "peers": [
            {"id": peer, "label": LABELS.get(peer, peer), "overview": _overview_text(overviews[peer])} for peer in peers
        ],
        "maps": {peer: _maps(rows, peer) for peer in peers},
        "axes": [axis for axis, _ in rows[0].config] if rows else [],
        "rate_unit": unit,
        "has_memory": any(row.ours and row.ours.peak_bytes is not None for row in timed),
        "columns": [peer for peer in peers if peer != FASTEST],
        "rows": [_row(row, one, scale) for row in rows],
        "history": [_card(series, one) for series in one.history],
        "viewbox": f"0 0 {attention_history.WIDTH} {attention_history.HEIGHT}",
        "failures": _failures(one.results, ours),
        "facts": facts(one.results),
        "commit": one.commit,
        "commit_url": show_commit_url + one.commit.hash if show_commit_url not in ("", "#") else "",
        "command": f"asv run --bench '^{re.escape(one.benchmark)}' {one.commit.hash[:8]}^!",
    }


def _headline(overviews: dict[str, attention_rows.Overview | None]) -> list[tuple[str, str]]:
    """Ratio and name of the peers that a reader asks for first."""
    # Beside one or two peers, the fastest of them says nothing new.
    wanted = ("reference", "sdpa", FASTEST) if len(overviews) > 3 else ("reference", "sdpa")
    return [(units.times(found.mean), LABELS[peer]) for peer in wanted if (found := overviews.get(peer))]


def _overview_text(found: attention_rows.Overview | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "mean": units.times(found.mean),
        "low": units.times(found.low),
        "high": units.times(found.high),
        "cases": found.cases,
        "faster": found.faster,
        "slower": found.slower,
    }


def _maps(rows: Sequence[Row], peer: str) -> list[dict[str, Any]]:
    """One heat map of seq_len by d for each combination of the other axes."""
    groups: dict[str, dict[tuple[Any, Any], Row]] = {}
    for row in rows:
        config = dict(row.config)
        at = config.pop("seq_len", ""), config.pop("d", "")
        label = ", ".join(VALUES.get(str(value), str(value)) for value in reversed(config.values()))
        groups.setdefault(label, {})[at] = row
    return [
        {
            "label": label,
            "columns": sorted({d for _, d in cells}),
            "rows": [
                (seq_len, [_heat(cells.get((seq_len, d)), peer) for d in sorted({d for _, d in cells})])
                for seq_len in sorted({seq_len for seq_len, _ in cells})
            ],
        }
        for label, cells in groups.items()
    ]


def _heat(row: Row | None, peer: str) -> dict[str, Any]:
    if row is None:
        return {"text": _NOTHING, "kind": "none", "tint": 0, "title": "not measured"}
    if row.ours is not None and row.ours.status != "ok":
        words, short = STATUS.get(row.ours.status, (row.ours.status, row.ours.status))
        return {"text": short, "kind": "failed", "tint": 0, "title": f"no time of ours: {words}"}
    return _speedup(row.speedups[peer])


def _speedup(one: Speedup) -> dict[str, Any]:
    if one.ratio is not None:
        impl = one.peer.params["impl"] if one.peer else ""
        strength = min(abs(math.log2(one.ratio)) / _FULL_TINT, 1.0)
        return {
            "text": units.times(one.ratio),
            "kind": one.verdict,
            "tint": 0 if one.verdict == "even" else round(12 + 48 * strength),
            "title": f"{one.verdict if one.verdict != 'even' else 'no clear difference'}: {LABELS.get(impl, impl)} "
            f"takes {units.times(one.ratio)} our time",
            "value": one.ratio,
        }
    if one.peer is None:
        return {"text": _NOTHING, "kind": "none", "tint": 0, "title": "not measured"}
    if one.peer.status == "ok":
        return {"text": _NOTHING, "kind": "none", "tint": 0, "title": "no time of ours to compare with"}
    words, short = STATUS.get(one.peer.status, (one.peer.status, one.peer.status))
    impl = one.peer.params["impl"]
    return {"text": short, "kind": "none", "tint": 0, "title": f"{LABELS.get(impl, impl)}: {words}"}


def _row(row: Row, one: Measured, scale: float) -> dict[str, Any]:
    params = dict(row.config) | {"impl": OURS[one.benchmark]}
    found: dict[str, Any] = {
        "axes": [(axis, value, VALUES.get(str(value), str(value))) for axis, value in row.config],
        "name": ", ".join(f"{axis} {value}" for axis, value in row.config),
        "time": None,
        "status": STATUS.get(row.ours.status, (row.ours.status,))[0] if row.ours else "not measured",
        "reason": row.ours.reason if row.ours else "",
        "time_href": _history(one, "track_time", params),
        "memory_href": _history(one, "track_peak_memory", params),
        "rate": units.digits(row.flops_per_s / scale) if row.flops_per_s else "",
        "rate_value": row.flops_per_s or "",
        "ceiling": units.percent(row.ceiling) if row.ceiling is not None else "",
        "ceiling_value": row.ceiling if row.ceiling is not None else "",
        "memory": "",
        "memory_value": "",
        "peers": {peer: _speedup(speedup) for peer, speedup in row.speedups.items()},
    }
    if row.time:
        low, high = units.seconds_together([row.time.low, row.time.high])
        found |= {"time": units.seconds(row.time.median), "time_value": row.time.median, "low": low, "high": high}
    if row.ours and row.ours.status == "ok" and row.ours.peak_bytes is not None:
        found |= {"memory": units.memory(row.ours.peak_bytes), "memory_value": row.ours.peak_bytes}
    return found


def _history(one: Measured, method: str, params: dict[str, Any]) -> str:
    series = f"{one.benchmark}.{method}"
    return permalink(series, one.machine, params) if series in one.series else ""


def _card(series: Series, one: Measured) -> dict[str, str]:
    words = [f"{axis} {value}" for axis, value in series.params.items() if axis in ("seq_len", "d")]
    words += [VALUES.get(str(value), str(value)) for axis, value in series.params.items() if axis in ("mode", "dtype")]
    return attention_history.card(series) | {
        "name": ", ".join(words),
        "href": permalink(f"{one.benchmark}.track_time", one.machine, series.params),
    }


def _failures(results: Sequence[CaseResult], ours: str) -> list[dict[str, Any]]:
    """Cases without a time, grouped by implementation and reason: ours first, what cannot be had last."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for result in results:
        if result.status != "ok":
            key = result.params["impl"], result.status, result.reason
            groups.setdefault(key, []).append({axis: value for axis, value in result.params.items() if axis != "impl"})
    order = sorted(groups, key=lambda key: (key[0] != ours, key[1] == "unavailable", key))
    return [
        {
            "impl": LABELS.get(impl, impl),
            "ours": impl == ours,
            "status": STATUS.get(status, (status,))[0],
            "reason": reason,
            "count": len(groups[impl, status, reason]),
            "cases": _describe(groups[impl, status, reason], results),
        }
        for impl, status, reason in order
    ]


def _describe(configs: list[dict[str, Any]], results: Sequence[CaseResult]) -> list[str]:
    """A block of the grid by the axes that narrow it ("dtype: float32"); anything else case by case."""
    spans = {axis: list(dict.fromkeys(config[axis] for config in configs)) for axis in configs[0]}
    if math.prod(map(len, spans.values())) != len(configs):
        return [", ".join(f"{axis} {value}" for axis, value in config.items()) for config in configs]
    everywhere = {axis: {result.params[axis] for result in results if axis in result.params} for axis in spans}
    narrowed = [
        f"{axis} {', '.join(map(str, values))}" for axis, values in spans.items() if set(values) != everywhere[axis]
    ]
    return ["; ".join(narrowed) or "every case"]
