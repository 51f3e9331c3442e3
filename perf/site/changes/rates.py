"""Error rates of the change detector on simulated histories, with and without one step.

`python -m perf.site.changes.rates` prints the rates for 40 and for 12 commits, and writes those of the Trust page to
`rates.json`. It takes two minutes. The rates depend only on the ratio of step to noise: a step of 10 % with 2 % noise
is as detectable as a step of 1.5 % with 0.3 % noise.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from perf.files import write_aside
from perf.gate.rate import Rate
from perf.site.changes.finder import find
from perf.site.changes.models import NoiseModel, flat, hidden

KEPT = Path(__file__).with_suffix(".json")

COMMITS = 40
NOISE = 0.02
SIZES = (0.05, 0.1, 0.15)
"""Sizes of a step: after / before - 1."""

AFTER = (2, 3, 5, 10)
"""Commits at the new level."""


@dataclass(frozen=True)
class Detection:
    """Detection rates of one step, of our detector and of asv's."""

    size: float
    after: int
    ours: Rate
    asvs: Rate


@dataclass(frozen=True)
class Rates:
    """Error rates of the detector on histories of `COMMITS` commits."""

    flat: Sequence[tuple[str, Rate]]
    """Model of the noise, and the rate of histories with a false change."""

    hidden: Sequence[tuple[str, Rate]]
    """The same for noise that the numbers alone do not tell from a change."""

    found: Sequence[Detection]


def rates(independent: int = 2000, dependent: int = 1000, with_a_step: int = 400, of_asv: int = 20) -> Rates:
    """Simulate the rates. Deterministic; takes a minute. The first two models of `flat` have independent noise."""
    models = flat()
    return Rates(
        [(one.words, false(one, independent if at < 2 else dependent)) for at, one in enumerate(models)],
        [(one.words, false(one, dependent)) for one in hidden()],
        [found(size, after, with_a_step, of_asv) for size in SIZES for after in AFTER],
    )


def kept() -> Rates:
    """Load the rates on file, so that publishing need not simulate."""
    of = json.loads(KEPT.read_text(encoding="utf-8"))
    return Rates(
        [(words, Rate(**rate)) for words, rate in of["flat"]],
        [(words, Rate(**rate)) for words, rate in of["hidden"]],
        [Detection(one["size"], one["after"], Rate(**one["ours"]), Rate(**one["asvs"])) for one in of["found"]],
    )


def false(model: NoiseModel, histories: int, commits: int = COMMITS) -> Rate:
    """Return the rate of histories with a false change. Deterministic; each model has its own seed."""
    import numpy as np

    rng = np.random.default_rng([commits, *model.words.encode()])
    known = model.sessions(commits) if model.sessions else None
    drawn = (np.exp(NOISE * model.draw(commits, rng)) for _ in range(histories))
    return Rate(sum(bool(_ours(one, known)) for one in drawn), histories)


def found(size: float, after: int, ours: int, asvs: int, commits: int = COMMITS) -> Detection:
    """Return the detection rate of a step, at most one commit off. Deterministic."""
    import numpy as np

    rng = np.random.default_rng([commits, after, round(1e6 * size)])
    at = commits - after
    drawn = np.exp(NOISE * rng.standard_normal((ours, commits)) + math.log1p(size) * (np.arange(commits) >= at))
    finders: list[tuple[Callable[[Any], list[int]], int]] = [(_ours, ours), (_asvs, asvs)]
    hits = [sum(_near(at, finder(one)) for one in drawn[:most]) for finder, most in finders]
    return Detection(size, after, Rate(hits[0], ours), Rate(hits[1], asvs))


def _near(at: int, starts: Sequence[int]) -> bool:
    """Whether a step is at most one commit off, since noise can move it by one."""
    return any(abs(start - at) <= 1 for start in starts)


def _ours(values: Any, sessions: list[int] | None = None) -> list[int]:
    return [one.index for one in find(values, negligible=0.0, sessions=sessions).steps if not one.alone]


def _asvs(values: Any) -> list[int]:
    from asv.step_detect import detect_steps

    return [start for start, *_ in detect_steps(values.tolist(), [None] * len(values))[1:]]


def _main(histories: int = 1000) -> None:
    write_aside(KEPT, json.dumps(asdict(rates()), indent=1) + "\n")
    print(f"histories without a change in which one is found, of {histories}: 40 commits, 12 commits")
    for model in [*flat(), *hidden()]:
        print(*(f"{false(model, histories, commits).share:7.1%}" for commits in (40, 12)), model.words, flush=True)
    print("steps found where commits scatter by 2 %, of 1000; of asv's own finder, of 100")
    for commits, after in ((40, 3), (40, 20), (12, 3), (12, 6)):
        for size in SIZES:
            one = found(size, after, 1000, 100, commits)
            print(f"{one.ours.share:7.1%}{one.asvs.share:7.0%} {size:.0%}, {after} of {commits} commits after it")


if __name__ == "__main__":
    _main()
