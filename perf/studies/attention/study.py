"""Compare our attention with all others in PyTorch."""

import itertools
from pathlib import Path
from typing import Any

import click

from perf.harness.case import ClockName
from perf.options import Count, Named
from perf.studies.attention.ahead import compile_ahead
from perf.studies.attention.arms import Process
from perf.studies.attention.cells import CLOCKS, MASKS, Cell, cells_of, narrowed, peers_of
from perf.studies.attention.comparing import measure, start
from perf.studies.attention.groups import GROUPS, MODES, document_of, drawn, groups_of
from perf.studies.attention.results import NOT_MEASURED, answers, draw, shown, timed
from perf.studies.device import Device, device_kind
from perf.studies.document import conclude, heading, out_option, tiny_option, write_in_parts
from perf.studies.rows import Row
from perf.studies.speedups import FEWEST, Effort, effort_options
from perf.workloads.attention_impls import check_impl

_GROUPS = "\n".join(f"    {name:13}{group.asks}" for name, group in GROUPS.items())


@click.command(
    help=f"""Compare our attention with all others in PyTorch. Minutes a group on a GPU, "random" far more.

    \b
    python -m perf study attention --group leaderboard --out FOLDER
    python -m perf study attention --group grid --mode forward --mask full --against sdpa_cudnn
    python -m perf study attention --impl my_package.kernels:attend --group float32
    python -m perf study attention --group random --seed 1

    \b
{_GROUPS}

    For each cell ours and the others are built in one process from the same numbers, each compared with float64 (we do
    not time incorrect code), warmed up, and then sampled in turn, A B C C B A, so that drift of the machine affects
    each alike; then again in fresh processes, starting with another arm in each: three, and as many more as their
    scatter demands for a narrow 95 % interval of every speed-up. Before, the kernels of all cells are compiled, in up
    to sixteen processes. The clock is CUDA events with a cold L2, which excludes the host; "short" uses the wall clock
    with operands in L2, as the layer before leaves them (--clock cuda_graph: its kernels alone). An arm that cannot run
    (dtype, memory) is a row with its reason.

    NAME is an implementation of the benchmarks: triton, triton_compiled, pytorch, sdpa_cudnn, ... An attention of your
    own, module:function, is called as f(q, k, v, is_causal) and returns out, all (batch, heads, seq_len, d), for
    autograd to differentiate; in "gqa" k and v have fewer heads. Without a GPU tiny cells run, in half a minute.
    """
)
@tiny_option
@click.option("--group", "groups", multiple=True, type=click.Choice(tuple(GROUPS)), help="Default: all of them.")
@click.option("--seed", type=int, help="Of the group random. Default: 0.")
@click.option("--count", type=Count(), help="Problems of the group random. Default: 150; 8 if tiny.")
@click.option("--seq-len", "seq_lens", multiple=True, type=Count(), help="Only these of the groups' own.")
@click.option("--d", "dims", multiple=True, type=Count(), help="The same.")
@click.option("--mode", "modes", multiple=True, type=click.Choice(MODES), help="The same.")
@click.option("--mask", "masks", multiple=True, type=click.Choice(tuple(MASKS.values())), help="The same.")
@click.option(
    "--impl",
    "impls",
    multiple=True,
    type=Named(check_impl),
    help="Ours: NAME or module:function. Default: triton; pytorch on a CPU.",
)
@click.option(
    "--against",
    multiple=True,
    type=Named(check_impl),
    help="The others. Default: PyTorch's that take the dtype; eager where n is short.",
)
@click.option("--clock", type=click.Choice(tuple(CLOCKS)), help="Default: the group's. On a CPU the wall clock.")
@effort_options(rounds=20, processes=8, on_a_cpu=FEWEST)
@out_option
def command(
    size: str | None,
    groups: tuple[str, ...],
    seed: int | None,
    count: int | None,
    seq_lens: tuple[int, ...],
    dims: tuple[int, ...],
    modes: tuple[str, ...],
    masks: tuple[str, ...],
    impls: tuple[str, ...],
    against: tuple[str, ...],
    clock: ClockName | None,
    effort: Effort,
    out: Path,
) -> None:
    """Run the study; `help` describes it."""
    device = device_kind()
    if clock and device == "cpu":
        raise click.ClickException(f"--clock {clock} was given; allowed without a GPU: none, it is the wall clock")
    allowed = groups_of(device, tiny=bool(size))
    wanted = {name: allowed[name] for name in dict.fromkeys(groups or allowed)}
    try:
        wanted = drawn(wanted, seed=seed, count=count)
        cells = list(cells_of(wanted, clock))
        cells = narrowed(cells, group=groups, seq_len=seq_lens, d=dims, mode=modes, mask=masks)
        plan = {cell: rows_of(cell, impls or wanted[cell.group].ours, against, device) for cell in cells}
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    rows = list(itertools.chain.from_iterable(plan.values()))
    with Process(device) as process:
        whole = start(process, rows)
        compile_ahead(plan, device)
        write_in_parts((documents_of(whole, out) for _ in measure(process, plan, effort)), timed)
    click.echo(heading(whole))
    conclude([*shown(rows), *answers(rows, effort.half_width)])
    draw(rows, out, heading(whole))


def documents_of(whole: dict[str, Any], folder: Path) -> dict[Path, dict[str, Any]]:
    """Return the path of each document with its rows."""
    documents: dict[str, list[Row]] = {}
    for row in whole["rows"]:
        documents.setdefault(document_of(row["group"]), []).append(row)
    return {folder / f"{name}.json": whole | {"rows": rows} for name, rows in documents.items()}


def rows_of(cell: Cell, impls: tuple[str, ...], against: tuple[str, ...], device: Device) -> list[Row]:
    """Return a row for each arm of a cell, ours first. Raises `ValueError` for an arm on both sides."""
    for both in set(impls) & set(against):
        raise ValueError(f"{both!r} was given as --impl and as --against; allowed: as one of them")
    others = against or tuple(impl for impl in peers_of(cell, device) if impl not in impls)
    if not others:
        raise ValueError(f"--impl {', '.join(impls)} was given; allowed: with --against, as no other takes the cell")
    arms = [*dict.fromkeys((impl, "ours") for impl in impls), *dict.fromkeys((impl, "against") for impl in others)]
    return [cell.axes() | {"impl": impl, "role": role, "status": NOT_MEASURED, "samples_s": []} for impl, role in arms]
