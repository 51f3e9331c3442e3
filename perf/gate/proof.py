"""The gate's own proof, by simulation: how often it is wrong, how often it finds what is there, and who does worse."""

from perf.gate import sequential, simulation
from perf.gate.rate import Rate
from perf.gate.simulation import STRUCTURES, VISITS, Noise

Table = tuple[str, list[dict[str, str]]]
"""A title, and rows: column -> text."""

REPORTS = 1000
SLOW_DOWNS = (0.01, 0.02, 0.05)


def tables(reports: int = REPORTS, visits: int = VISITS, seed: int = 0) -> list[Table]:
    """All of it, in five minutes: `reports` of 200 rows for every line, `visits` of each process."""
    fewer = max(reports // 5, 1)
    noises = (("noise study", simulation.tuned_on()), ("another day", simulation.another_day()))
    return [
        (
            f"Identical code: reports of {simulation.ROWS} rows with a false SLOWER, of {reports}",
            [row for day, noise in noises for row in _false_alarms(day, noise, reports, visits, seed)],
        ),
        (
            f"One slower row in a report: how often it is called SLOWER within {max(simulation.LOOKS)} processes",
            [row for day, noise in noises for row in _found(day, noise, reports, visits, seed)],
        ),
        (
            f"Others, who see one process of each commit after the other: of {fewer} reports",
            _others(fewer, seed),
        ),
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


def _found(day: str, noise: Noise, reports: int, visits: int, seed: int) -> list[dict[str, str]]:
    rates = {by: simulation.found(noise, reports, by, visits=visits, seed=seed) for by in SLOW_DOWNS}
    visible = simulation.visible(noise, visits=visits, seed=seed)
    return [
        {
            "noise": day,
            "kind of row": kind,
            "SD of a visit": f"{100 * noise.visit_sd[i]:.2f} %",
            "negligible": f"{100 * noise.floors[i]:.1f} %",
            "smallest visible": f"{100 * visible[i]:.1f} %",
        }
        | {f"{by:.0%} found": _at_least(rates[by][kind]) for by in SLOW_DOWNS}
        for i, kind in enumerate(noise.kinds)
    ]


def _others(reports: int, seed: int) -> list[dict[str, str]]:
    every = sequential.OneArm.recorded()
    rows = []
    for name, noise in (("8 kinds of rows", every), ("without the host-bound one", every.without("host-bound"))):
        for rule_name, rule in (
            ("asv compare (factor 1.1)", sequential.asv_compare),
            ("asv compare --factor 1.01", sequential.asv_compare_at_one_percent),
            ("t-test at 5 %", sequential.t_test),
        ):
            found = {by: sequential.found_one_after_another(noise, reports, by, rule, seed) for by in SLOW_DOWNS}
            rows.append(
                {
                    "rule": rule_name,
                    "rows": name,
                    "false SLOWER": _at_most(sequential.one_after_another(noise, reports, rule, seed=seed)),
                }
                | {f"{by:.0%} found": _of_all(found[by]) for by in SLOW_DOWNS}
            )
    return rows


def _at_most(rate: Rate) -> str:
    return f"{rate.hits} of {rate.of}: {100 * rate.share:.2f} %, below {100 * rate.upper:.2f} %"


def _at_least(rate: Rate) -> str:
    return f"{rate.hits} of {rate.of}: above {100 * rate.lower:.1f} %"


def _of_all(rates: dict[str, Rate]) -> str:
    shares = sorted(rate.share for rate in rates.values())
    return f"{100 * sum(shares) / len(shares):.0f} % of rows ({100 * shares[0]:.0f} to {100 * shares[-1]:.0f} by kind)"
