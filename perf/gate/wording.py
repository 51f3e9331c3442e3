"""A report in words: the sentence on top, what to do, and a row's numbers as a person reads them."""

from collections import Counter
from collections.abc import Sequence

from perf import units
from perf.gate.verdicts import BAD, LOOKS, Quantity, Report, Verdict, Word

ORDER: tuple[Word, ...] = (
    "BROKEN", "SLOWER", "LARGER", "AMBIGUOUS", "FIXED", "FASTER", "SMALLER", "NEW", "GONE", "SAME",
)  # fmt: skip
"""What needs a person comes first."""


def headline(report: Report) -> str:
    """The verdict on the whole, in one line."""
    judgement = report.judgement
    if not report.tests_passed:
        return f"HEAD's tests fail, so nothing was timed: {report.tests}"
    counts = Counter(one.word for one in judgement.believed if one.is_bad)
    bad = ", ".join(f"{counts[word]} {word.lower()}" for word in BAD if counts[word])
    if judgement.contaminated:
        return f"{bad}{'; ' if bad else ''}CONTAMINATED, no verdict on times: {judgement.contaminated}"
    counts = Counter(one.word for one in judgement.verdicts if not one.accepted)
    accepted = sum(one.word in BAD for one in judgement.verdicts if one.accepted)
    if report.exit_status == 2:
        times = [one.word for one in judgement.verdicts if one.quantity == "time"]
        what = "No time" if times and len(times) < len(judgement.verdicts) else "Nothing"
        return f"{what} could be judged" + (f": {counts['AMBIGUOUS']} rows are ambiguous" if counts else "")
    named = [bad or "Nothing is worse", f"{accepted} worse and accepted" if accepted else "", _others(counts)]
    different = f"; {different_results(report)}" if report.differences else ""
    unwatched = "; controls without a time" if judgement.unwatched else ""
    short = f"; {judgement.cut_short} cut short" if judgement.cut_short else ""
    return ", ".join(filter(None, named)) + different + unwatched + short


def to_do(report: Report) -> str:
    """What that asks of a person."""
    if not report.tests_passed:
        return "Make the tests pass; a wrong answer has no speed."
    if report.judgement.contaminated:
        return "Measure again when nothing else runs on the machine."
    if report.exit_status == 2:
        return "Give it more time (--budget), or fewer rows (-b)."
    if report.exit_status == 1:
        return "Mend what is worse, or accept it with a reason: python -m perf accept --help."
    if report.differences:
        return "Explain why the results differ: both are within the checks' bounds."
    return "Nothing."


def different_results(report: Report) -> str:
    """How many cases compute something else, as a clause."""
    count = len(report.differences)
    return f"the results of {count} case{'s' if count > 1 else ''} differ by more than rounding"


def in_order(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """What needs a person first; of one word, the greatest change first."""
    return sorted(verdicts, key=lambda one: (ORDER.index(one.word), -abs(one.change or 0.0)))


def name(key: str, quantity: Quantity) -> str:
    """A row as it is called: its case, and what is compared if that is not the time."""
    return f"{key}, memory" if quantity == "peak_memory" else key


def values(one: Verdict) -> tuple[str, str]:
    """Base and head, with units; "-" for what has no number."""
    form = units.seconds if one.quantity == "time" else units.memory
    return tuple("-" if value is None else form(value) for value in (one.base, one.head))  # type: ignore[return-value]


def change(one: Verdict) -> str:
    """ "+3.2 % (+2.9 .. +3.5)"; of bytes, which are exact, the difference."""
    if one.change is None or one.base is None or one.head is None:
        return "-"
    if one.quantity == "peak_memory":
        more = one.head - one.base
        return "0" if more == 0 else f"{'+' if more > 0 else '-'}{units.memory(abs(more))}"
    if one.low is None or one.high is None:
        return f"{100 * one.change:+.1f} %"
    return f"{100 * one.change:+.2f} % ({100 * one.low:+.2f} .. {100 * one.high:+.2f})"


def negligible(one: Verdict) -> str:
    """The change beyond which the row is slower or faster; "-" of bytes."""
    return "-" if one.negligible is None else f"{100 * one.negligible:.2g} %"


def visible(one: Verdict) -> str:
    """The smallest slow-down that the row would have shown."""
    if one.smallest_visible is None:
        return "-"
    return units.visible(one.smallest_visible, lambda share: f"{100 * share:.1f} %")


def commit(arm: dict[str, str]) -> str:
    """Its first eight digits, or "working tree"."""
    return arm["commit"][:8] if len(arm["commit"]) == 40 else arm["commit"]


def conditions(report: Report) -> list[tuple[str, str]]:
    """Name and value of what the numbers depend on."""
    software = _versions(report.software)
    if report.head_software:
        software = f"base {software}; head {_versions(report.head_software)}"
    elif software:
        software += "; the same for both"
    device = str(report.device.get("name", ""))
    if driver := report.device.get("driver"):
        device += f", driver {driver}"
    found = [
        ("HEAD's tests", report.tests),
        ("Device", device),
        ("Software", software),
        ("Processes", _processes(report)),
        ("Controls without a time", report.judgement.unwatched),
        ("Cut short", _cut_short(report)),
        ("Drawn", _drawn(report)),
        ("Took", _took(report)),
        ("Without", "; ".join(f"{count} rows: {reason}" for reason, count in report.without)),
        ("Command", report.command),
    ]
    return [(name, value) for name, value in found if value]


PURPOSES = {
    "sample": "sampling",
    "warm_up": "warm-up",
    "build": "building",
    "first_run": "first calls",
    "check": "checks",
    "explain": "explanations",
    "memory": "memory passes",
}


def _took(report: Report) -> str:
    parts = [f"{s / report.seconds:.0%} {PURPOSES.get(what, what)}" for what, s in report.spent_s.items()]
    return f"{report.seconds / 60:.1f} min{': ' if parts else ''}{', '.join(parts)}".replace("%", " %")


def _versions(software: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in software.items() if version)


def _processes(report: Report) -> str:
    if not report.processes:
        return ""
    how = "pairs, one of each environment, in turn" if report.head_software else "each with both commits in turn"
    return f"up to {report.processes}, {how}"


def _cut_short(report: Report) -> str:
    if not (rows := report.judgement.cut_short):
        return ""
    return (
        f"{rows} row{'s' if rows > 1 else ''}, by the budget: SLOWER takes {LOOKS[-1]} processes, and a slow-down in "
        "these, however large, could not be called so"
    )


def _drawn(report: Report) -> str:
    """What became of rows that were the SAME and measured on."""
    rows = [one for one in report.judgement.verdicts if one.was_same]
    stayed = sum(one.word == "SAME" for one in rows)
    return f"{len(rows)} rows that were the SAME, by chance, for all processes: {stayed} stayed so" if rows else ""


def _others(counts: Counter[Word]) -> str:
    rest = [f"{counts[word]} {word.lower()}" for word in ORDER if word not in BAD and counts[word]]
    return ", ".join(rest) or "no other rows"
