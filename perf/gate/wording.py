"""Put a report into words: the headline, what to do, the numbers of a row and the conditions of the run."""

from collections import Counter
from collections.abc import Sequence

from perf import units
from perf.gate.verdicts import BAD, LOOKS, OUT_OF_TIME, UNMEASURED, Quantity, Report, Verdict, Word
from perf.harness.status import PHASES

ORDER: tuple[Word, ...] = (
    "BROKEN", "SLOWER", "LARGER", "AMBIGUOUS", "FIXED", "FASTER", "SMALLER", "NEW", "GONE", "SAME",
)  # fmt: skip
"""Words by urgency."""

COLUMNS = ("base", "head", "change (95 %)", "negligible", "min. detectable")
"""Headers of `cells`."""


def headline(report: Report) -> str:
    """Summarise the report in one line."""
    gone = units.counted(len(report.removed), "row")
    return f"{_judged(report)}{f'; {gone} taken out of the suite' if report.removed else ''}"


def _judged(report: Report) -> str:
    judgement = report.judgement
    if not report.tests_passed:
        return f"HEAD's tests fail, so nothing was timed: {report.tests}"
    counts = Counter(verdict.word for verdict in judgement.believed if verdict.is_bad)
    bad = ", ".join(f"{counts[word]} {word.lower()}" for word in BAD if counts[word])
    if judgement.contaminated:
        return f"{bad}{'; ' if bad else ''}CONTAMINATED, no verdict on times: {judgement.contaminated}"
    counts = Counter(verdict.word for verdict in judgement.verdicts if not verdict.accepted)
    if report.reaches_none:
        return f"Nothing can be worse: the change reaches none of {len(report.unreached.skipped)} rows"
    if report.exit_status == 2 and judgement.suspects:
        count = len(judgement.suspects)
        look = "looks" if count == 1 else "look"
        return f"{units.counted(count, 'row')} {look} slower, and the budget ended before it was confirmed"
    if report.exit_status == 2:
        quantities = {verdict.quantity for verdict in judgement.verdicts}
        of_one = judgement.undecided if judgement.undecided < quantities else ()
        subject = f"No {next(iter(of_one)).replace('_', ' ')}" if of_one else "Nothing"
        ambiguous = sum(
            verdict.word == "AMBIGUOUS" and verdict.quantity in judgement.undecided for verdict in judgement.verdicts
        )
        are = "is" if ambiguous == 1 else "are"
        return f"{subject} could be judged" + (
            f": {units.counted(ambiguous, 'row')} {are} ambiguous" if ambiguous else ""
        )
    accepted = sum(verdict.word in BAD for verdict in judgement.verdicts if verdict.accepted)
    others = [f"{counts[word]} {word.lower()}" for word in ORDER if word not in BAD and counts[word]]
    clauses = [
        ", ".join(
            [
                bad or "Nothing is worse",
                *([f"{accepted} worse and accepted"] if accepted else []),
                *(others or ["no other rows"]),
            ]
        ),
        different_results(report) if report.differences else "",
        "controls without a time" if judgement.unwatched else "",
        f"{judgement.cut_short} cut short" if judgement.cut_short else "",
    ]
    return "; ".join(filter(None, clauses))


def to_do(report: Report) -> str:
    """Tell the author what to do about the report."""
    if not report.tests_passed:
        return "Make the tests pass; incorrect code is not timed."
    if report.judgement.contaminated:
        return "Measure again on an idle machine."
    if report.exit_status == 2:
        return _to_judge(report)
    if report.exit_status == 1 and any(verdict.failure == "wrong" for verdict in report.judgement.verdicts):
        return "Fix the wrong results, which cannot be accepted."
    if report.exit_status == 1:
        return "Fix the regression, or accept it with a reason: python -m perf accept --help."
    if report.differences:
        return "Explain why the results differ: both are within the checks' bounds."
    if any(verdict.word == "GONE" for verdict in report.judgement.verdicts):
        return "Look at the rows that are gone: of a module that was renamed, perf.workloads.FORMER_MODULES keeps them."
    return "Nothing."


def _to_judge(report: Report) -> str:
    """Tell what to do about a report that judges nothing: time helps rows that it ended, if they lack nothing else."""
    verdicts = report.judgement.verdicts
    if verdicts and all(verdict.word == "GONE" for verdict in verdicts):
        return "Select rows that head still has (-b)."
    undecided = [verdict for verdict in verdicts if verdict.word == "AMBIGUOUS"]
    lacking = [*(reason for reason, _ in report.without), *(verdict.reason for verdict in undecided)]
    never_visited = any(verdict.quantity == "time" and verdict.reason.startswith(UNMEASURED) for verdict in undecided)
    if not lacking or report.judgement.cut_short or OUT_OF_TIME in lacking or never_visited:
        return "Allow more time (--budget), or select fewer rows (-b)."
    if any(verdict.quantity == "time" and verdict.change is not None for verdict in undecided):
        return "More time decides nothing: changes or noise are as large as what is negligible in these rows."
    return f"Make these rows run here, or select others (-b): {lacking[0]}."


def different_results(report: Report) -> str:
    """Count the cases with different results, as a clause."""
    count = len(report.differences)
    return f"the results of {units.counted(count, 'case')} differ by more than rounding"


