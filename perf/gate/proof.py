"""The gate's own proof, by simulation: how often it is wrong, how often it finds what is there, and who does worse."""

from dataclasses import dataclass

import numpy as np

from perf.gate import identical, sequential, simulation
from perf.gate.evidence import DEVICE_CLOCKS
from perf.gate.rate import Rate
from perf.gate.simulation import STRUCTURES, VISITS, Found, Noise
from perf.gate.statistics import Floats

Table = tuple[str, list[dict[str, str]]]
"""A title, and rows: column -> text."""

REPORTS = 1000
MOST_KINDS = 12
"""That have a line each."""

SLOW_DOWNS = (0.005, 0.01, 0.02, 0.05)


def tables(reports: int = REPORTS, visits: int = VISITS, seed: int = 0) -> list[Table]:
    """All of it, in five minutes: `reports` of 200 rows for every line, `visits` of each process."""
    fewer = max(reports // 5, 1)
    noises = [("noise study", simulation.tuned_on()), ("another day", simulation.another_day())]
    if on_file := simulation.on_file():
        noises.append(("all on file", on_file))
    found = [(day, noise, _Detection.simulated(noise, reports, visits, seed)) for day, noise in noises]
    return [
        (
            f"Identical code: reports of {simulation.ROWS} rows with a false SLOWER, of {reports}",
            [row for day, noise in noises for row in _false_alarms(day, noise, reports, visits, seed)],
        ),
        (
            f"One slower row in a report of {simulation.FEWER_ROWS}: how often it is called SLOWER",
            [row for day, noise, detection in found for row in detection.rows(day, noise)],
        ),
        (
            f"What such a report of {simulation.FEWER_ROWS} rows costs",
            [row for day, _, detection in found for row in detection.costs(day)],
        ),
        (
            f"Others, who see one process of each commit after the other: of {fewer} reports",
            _others(fewer, seed),
        ),
        ("Identical code on file, beside what is promised above", _on_file()),
    ]


def _false_alarms(day: str, noise: Noise, reports: int, visits: int, seed: int) -> list[dict[str, str]]:
    rows = []
    for structure in STRUCTURES:
        judged = simulation.identical_code(noise, reports, structure, visits=visits, seed=seed)
        strict = (
            simulation.identical_code(noise, reports, structure, strict=True, visits=visits, seed=seed)
            if structure.exact
            else None
        )
        rows.append(
            {
                "noise": day,
                "structure": structure.name,
                "false SLOWER": _at_most(judged.false_alarms),
                "false FASTER": _at_most(judged.false_gains),
                "with floors of 0": _at_most(strict.false_alarms) if strict else "",
                "rows SAME": f"{100 * judged.same:.1f} %",
                "processes a row": f"{judged.processes:.1f}",
            }
        )
    naive = simulation.identical_code(
        noise, reports, STRUCTURES[1], rule=simulation.every_row_for_itself, visits=visits, seed=seed
    )
    rows.append(
        {
            "noise": day,
            "structure": "a t-test a row instead, beyond the floor",
            "false SLOWER": _at_most(naive.false_alarms),
        }
    )
    return rows


@dataclass(frozen=True)
class _Detection:
    """Of slow-downs, what is found, and at what cost."""

    by_size: dict[float, Found]
    visible: Floats

    @staticmethod
    def simulated(noise: Noise, reports: int, visits: int, seed: int) -> "_Detection":
        return _Detection(
            {by: simulation.found(noise, reports, by, visits=visits, seed=seed) for by in SLOW_DOWNS},
            simulation.visible(noise, visits=visits, seed=seed),
        )

    def rows(self, day: str, noise: Noise) -> list[dict[str, str]]:
        """A line for each kind; of many kinds, for those of each clock and each margin together."""
        if len(noise.kinds) <= MOST_KINDS:
            groups = {kind: [i] for i, kind in enumerate(noise.kinds)}
        else:
            groups = {name: [i for i in range(len(noise.kinds)) if _group(noise, i) == name] for name in _groups(noise)}
        return [
            {
                "noise": day,
                "kind of row": name,
                "SD of a visit": _percents([noise.visit_sd[i] for i in of]),
                "negligible": _percents([np.expm1(noise.floors()[i]) for i in of]),
                "visible from": _percents([self.visible[i] for i in of]),
            }
            | {f"{100 * by:g} %": _at_least(self._rate(by, [noise.kinds[i] for i in of])) for by in self.by_size}
            for name, of in groups.items()
        ]

    def _rate(self, by: float, kinds: list[str]) -> Rate:
        rates = [self.by_size[by].rates[kind] for kind in kinds]
        return Rate(sum(one.hits for one in rates), sum(one.of for one in rates))

    def costs(self, day: str) -> list[dict[str, str]]:
        """Processes a row, and minutes by what one has taken in the A/A on file."""
        seconds = identical.seconds_each(identical.sittings(simulation.MACHINE))
        return [
            {
                "noise": day,
                "slower by": f"{100 * by:g} %",
                "processes a row": f"{found.processes:.1f}",
                "minutes": f"{found.processes * simulation.FEWER_ROWS * seconds / 60:.1f}" if seconds else "",
            }
            for by, found in self.by_size.items()
        ]


def _group(noise: Noise, kind: int) -> str:
    clock = "host-bound" if noise.clocks[kind] not in DEVICE_CLOCKS else "on the device"
    if noise.base_s[kind] < identical.SHORTEST_S:
        return f"{clock}, below {1e6 * identical.SHORTEST_S:g} us"
    return f"{clock}, {'with' if np.isfinite(noise.moved[kind]) else 'without'} a margin of its own"


def _groups(noise: Noise) -> list[str]:
    return sorted({_group(noise, i) for i in range(len(noise.kinds))})


def _percents(shares: list[float]) -> str:
    """ "0.7 %", or from the least to the most."""
    low, high = (f"{100 * of(shares):.2f}" for of in (min, max))
    return f"{low} %" if low == high else f"{low} to {high} %"


def _on_file() -> list[dict[str, str]]:
    """Of every A/A that keeps its visits: rows called slower or faster, which none is."""
    return [
        {
            "A/A of": one.when,
            "rows": str(len(one.words)),
            "false SLOWER": _at_most(Rate(sum(word == "SLOWER" for word in one.words.values()), len(one.words))),
            "false FASTER": str(sum(word == "FASTER" for word in one.words.values())),
            "": "contradicts" if {"SLOWER", "FASTER"} & set(one.words.values()) else "",
        }
        for one in identical.sittings(simulation.MACHINE)
        if one.words
    ]


def _others(reports: int, seed: int) -> list[dict[str, str]]:
    every = sequential.OneArm.recorded()
    rows = []
    for name, noise in (("8 kinds of rows", every), ("without the host-bound one", every.without("host-bound"))):
        for rule_name, rule in (
            ("asv compare (factor 1.1)", sequential.asv_compare),
            ("asv compare --factor 1.01", sequential.asv_compare_at_one_percent),
            ("t-test at 5 %", sequential.t_test),
            ("t-test at 5 %, beyond 1 %", sequential.t_test_beyond_one_percent),
        ):
            found = {by: sequential.found_one_after_another(noise, reports, by, rule, seed) for by in SLOW_DOWNS}
            rows.append(
                {
                    "rule": rule_name,
                    "rows": name,
                    "false SLOWER": _at_most(sequential.one_after_another(noise, reports, rule, seed=seed)),
                }
                | {f"{100 * by:g} %": _of_all(found[by]) for by in SLOW_DOWNS}
            )
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
