"""False-alarm and detection rates of the gate, over all self-tests of a machine."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from perf.gate.rate import Rate
from perf.gate.report import Ended, SelfTest
from perf.gate.self_test_case import SelfTestCase
from perf.gate.verdicts import LOOKS, RULES


@dataclass(frozen=True)
class Pooled(SelfTestCase):
    """A case pooled over all self-tests with unmoved controls; hits are rows with the expected verdict."""

    rate: Rate
    """Rate over rows. Identical code counts rows that could have shown a slow-down, since no other can be wrong;
    where something was planted, of all: what was not measured was not found."""

    faster: int
    """Rows falsely called FASTER."""

    memory: Rate
    """Rate of rows of identical code whose peak memory was not called SAME."""

    ambiguous: int
    unmeasured: int
    """Excluded rows: too few visits to detect any slow-down."""

    tests: int
    wrong_tests: int
    """Number of self-tests of identical code with at least one row called SLOWER."""

    processes: int | None
    """Maximum number of processes of a row; None if unknown."""

    at_last_look: int
    """Rows of `rate` that reached the last look, without which no row is SLOWER."""

    first: datetime
    last: datetime
    commits: tuple[str, ...]


def of_present_rules(tests: Iterable[SelfTest]) -> list[SelfTest]:
    """Return the self-tests, without parts judged before SLOWER needed the last look, and those without other parts.

    Older files name no version of the rules; from version 2 on each verdict on a time names its negligible change.
    """
    unnamed_or_present = (test for test in tests if test.rules in ("", RULES))
    present = (replace(test, parts=tuple(filter(_is_of_present_rules, test.parts))) for test in unnamed_or_present)
    return [test for test in present if test.parts]


def _is_of_present_rules(part: Ended) -> bool:
    timed = (row for row in part.verdicts if row.quantity == "time" and row.min_detectable is not None)
    return all(row.negligible is not None for row in timed)


def pool(tests: Iterable[SelfTest]) -> list[Pooled]:
    """Pool cases with unmoved controls by what they plant: nothing first, then by kind and size."""
    by_part: dict[SelfTestCase, list[tuple[SelfTest, Ended]]] = {}
    for test in tests:
        for one in test.parts:
            if not one.contaminated:
                by_part.setdefault(SelfTestCase(one.injection), []).append((test, one))
    return [_pool(part, by_part[part]) for part in sorted(by_part, key=lambda part: part.place)]


def contaminated(tests: Iterable[SelfTest]) -> list[tuple[SelfTest, Ended]]:
    """Return parts whose controls moved, oldest first."""
    return [(test, part) for test in tests for part in test.parts if part.contaminated]


def _pool(part: SelfTestCase, parts: Sequence[tuple[SelfTest, Ended]]) -> Pooled:
    each = [[row for row in one.verdicts if part.injection or row.min_detectable is not None] for _, one in parts]
    rows, counting = [row for _, one in parts for row in one.verdicts], [row for some in each for row in some]
    memory = [row for _, one in parts for row in one.memory]
    reached = [
        {process for process, _ in one.visits.get(row.key, ())}
        for (_, one), some in zip(parts, each, strict=True)
        for row in some
    ]
    hits = [sum(row.word == part.wanted for row in some) for some in each]
    return Pooled(
        injection=part.injection,
        rate=Rate(sum(hits), len(counting)),
        faster=sum(row.word == "FASTER" for row in rows),
        memory=Rate(sum(row.word != "SAME" for row in memory), len(memory)),
        ambiguous=sum(row.word == "AMBIGUOUS" for row in counting),
        unmeasured=len(rows) - len(counting),
        tests=len(parts),
        wrong_tests=sum(map(bool, hits)),
        processes=max((one.processes for _, one in parts if one.processes is not None), default=None),
        at_last_look=sum(len(processes) >= LOOKS[-1] for processes in reached),
        first=min(test.started_at for test, _ in parts),
        last=max(test.started_at for test, _ in parts),
        commits=tuple(dict.fromkeys(test.commit for test, _ in parts)),
    )
