"""Trust page: error rates of the gate's verdicts from the self-tests on file."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from perf import units
from perf.gate import rate
from perf.gate.aa_runs import MIN_BASE_S, MIN_MARGIN
from perf.gate.acceptance import Acceptance
from perf.gate.inference import FALSE_DISCOVERIES
from perf.gate.rate import Rate
from perf.gate.report import SelfTest
from perf.gate.rows import DRAWN_SHARE
from perf.gate.verdicts import LOOKS
from perf.gate.wording import name
from perf.selection import Negligible, params_of
from perf.site import conditions, pages
from perf.site.changes.rates import COMMITS, Rates
from perf.site.table import Cell, Row, number, parameter, table, text
from perf.site.trust import detectable, mutations, rates
from perf.site.trust.detectable import IdenticalRow, Spread
from perf.site.trust.mutations import Planted
from perf.site.trust.rates import Pooled
from perf.site.wording import sentence

COMMAND = "python -m perf self-test"
WORDS = (
    ("SLOWER, FASTER", f"The time changed by more than is negligible, over {LOOKS[-1]} processes. The false-discovery "
     f"rate of each verdict is at most {FALSE_DISCOVERIES * 100:g} % over the whole report."),
    ("LARGER, SMALLER", "The peak memory differs in every process that measured it. It is compared to the byte."),
    ("SAME", "The 95 % interval of the change is within the negligible range. Of such rows "
     f"{DRAWN_SHARE * 100:g} %, drawn at random, are measured in all processes nonetheless."),
    ("AMBIGUOUS", "Neither of the above. A slow-down as large as the minimum detectable one would have been SLOWER."),
    ("BROKEN, FIXED", "One commit has a number, the other a failure."),
    ("NEW, GONE", "Only one of the commits has the row."),
    ("CONTAMINATED", "Control rows, which run no project code, moved, so no time gets a verdict."),
)  # fmt: skip
TERMS = (
    ("Negligible", "The largest change that a benchmark class ignores: a share of the time or a number of seconds, "
     f"whichever is larger. Kernels of {MIN_BASE_S * 1e6:g} µs and more have a limit per row: twice the upper end of "
     f"the 95 % interval of the row's changes on identical code on this machine, and at least {MIN_MARGIN * 100:g} %."),
    ("Minimum detectable", f"The slow-down that {LOOKS[-1]} processes call SLOWER with a probability of 95 %, given "
     "the scatter of the row's visits."),
    ("At most, at least", "The end of a one-sided 95 % interval (Clopper and Pearson 1934), as if rows were "
     "independent."),
    ("A case, a row", "One cell of a benchmark's grid, and what a report says of its time or of its peak memory."),
    ("A visit", "One uninterrupted measurement of a row, alternating both commits sample by sample."),
)  # fmt: skip


@dataclass(frozen=True)
class MachineSelfTests:
    """A machine and its self-tests, oldest first."""

    name: str
    tests: Sequence[SelfTest]
    skipped: Sequence[tuple[str, str]]
    """Unreadable files, each with the reason."""

    drawn: Rate
    """Rate of rows that stayed SAME, of those drawn at random for all processes."""

    planted: Sequence[Planted] = ()
    """Newest outcome of each mutation."""


def render(
    project: str,
    machines: Iterable[MachineSelfTests],
    negligible: Negligible,
    finder: Rates,
    show_commit_url: str,
    accepted: Sequence[Acceptance] = (),
) -> str:
    """Render the page. Machines without a self-test have one line each; `accepted` is oldest first.

    `finder`: of what cuts the history into levels, for changes.html.
    """
    return pages.render(
        "trust",
        project,
        show_commit_url,
        {one.name: _machine(one, negligible) if one.tests or one.skipped or one.planted else None for one in machines},
        command=COMMAND,
        last_look=LOOKS[-1],
        words=[(name, _unbroken(line)) for name, line in WORDS],
        accepted=[_accepted(one) for one in reversed(accepted)],
        terms=[(name, _unbroken(line)) for name, line in TERMS],
        finder=_finder(finder),
    )


def _finder(rates: Rates) -> dict[str, Any]:
    """Without a change, and a row for each size of step with a cell for each number of commits after it."""
    sizes = dict.fromkeys(one.size for one in rates.found)
    return {
        "commits": COMMITS,
        "false": [(words, one.hits, one.of, rate.percent(one.upper)) for words, one in rates.flat],
        "hidden": [(words, f"{100 * one.share:.0f}\u00a0%") for words, one in rates.hidden],
        "after": list(dict.fromkeys(one.after for one in rates.found)),
        "rows": [
            (
                f"{100 * size:.0f}",
                [
                    (f"{100 * one.ours.share:.0f}\u00a0%", f"{100 * one.asvs.share:.0f}\u00a0%")
                    for one in rates.found
                    if one.size == size
                ],
            )
            for size in sizes
        ],
    }


def percent(value: float) -> str:
    """0.35 %, 2.1 %, 90 %."""
    return f"{units.digits(100 * value, 2)}\u00a0%"


def _unbroken(text: str) -> str:
    """No line ends between a number and its per cent."""
    return text.replace(" %", "\u00a0%")


def _machine(one: MachineSelfTests, negligible: Negligible) -> dict[str, Any]:
    tests = rates.of_present_rules(one.tests)
    parts = [_part(part) for part in rates.pool(tests)]
    return {
        "tests": len(tests),
        "older": len(one.tests) - len(tests),
        "identical": next((part for part in parts if not part["pooled"].injection), None),
        "planted": [part for part in parts if part["pooled"].injection],
        "parts": table(map(_part_row, parts)),
        "facts": _facts(tests),
        "drawn": one.drawn if one.drawn.of else None,
        "changed": Rate(one.drawn.of - one.drawn.hits, one.drawn.of).words(at_most=True),
        "left_out": table(_left_out(one, tests)),
        "mutations": _mutations(one.planted),
        "detectable": _detectable(tests, negligible),
        "spreads": _spreads(detectable.spreads(tests)),
    }


def _mutations(planted: Sequence[Planted]) -> dict[str, Any]:
    return {
        "kinds": table(map(_kind, mutations.scores(list(planted)) if planted else ())),
        "missed": table(_missed(one) for one in planted if one.word and not one.is_found),
        "without": sum(not one.word for one in planted),
        "commits": sorted({one.commit for one in planted}),
    }


def _kind(score: tuple[str, Rate]) -> Row:
    kind, found = score
    return kind, {
        "kind": text(kind),
        "found": number(found.hits, str),
        "planted": number(found.of, str),
        "rate (95 %)": Cell(_unbroken(found.bound(at_most=False)) if found.of else "", is_number=True),
    }


def _missed(one: Planted) -> Row:
    return one.name, {
        "planted": Cell(f"{one.kind}: {one.name}"),
        "verdict": Cell(one.word, classes="failed"),
        "wanted": Cell(one.wanted),
        "reason": Cell(one.reason),
    }


def _accepted(one: Acceptance) -> dict[str, Any]:
    return {
        "commit": one.commit,
        "reason": one.reason,
        "rows": [
            name(row.key, row.quantity).replace("'", "")
            + f" {row.word}"
            + ("" if row.at_most is None else f" +{percent(row.at_most)}")
            for row in one.rows
        ],
    }


def _part(one: Pooled) -> dict[str, Any]:
    """Return the rates of a part, with those that need a row formatted."""
    return {
        "pooled": one,
        "title": _unbroken(one.title),
        "share": _unbroken(rate.percent(one.rate.share)) if one.rate.of else "",
        "bound": _unbroken(one.rate.bound(at_most=not one.injection)) if one.rate.of else "",
    }


def _part_row(part: dict[str, Any]) -> Row:
    one: Pooled = part["pooled"]
    false_alarm = not one.injection and one.rate.hits
    return one.title, {
        "planted": text(part["title"]),
        "rows": number(one.rate.of, str, beside=f"+ {one.unmeasured} unmeasured" if one.unmeasured else ""),
        "hits": number(one.rate.hits, lambda hits: f"{hits} {one.wanted}", classes="failed" if false_alarm else ""),
        "rate": Cell(part["share"], is_number=True),
        "bound (95 %)": Cell(part["bound"], classes="whole"),
        "ambiguous": number(one.ambiguous, str),
        "faster": number(one.faster, str),
        "processes": number(one.processes, str, beside=f"{units.counted(one.at_last_look, 'row')} in {LOOKS[-1]}"),
        "self-tests": number(one.tests, str),
        "from, to": Cell(units.extent(f"{when:%Y-%m-%d}" for when in (one.first, one.last)), classes="whole"),
        "commits": Cell(commits=one.commits),
    }


def _left_out(one: MachineSelfTests, tests: Sequence[SelfTest]) -> Iterator[Row]:
    """Yield parts whose controls moved, then files that cannot be read."""
    for test, part in rates.contaminated(tests):
        yield (
            part.title,
            {
                "part or file": Cell(part.title),
                "status": Cell("CONTAMINATED", classes="failed"),
                "reason": Cell(part.contaminated),
                "when": Cell(f"{test.started_at:%Y-%m-%d}", classes="whole"),
                "commit": Cell(commits=(test.commit,)),
            },
        )
    for file, why in one.skipped:
        yield file, {"part or file": Cell(file), "status": Cell("SKIPPED", classes="failed"), "reason": Cell(why)}


def _facts(tests: Sequence[SelfTest]) -> list[tuple[str, str]]:
    """Facts of the newest self-test."""
    if not tests:
        return []
    newest = tests[-1]
    found = [
        ("Newest self-test", f"{newest.started_at:%Y-%m-%d %H:%M} UTC"),
        ("Hardware", str(newest.device.get("name", ""))),
        ("Driver", str(newest.device.get("driver", ""))),
        ("Software", conditions.software(newest.software)),
    ]
    return [(name, value) for name, value in found if value]


def _detectable(tests: Sequence[SelfTest], negligible: Negligible) -> dict[str, Any] | None:
    """Return picture and table of the newest part on identical code."""
    found = detectable.newest(tests)
    if found is None or not (rows := detectable.rows(found[1], negligible)):
        return None
    test, _ = found
    drawn = detectable.picture(rows)
    seen = [row.verdict.min_detectable for row in rows if row.verdict.min_detectable is not None]
    return {
        "commit": test.commit,
        "date": f"{test.started_at:%Y-%m-%d}",
        "rows": len(rows),
        "table": table(map(_row, rows)),
        "seen": len(seen),
        "best": _detectable_slow_down(seen[0]) if seen else "",
        "middle": _detectable_slow_down(seen[len(seen) // 2]) if seen else "",
        "worst": _detectable_slow_down(seen[-1]) if seen else "",
        "width": drawn["width"],
        "ticks": [(units.digits(100 * tick, 1), at) for tick, at in drawn["ticks"]],
        "marks": [mark | _mark(mark["row"]) for mark in drawn["marks"]],
    }


_KINDS = {"SAME": "same", "AMBIGUOUS": "open"}
"""Style of a verdict's mark; of any other "false"."""


