"""Tabulate the simulated error and detection rates of the gate beside those of other rules."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from perf.gate import aa_runs, other_tools, recorded_noise, simulation
from perf.gate.disturbances import STRUCTURES
from perf.gate.evidence import DEVICE_CLOCKS
from perf.gate.measuring import VISITS
from perf.gate.rate import Rate
from perf.gate.recorded_noise import Noise
from perf.gate.simulation import Detection
from perf.gate.variance import Floats

Table = tuple[str, list[dict[str, str]]]
"""Title, and rows that map column to text."""

REPORTS = 1000
MAX_KINDS = 12
"""Maximum number of kinds with a line each; more are grouped."""

SLOW_DOWNS = (0.005, 0.01, 0.02, 0.05)


Step = Callable[[int, str], None]
"""Is called with 1 and its name after each line of a table."""


def recorded() -> list[tuple[str, Noise]]:
    """Return what reports are drawn from, by name."""
    noises = [("noise study", recorded_noise.noise_study()), ("another day", recorded_noise.another_day())]
    on_file = recorded_noise.on_file()
    return [*noises, ("all on file", on_file)] if on_file else noises


def lines(noises: list[tuple[str, Noise]]) -> int:
    """Return the number of lines of the tables that have to be simulated."""
    return len(noises) * (len(SLOW_DOWNS) + len(STRUCTURES) + 1) + len(OTHERS) * len(OTHER_ROWS)


def tables(noises: list[tuple[str, Noise]], step: Step, reports: int = REPORTS, visits: int = VISITS) -> list[Table]:
    """Simulate all tables in about five minutes: `reports` of 200 rows per line, `visits` per process."""
    fewer = max(reports // 5, 1)
    slowed = [(day, noise, _SlowDowns.simulated(noise, reports, visits, step)) for day, noise in noises]
    return [
        (
            f"Identical code: {reports} reports of {simulation.ROWS} rows, and those with a row falsely reported",
            [row for day, noise in noises for row in _false_alarms(day, noise, reports, visits, step)],
        ),
        (
            f"One slower row in a report of {simulation.PR_ROWS}: rate at which it is reported as SLOWER",
            [row for day, noise, detected in slowed for row in detected.rows(day, noise)],
        ),
        (
            f"Cost of such a report of {simulation.PR_ROWS} rows",
            [row for day, _, detected in slowed for row in detected.costs(day)],
        ),
        (f"Other rules on one process per commit, one after the other: {fewer} reports", _others(fewer, step)),
        ("A/A runs on record, beside the rates above", _on_record()),
    ]


def _false_alarms(day: str, noise: Noise, reports: int, visits: int, step: Step) -> list[dict[str, str]]:
    rows = []
    for structure in STRUCTURES:
        judged = simulation.identical_code(noise, reports, structure, visits=visits)
        strict = (
            simulation.identical_code(noise, reports, structure, strict=True, visits=visits)
            if structure.exact
            else None
        )
        rows.append(
            {
                "noise": day,
                "structure": structure.name,
                "false SLOWER": _at_most(judged.slower),
                "false FASTER": _at_most(judged.faster),
                "with floors of 0": _at_most(strict.slower) if strict else "",
                "rows SAME": f"{100 * judged.same:.1f} %",
                "processes per row": f"{judged.processes:.1f}",
            }
        )
        step(1, structure.name)
    naive = simulation.identical_code(noise, reports, STRUCTURES[1], rule=simulation.t_test_per_row, visits=visits)
    name = "instead a t-test per row, beyond the floor"
    step(1, name)
    return [*rows, {"noise": day, "structure": name, "false SLOWER": _at_most(naive.slower)}]


@dataclass(frozen=True)
class _SlowDowns:
    """Detection rates and costs of slow-downs by size."""

    by_size: dict[float, Detection]
    detectable: Floats

    @staticmethod
    def simulated(noise: Noise, reports: int, visits: int, step: Step) -> "_SlowDowns":
        by_size = {}
        for by in SLOW_DOWNS:
            by_size[by] = simulation.detection(noise, reports, by, visits=visits)
            step(1, f"slow-downs of {100 * by:g} %")
        return _SlowDowns(by_size, simulation.min_detectable(noise, visits=visits))

    def rows(self, day: str, noise: Noise) -> list[dict[str, str]]:
        """Return a line per kind, or per clock and margin if there are many kinds."""
        if len(noise.kinds) <= MAX_KINDS:
            groups = {kind: [i] for i, kind in enumerate(noise.kinds)}
        else:
            groups = {name: [i for i in range(len(noise.kinds)) if _group(noise, i) == name] for name in _groups(noise)}
        return [
            {
                "noise": day,
                "kind of row": name,
                "SD of a visit": _percents([noise.visit_sd[i] for i in of]),
                "negligible": _percents([np.expm1(noise.floors()[i]) for i in of]),
                "min. detectable": _percents([self.detectable[i] for i in of]),
            }
            | {f"{100 * by:g} %": _at_least(self._rate(by, [noise.kinds[i] for i in of])) for by in self.by_size}
            for name, of in groups.items()
        ]

    def _rate(self, by: float, kinds: list[str]) -> Rate:
        rates = [self.by_size[by].rates[kind] for kind in kinds]
        return Rate(sum(rate.hits for rate in rates), sum(rate.of for rate in rates))

    def costs(self, day: str) -> list[dict[str, str]]:
        """Return processes per row, and minutes at the cost of a process in the A/A runs on record."""
        seconds = aa_runs.seconds_per_process(aa_runs.recorded(recorded_noise.MACHINE))
        return [
            {
                "noise": day,
                "slower by": f"{100 * by:g} %",
                "processes per row": f"{detected.processes:.1f}",
                "minutes": f"{detected.processes * simulation.PR_ROWS * seconds / 60:.1f}" if seconds else "",
            }
            for by, detected in self.by_size.items()
        ]


def _group(noise: Noise, kind: int) -> str:
    clock = "host-bound" if noise.clocks[kind] not in DEVICE_CLOCKS else "on the device"
    if noise.base_s[kind] < aa_runs.MIN_BASE_S:
        return f"{clock}, below {1e6 * aa_runs.MIN_BASE_S:g} us"
    return f"{clock}, {'with' if np.isfinite(noise.moved[kind]) else 'without'} a margin of its own"


def _groups(noise: Noise) -> list[str]:
    return sorted({_group(noise, i) for i in range(len(noise.kinds))})


def _percents(shares: list[float]) -> str:
    """Format shares as "0.7 %", or as a range."""
    low, high = (f"{100 * of(shares):.2f}" for of in (min, max))
    return f"{low} %" if low == high else f"{low} to {high} %"


def _on_record() -> list[dict[str, str]]:
    """Return a line per A/A run on record: rows falsely reported as SLOWER or FASTER."""
    return [
        {
            "A/A run": run.when,
            "rows": str(len(run.words)),
            "false SLOWER": _at_most(Rate(sum(word == "SLOWER" for word in run.words.values()), len(run.words))),
            "false FASTER": str(sum(word == "FASTER" for word in run.words.values())),
            "": "contradicts" if {"SLOWER", "FASTER"} & set(run.words.values()) else "",
        }
        for run in aa_runs.recorded(recorded_noise.MACHINE)
        if run.words
    ]


OTHERS: dict[str, other_tools.Rule] = {
    "asv compare (factor 1.1)": other_tools.asv_compare,
    "asv compare --factor 1.01": partial(other_tools.asv_compare, factor=1.01),
    "t-test at 5 %": other_tools.t_test,
    "t-test at 5 %, beyond 1 %": partial(other_tools.t_test, floor=np.log(1.01)),
}
OTHER_ROWS = {"8 kinds of rows": "", "without the host-bound one": "host-bound"}
"""Name -> word of the kinds of rows that are left out."""


def _others(reports: int, step: Step) -> list[dict[str, str]]:
    every = other_tools.OneArm.recorded()
    rows = []
    for name, left_out in OTHER_ROWS.items():
        noise = every.without(left_out) if left_out else every
        for rule_name, rule in OTHERS.items():
            rates = {by: other_tools.detected_one_after_another(noise, reports, by, rule) for by in SLOW_DOWNS}
            rows.append(
                {
                    "rule": rule_name,
                    "rows": name,
                    "false SLOWER": _at_most(other_tools.one_after_another(noise, reports, rule)),
                }
                | {f"{100 * by:g} %": _of_all(rates[by]) for by in SLOW_DOWNS}
            )
            step(1, rule_name)
    return rows


def _at_most(rate: Rate) -> str:
    return f"{rate.hits} of {rate.of}: {100 * rate.share:.2f} %, below {100 * rate.upper:.2f} %"


def _at_least(rate: Rate) -> str:
    if not rate.of:
        return ""
    return f"{rate.hits} of {rate.of}: above {100 * rate.lower:.1f} %"


def _of_all(rates: dict[str, Rate]) -> str:
    shares = sorted(rate.share for rate in rates.values())
    return f"{100 * sum(shares) / len(shares):.0f} % of rows ({100 * shares[0]:.0f} to {100 * shares[-1]:.0f} by kind)"
