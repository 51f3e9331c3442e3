"""Evidence with a known change and scatter, for the tests of what judges it."""

import numpy as np

from perf.gate.evidence import Evidence, Outcome, PairedVisit
from perf.gate.inference import LOOKS
from perf.harness.case import Case

OK = Outcome("ok", peak_bytes=2**20)


def evidence(name, change=0.0, *, processes=None, visits=6, sd=0.001, effect=0.0, seed=0, **options):
    """A row of 1 ms: `change` a log ratio; `sd` of a visit, `effect` of a process.

    Processes are by default those of the first look; of a row that changed, those of the last.
    """
    processes = LOOKS[-1 if change else 0] if processes is None else processes
    rng = np.random.default_rng([seed, *map(ord, name)])
    case = Case(
        benchmark="attention.FlashAttention",
        workload="attention",
        params={"row": name},
        device="cuda",
        clock=options.pop("clock", "cuda_events"),
        cache="cold",
        timed=options.pop("timed", True),
    )
    base, head = options.pop("base", OK), options.pop("head", OK)
    mhz = options.pop("mhz", (None, None))
    taken = []
    for process in range(processes):
        of_process = change + effect * rng.normal()
        for visit in range(visits):
            ratio = np.exp(of_process + sd * rng.normal())
            base_s = 1e-3 * np.exp(0.001 * rng.normal(size=8))
            taken.append(PairedVisit(process, visit, tuple(base_s), tuple(base_s * ratio), *mhz))
    outcomes = {arm: outcome for arm, outcome in (("base", base), ("head", head)) if outcome}
    one = Evidence(case, options.pop("negligible", (0.01, 1e-7)), options.pop("is_control", False), outcomes, taken)
    one.trouble = options.pop("trouble", "")
    one.margin, one.is_drawn = options.pop("margin", None), options.pop("is_drawn", False)
    assert not options
    return one


def rows(count=20, **options):
    return [evidence(f"row {i}", **options) for i in range(count)]


def word_of(judgement, name, quantity="time"):
    (found,) = [one for one in judgement.verdicts if f"'{name}'" in one.key and one.quantity == quantity]
    return found
