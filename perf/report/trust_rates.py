"""How often a gate was wrong, and how often it found what was planted: all self-tests of a machine together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from perf.gate.rate import Rate
from perf.report.trust_records import PLANTED, Part, SelfTest


@dataclass(frozen=True)
class Pooled:
    """One kind of part, over all self-tests in which its controls held."""

    kind: str
    size: float
    title: str
    wanted: str
    """The word that is counted: found, or among identical code false."""

    rate: Rate
    """Of rows. Among identical code of those that could have shown a slow-down at all, since no other can be wrong;
    where something was planted, of all: what was not measured was not found."""

    faster: int
    """Rows called FASTER, which nothing here ever is."""

    ambiguous: int
    unmeasured: int
    """Rows that do not count, since no slow-down could have shown."""

    tests: int
    wrong_tests: int
    """Of identical code: self-tests with at least one row called SLOWER."""

    first: datetime
    last: datetime
    commits: tuple[str, ...]


def pool(tests: Iterable[SelfTest]) -> list[Pooled]:
    """Parts without contamination, pooled by what they plant: nothing first, then by kind and size."""
    by_planted: dict[tuple[str, float], list[tuple[SelfTest, Part]]] = {}
    for test in tests:
        for part in test.parts:
            if not part.contaminated:
                by_planted.setdefault((part.kind, part.size), []).append((test, part))
    order = ["", *PLANTED]
    return [_pool(by_planted[key]) for key in sorted(by_planted, key=lambda key: (order.index(key[0]), key[1]))]


def contaminated(tests: Iterable[SelfTest]) -> list[tuple[SelfTest, Part]]:
    """The parts that do not count, oldest first."""
    return [(test, part) for test in tests for part in test.parts if part.contaminated]


def _pool(parts: Sequence[tuple[SelfTest, Part]]) -> Pooled:
    part = parts[0][1]
    each = [[row for row in one.verdicts if part.kind or row.smallest_visible is not None] for _, one in parts]
    rows, counting = [row for _, one in parts for row in one.verdicts], [row for some in each for row in some]
    hits = [sum(row.word == part.wanted for row in some) for some in each]
    return Pooled(
        kind=part.kind,
        size=part.size,
        title=part.title,
        wanted=part.wanted,
        rate=Rate(sum(hits), len(counting)),
        faster=sum(row.word == "FASTER" for row in rows),
        ambiguous=sum(row.word == "AMBIGUOUS" for row in counting),
        unmeasured=len(rows) - len(counting),
        tests=len(parts),
        wrong_tests=sum(map(bool, hits)),
        first=min(test.started_at for test, _ in parts),
        last=max(test.started_at for test, _ in parts),
        commits=tuple(dict.fromkeys(test.commit for test, _ in parts)),
    )
