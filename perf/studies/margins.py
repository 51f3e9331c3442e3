"""Measure how near correct code comes to the bounds of its check, for every case of attention, without timing."""

import gc
import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import click

from perf import units
from perf.harness.case import Case
from perf.harness.device import missing_device
from perf.harness.suite import cases_of
from perf.options import Count
from perf.selection import sound_classes
from perf.studies.document import tiny_option
from perf.studies.progress import progress
from perf.studies.rows import Row
from perf.tables import text_table
from perf.workloads import build
from perf.workloads.attention_check import Bound, every_bound
from perf.workloads.workload import Unavailable

WORKLOADS = ("attention", "attention_leaderboard")


class Checked(NamedTuple):
    """The result of checking one case."""

    case: Case
    bounds: list[Bound]
    reason: str
    """The reason why it could not be checked, or ""."""


@click.command()
@tiny_option
@click.option("-b", "--bench", "prefix", help="Classes whose names begin so. Default: attention.; smoke. if tiny.")
@click.option("--max-seq-len", type=Count(), default=16384, show_default=True, help="Leave longer sequences out.")
@click.option("--sample", type=Count(), metavar="N", help="N cases, drawn at random, instead of all.")
def command(size: str | None, prefix: str | None, max_seq_len: int, sample: int | None) -> None:
    """Measure how near correct code comes to its bounds: the worst of each implementation, dtype and bound.

    Builds and checks every case of attention in this process, without timing it: shares of the allowed error, by row,
    slope, RMS, and row where the last keys dominate. A case with a share above 1 is refused. Cases that differ only in
    their clock are checked once.
    """
    prefix = prefix or ("smoke." if size else "attention.")
    cases = selected(prefix, max_seq_len)
    if not cases:
        raise click.ClickException(f"no case of attention is in a class {prefix!r} with {max_seq_len} tokens at most")
    if sample:
        cases = sorted(random.Random(0).sample(cases, min(sample, len(cases))), key=_by_problem)
    results = [checked(case) for case in progress(cases, unit="case")]
    click.echo(text_table(table(results)))
    for case, bounds, reason in results:
        if reason:
            click.echo(f"{case.key}: {reason}")
        for bound in bounds:
            if not bound.share <= 1:
                click.echo(f"REFUSED {case.key}: {bound}")
    refused = sum(any(not bound.share <= 1 for bound in result.bounds) for result in results)
    unchecked = sum(bool(result.reason) for result in results)
    click.echo(f"{units.counted(len(results), 'case')}: {refused} refused, {unchecked} not checked")


def selected(prefix: str, max_seq_len: int) -> list[Case]:
    """Return cases of attention, sorted by problem, because the oracle caches one problem."""
    cases: dict[tuple[Any, ...], Case] = {}
    for name, cls in sound_classes():
        if not name.startswith(prefix) or cls.workload not in WORKLOADS:
            continue
        for case in cases_of(cls()):
            if case.params["seq_len"] <= max_seq_len:
                cases.setdefault((case.workload, case.device, repr(sorted(case.params.items()))), case)
    return sorted(cases.values(), key=_by_problem)


def checked(case: Case) -> Checked:
    """Return every bound on a case, or the reason why it cannot be checked here."""
    import torch

    if reason := missing_device(case.device):
        return Checked(case, [], reason)
    try:
        with every_bound() as bounds:
            work = build(case.workload, case.params, case.device)
            work.prepare()
            work.run()
            work.check()
    except Unavailable as unavailable:
        reason = str(unavailable)
    except torch.OutOfMemoryError:
        reason = "out of memory"
    if (
        torch.cuda.is_available()
        and torch.cuda.memory_reserved() > torch.cuda.get_device_properties(0).total_memory / 2
    ):
        gc.collect()
        torch.cuda.empty_cache()
    return Checked(case, [] if reason else bounds, reason)


def table(results: Sequence[Checked]) -> list[Row]:
    """Return a row for each implementation and dtype: the largest share of each bound, with its case and tensor."""
    groups: dict[tuple[str, str], list[Checked]] = {}
    for result in results:
        if result.bounds:
            groups.setdefault((result.case.params["impl"], result.case.params["dtype"]), []).append(result)
    return [
        {"impl": impl, "dtype": dtype, "cases": len(group)} | dict(_worst(group))
        for (impl, dtype), group in sorted(groups.items())
    ]


def _worst(group: Sequence[Checked]) -> Iterator[tuple[str, str]]:
    columns: dict[str, tuple[Bound, Case]] = {}
    for case, bounds, _ in group:
        for bound in bounds:
            name = bound.what if bound.keys == "random" else f"{bound.what}, last keys"
            if name not in columns or not bound.share <= columns[name][0].share:
                columns[name] = bound, case
    for name, (bound, case) in columns.items():
        params = case.params
        mask = "causal" if params.get("is_causal", True) else "full"
        where = f"{bound.tensor}, {params['seq_len']} x {params['d']} {mask}"
        yield name, f"{bound.share:.2f} ({bound.error:.1e}: {where})"


def _by_problem(case: Case) -> tuple[str, ...]:
    apart = ("impl", "mode", "clock")
    problem = {name: value for name, value in case.params.items() if name not in apart}
    return case.device, case.workload, repr(sorted(problem.items())), case.key