def _detectable_slow_down(fraction: float) -> str:
    return units.minimum_detectable(fraction, percent)


def _mark(row: IdenticalRow) -> dict[str, str]:
    """Return the style of a row's mark and the words under the pointer."""
    one = row.verdict
    floor = "unknown" if row.floor is None else percent(row.floor)
    seen = _detectable_slow_down(one.min_detectable or 0.0)
    return {
        "kind": _KINDS.get(one.word, "false"),
        "title": f"{detectable.benchmark_of(one.key)}, {_params(row)}: {seen}, negligible {floor}, {one.word}",
    }


def _row(row: IdenticalRow) -> Row:
    one = row.verdict
    return one.key, {
        "row": text(_params(row)),
        "minimum detectable": number(one.min_detectable, _detectable_slow_down),
        "negligible": number(row.floor, percent),
        "verdict": parameter(one.word, classes="" if one.word in _KINDS else "failed"),
        "time": number(one.base, units.seconds),
        "class": parameter(detectable.benchmark_of(one.key)),
        "reason": Cell(one.reason, classes="reason"),
    }


def _params(row: IdenticalRow) -> str:
    """ "seq_len 8192, d 64, bfloat16": without the axes of a class that is gone."""
    if params := params_of(row.verdict.key):
        return sentence(params)
    benchmark, _, values = row.verdict.key.partition("(")
    return values.removesuffix(")").replace("'", "") or benchmark


def _spreads(found: Sequence[Spread]) -> dict[str, Any]:
    axis = detectable.axis_of([size for one in found for size in (one.half, one.most)])
    return {
        "ticks": [(units.digits(100 * tick, 1), axis.at(tick)) for tick in axis.ticks],
        "rows": [
            {
                "benchmark": one.benchmark,
                "rows": one.rows,
                "visits": one.visits,
                "median": f"{'+' if one.median > 0 else ''}{percent(one.median)}",
                "half": percent(one.half),
                "most": percent(one.most),
                "from": axis.at(one.half),
                "to": axis.at(one.most),
            }
            for one in found
        ],
    }