def in_order(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Sort verdicts by urgency, then by size of the change."""
    return sorted(verdicts, key=lambda verdict: (ORDER.index(verdict.word), -abs(verdict.change or 0.0)))


def name(key: str, quantity: Quantity) -> str:
    """Name a row: its case, and the quantity if that is not the time."""
    return f"{key}, memory" if quantity == "peak_memory" else key


def cells(verdict: Verdict) -> tuple[str, ...]:
    """Format the numbers of a row, one for each of `COLUMNS`; "-" for no number."""
    negligible = "-" if verdict.negligible is None else f"{100 * verdict.negligible:.2g} %"
    return (*values(verdict), change(verdict), negligible, detectable(verdict))


def values(verdict: Verdict) -> tuple[str, str]:
    """Format base and head with units."""
    form = units.seconds if verdict.quantity == "time" else units.memory
    base, head = ("-" if value is None else form(value) for value in (verdict.base, verdict.head))
    return base, head


def change(verdict: Verdict) -> str:
    """Format a change of time as "+3.2 % (+2.9 .. +3.5)", one of memory as the difference in bytes."""
    if verdict.change is None or verdict.base is None or verdict.head is None:
        return "-"
    if verdict.quantity == "peak_memory":
        more = verdict.head - verdict.base
        return "0" if more == 0 else f"{'+' if more > 0 else '-'}{units.memory(abs(more))}"
    if verdict.low is None or verdict.high is None:
        return f"{100 * verdict.change:+.1f} %"
    return f"{100 * verdict.change:+.2f} % ({100 * verdict.low:+.2f} .. {100 * verdict.high:+.2f})"


def detectable(verdict: Verdict) -> str:
    """Format the minimum detectable slow-down."""
    if verdict.min_detectable is None:
        return "-"
    return units.minimum_detectable(verdict.min_detectable, lambda share: f"{100 * share:.1f} %")


def commit(full: str) -> str:
    """Shorten a commit to eight digits; "working tree" stays."""
    return full[:8] if len(full) == 40 else full


def conditions(report: Report) -> list[tuple[str, str]]:
    """Return name and value of everything that the numbers depend on."""
    software = _versions(report.software)
    if report.head_software:
        software = f"base {software}; head {_versions(report.head_software)}"
    elif software:
        software += "; the same for both"
    device = str(report.device.get("name", ""))
    if driver := report.device.get("driver"):
        device += f", driver {driver}"
    known = [
        ("HEAD's tests", report.tests),
        ("Device", device),
        ("Software", software),
        ("Rules", f"version {report.rules}" if report.rules else ""),
        ("Processes", _processes(report)),
        ("Controls without a time", report.judgement.unwatched),
        ("Cut short", _cut_short(report)),
        ("Drawn", _drawn(report)),
        ("Out of reach", _unreached(report)),
        ("Took", _took(report)),
        ("Without", "; ".join(f"{units.counted(count, 'row')}: {reason}" for reason, count in report.without)),
        ("Taken out of the suite", _removed(report)),
        ("Command", report.command),
    ]
    return [(name, value) for name, value in known if value]


def _removed(report: Report) -> str:
    """Name the classes of the rows that no later gate judges, with the number of rows of each."""
    rows = Counter(key.partition("(")[0] for key in report.removed)
    return ", ".join(f"{units.counted(count, 'row')} of {benchmark}" for benchmark, count in rows.items())


def _took(report: Report) -> str:
    parts = [f"{s / report.seconds:.0%} {PHASES.get(phase, phase)}" for phase, s in report.spent_s.items()]
    return f"{report.seconds / 60:.1f} min{': ' if parts else ''}{', '.join(parts)}".replace("%", " %")


def _versions(software: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in software.items() if version)


def _processes(report: Report) -> str:
    if not report.processes:
        return ""
    how = "pairs, one per environment, alternating" if report.head_software else "each alternating both commits"
    return f"up to {report.processes}, {how}"


def _cut_short(report: Report) -> str:
    if not (rows := report.judgement.cut_short):
        return ""
    return (
        f"{units.counted(rows, 'row')}, by the budget: SLOWER needs {LOOKS[-1]} processes, so no slow-down in "
        "these could be reported, however large"
    )


def _drawn(report: Report) -> str:
    """Count the rows that were measured on after SAME, and those that stayed SAME."""
    rows = [verdict for verdict in report.judgement.verdicts if verdict.was_same]
    stayed = sum(verdict.word == "SAME" for verdict in rows)
    return f"{len(rows)} SAME rows, drawn at random for all processes: {stayed} stayed SAME" if rows else ""


def _unreached(report: Report) -> str:
    """Count the rows that were not measured because no code that they run has changed, and the test of that."""
    unreached = report.unreached
    if unreached.why_none:
        return f"not known{', so every row was measured' if report.tests_passed else ''}: {unreached.why_none}"
    if not (unreached.skipped or unreached.sampled):
        return ""
    words = {verdict.key: verdict.word for verdict in report.judgement.verdicts if verdict.quantity == "time"}
    counts = Counter(words.get(key, "without a verdict") for key in unreached.sampled)
    sample = (
        f"; {', '.join(f'{count} {word}' for word, count in counts.items())} of a sample of {len(unreached.sampled)}"
    )
    return (
        f"{units.counted(len(unreached.skipped), 'row')}, not measured: nothing that they run has changed"
        f"{sample if unreached.sampled else ''}"
    )
