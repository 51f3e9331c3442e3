"""What identical code did on a machine, as its self-tests and its gates of a commit against itself have kept it.

Of that, a row's margin: the least change of it that means anything. A class calls 1 % negligible because it does not
know its rows; twelve processes that alternate both arms know a kernel of a millisecond to 0.05 %. Twice what identical
code moved by so far, at the far end of its 95 % interval, is the row's margin, and never less than `LEAST`. Every A/A
that is kept moves the margins of its rows, so one that contradicts them widens them.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from perf.gate.report import RECORDS
from perf.gate.verdicts import Visits
from perf.harness.intervals import of_mean

LEAST = 0.003
"""Share of the time: margins are no smaller."""

SAFETY = 2.0
"""Times what identical code moved by, since tomorrow's may move more."""

SHORTEST_S = 50e-6
"""Seconds, below which a row keeps what its class calls negligible."""

FEWEST = 3
"""Processes behind a margin."""


@dataclass(frozen=True)
class Sitting:
    """One A/A whose controls held."""

    when: str
    """UTC, as its file is named: 20261122T100207Z."""

    visits: Visits
    base_s: dict[str, float]
    words: dict[str, str]
    """Of times, what the gate said."""

    seconds: float
    """That it took."""

    def processes(self, key: str) -> list[list[float]]:
        """The row's visits, by process."""
        found: dict[int, list[float]] = {}
        for process, change in self.visits.get(key, ()):
            found.setdefault(process, []).append(change)
        return list(found.values())


def sittings(machine: str, records: Path | None = None) -> list[Sitting]:
    """Those on file, oldest first; what cannot be read, or keeps no visits, is none (the trust page names it)."""
    folder = (records or RECORDS) / machine
    found = []
    for path in sorted([*folder.glob("gate/*.json"), *folder.glob("self-test/*.json")], key=lambda path: path.name):
        try:
            sitting = _sitting(path.stem, json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
        if sitting:
            found.append(sitting)
    return found


def _sitting(when: str, document: dict[str, Any]) -> Sitting | None:
    if "parts" in document:
        part = next((one for one in document["parts"] if one["injection"] is None), None)
        verdicts, contaminated = (part["verdicts"], part["contaminated"]) if part else ((), "none")
    else:
        part, (verdicts, contaminated) = document, (document["judgement"][of] for of in ("verdicts", "contaminated"))
        if document["base"]["commit"] != document["head"]["commit"] or document["head_software"]:
            return None
    if part is None or contaminated or not part.get("visits"):
        return None
    times = [one for one in verdicts if one["quantity"] == "time" and one["base"]]
    return Sitting(
        when,
        {key: [(int(process), float(change)) for process, change in of] for key, of in part["visits"].items()},
        {one["key"]: float(one["base"]) for one in times},
        {one["key"]: str(one["word"]) for one in times},
        float(part["seconds"]),
    )


def seconds_each(found: Sequence[Sitting]) -> float | None:
    """What a process of a row has taken: its visits, and its share of what processes take to start."""
    count = sum(len(one.processes(key)) for one in found for key in one.visits)
    return sum(one.seconds for one in found) / count if count else None


def margins(found: Iterable[Sitting]) -> dict[str, float]:
    """By row, as a share: so many times what identical code moved by at most, and at least `LEAST`."""
    return {key: widened(float(np.expm1(most))) for key, most in moved(found).items()}


def moved(found: Iterable[Sitting]) -> dict[str, float]:
    """How far each row moved at most, as a log ratio: the `furthest` of its process means of all sittings together.

    A row of fewer than `FEWEST` processes is left out.
    """
    means: dict[str, list[float]] = {}
    for one in found:
        for key in one.visits:
            means.setdefault(key, []).extend(float(np.mean(visits)) for visits in one.processes(key))
    return {key: furthest(of) for key, of in means.items() if len(of) >= FEWEST}


def furthest(means: Sequence[float]) -> float:
    """The far end of the 95 % interval of a mean."""
    known = of_mean(means)
    return abs(known.value) + known.half


def widened(share: Any) -> Any:
    """The margin of rows that moved by so much at most."""
    return np.maximum(LEAST, SAFETY * share)
