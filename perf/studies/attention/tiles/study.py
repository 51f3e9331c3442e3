"""In which tiles are our kernels the fastest on this GPU?"""

import itertools
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from perf.options import Count
from perf.studies.attention.arms import Process
from perf.studies.attention.cells import MASKS, narrowed
from perf.studies.attention.comparing import measure, start
from perf.studies.attention.groups import drawn, groups_of
from perf.studies.attention.results import NOT_MEASURED
from perf.studies.attention.tiles.compiling import compile_all
from perf.studies.attention.tiles.kernels import (
    TOO_SLOW,
    TileCell,
    candidates_of,
    cells_of,
    checked,
    problems_of,
    shape_of,
)
from perf.studies.attention.tiles.results import shown, verdicts
from perf.studies.device import Device, device_kind
from perf.studies.document import conclude, heading, out_option, tiny_option, write_in_parts
from perf.studies.fresh_process import FreshProcess
from perf.studies.rows import Row
from perf.studies.speedups import FEWEST, Effort, effort_options
from perf.workloads.attention import problem_of
from perf.workloads.attention_kernels import KERNELS
from perf.workloads.attention_launches import WAYS
from perf.workloads.attention_tiles import choice
from perf.workloads.workload import Unavailable

DRAWN = 200
MAX_WORKERS = 32  # each has a context on the GPU, half a GiB
_KERNELS = "\n".join(f"    {name:18}{kernel.table}" for name, kernel in KERNELS.items())
_FORMS = "\n".join(f"    {name:18}{kernel.form}" for name, kernel in KERNELS.items())


@click.command(
    help=f"""In which tiles are our attention kernels the fastest on this GPU?

    \b
    python -m perf study tiles --kernel dq --d 128 --dtype bfloat16 --out FOLDER
    python -m perf study tiles --kernel forward --d 64 --cell 4x16x2048 --mask full
    python -m perf study tiles --kernel split --candidate 64x64x4x3x4 --candidate 64x64x4x3x8
    python -m perf study tiles --seed 1

    The tables of tiles.py and hopper_tables.py in cs336_systems/attention, and the
    kernel that goes by each:

    \b
{_KERNELS}

    First all candidates are compiled in parallel; one that does not compile or fit the GPU is a row with its reason.
    Then each is launched in each cell without autograd, compared with float64, and sampled in turn with the present
    choice and all others, by CUDA events with a cold L2; one whose first sample takes {TOO_SLOW} times as long as the
    fastest is too slow to go on. Three processes give speed-ups their intervals. A sentence for each entry says whether
    another candidate is faster over all its cells; changing the table is up to you.

    --seed draws problems on which the whole choice of kernels is held against each of our kernels, and says how much
    slower than the fastest of them it is at worst.

    All tables together are thousands of kernels to compile: begin with one entry. Without a GPU tiny cells run in
    Triton's interpreter, in seconds. A candidate is written as

    \b
{_FORMS}
    """
)
@tiny_option
@click.option("--kernel", "names", multiple=True, type=click.Choice(tuple(KERNELS)), help="Default: all that run here.")
@click.option("--d", "dims", multiple=True, type=click.IntRange(16, 256), help="Instead of the kernels' own.")
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice(("bfloat16", "float32")), help="Of these alone.")
@click.option(
    "--mask", "masks", multiple=True, type=click.Choice(tuple(MASKS.values())), help="Default: causal; both if drawn."
)
@click.option("--cell", "shapes", multiple=True, help="batch x heads x seq_len, as 2x16x16384. Default: the kernel's.")
@click.option("--seed", type=int, help="Draw the cells of forward-choice and backward-choice instead.")
@click.option("--count", type=Count(), help=f"Problems that --seed draws. Default: {DRAWN}; 8 if tiny.")
@click.option("--candidate", "candidates", multiple=True, help="As above. Default: dozens, a few values of each.")
@click.option("--workers", type=Count(), help=f"Compilers at once. Default: cores, or {MAX_WORKERS}.")
@effort_options(rounds=20, processes=FEWEST, on_a_cpu=FEWEST, half_width=0.01)
@out_option
def command(
    size: str | None,
    names: tuple[str, ...],
    dims: tuple[int, ...],
    dtypes: tuple[str, ...],
    masks: tuple[str, ...],
    shapes: tuple[str, ...],
    seed: int | None,
    count: int | None,
    candidates: tuple[str, ...],
    workers: int | None,
    effort: Effort,
    out: Path,
) -> None:
    """Run the study; `help` describes it."""
    device = device_kind()
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # of the processes that are to come
    kernels = tuple(dict.fromkeys(names or (KERNELS if seed is None else WAYS)))
    try:
        tiny = bool(size) or device == "cpu"
        tried = {
            name: tuple(checked(name, candidate) for candidate in candidates) or candidates_of(name, tiny=tiny)
            for name in kernels
        }
        if seed is None and count is not None:
            raise ValueError(f"--count {count} was given; allowed: with --seed")
        if seed is not None and shapes:
            raise ValueError(f"--cell {shapes[0]} was given; allowed: without --seed, which draws the cells")
        if seed is None:
            wanted = [shape_of(text) for text in shapes]
            problems = {name: list(problems_of(name, wanted, dims, device, tiny=tiny)) for name in kernels}
            axes: dict[str, Any] = {"dtype": dtypes, "mask": masks or ("causal",)}
        else:
            if others := set(kernels) - WAYS.keys():
                raise ValueError(f"--kernel {min(others)} was given with --seed; allowed with it: {', '.join(WAYS)}")
            sample = {"random": groups_of(device, tiny=tiny)["random"]}
            sample = drawn(sample, seed=seed, count=count or (None if tiny else DRAWN))
            problems = {name: list(sample["random"].problems()) for name in kernels}
            axes = {"d": dims, "dtype": dtypes, "mask": masks}
        cells = narrowed([cell for name in kernels for cell in cells_of(name, problems[name], device)], **axes)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    rows: list[Row] = []
    with Process(device) as process:
        whole = start(process, rows)
        plan = plan_of(cells, tried, device)
        rows += itertools.chain.from_iterable(plan.values())
        if device == "cuda":
            plan = with_resources(plan, workers or min(MAX_WORKERS, len(os.sched_getaffinity(0))))
        write_in_parts({out / "tiles.json": whole} for _ in measure(process, plan, effort))
    click.echo(heading(whole))
    conclude([*shown(rows), "", *verdicts(rows)])


def plan_of(cells: list[TileCell], tried: dict[str, tuple[str, ...]], device: Device) -> dict[TileCell, list[Row]]:
    """Return the cells of kernels that run here, each with its table entry, and a row for each candidate."""
    with FreshProcess(__name__) as process:  # it queries the GPU, on which this process has no context
        try:
            choice_of = process.ask(choices, cells, device)
        except Unavailable as error:
            raise click.ClickException(str(error)) from None
    plan = {}
    for cell, chosen in zip(cells, choice_of, strict=True):
        if chosen:
            entry, present = chosen
            named = replace(cell, entry=entry, against=present)
            plan[named] = rows_of(named, tried[cell.group])
    if not plan:
        raise click.ClickException(f"none of these run here: {', '.join(tried)}")
    compared = {cell: rows for cell, rows in plan.items() if len(rows) > 1}
    if not compared:
        present = ", ".join(dict.fromkeys(cell.against for cell in plan))
        raise click.ClickException(f"--candidate {present} is the present choice; allowed: others, to compare with it")
    return compared


def choices(cells: list[TileCell], device: Device) -> list[tuple[str, str] | None]:
    """Return `attention_tiles.choice` of each cell."""
    return [choice(cell.group, problem_of(cell.case("", device).params), device) for cell in cells]


def rows_of(cell: TileCell, candidates: tuple[str, ...]) -> list[Row]:
    """Return a row for the present choice, with which all others are compared, and for each candidate."""
    return [
        cell.axes()
        | {"impl": impl, "is_present": impl == cell.against, "role": "against" if impl == cell.against else "ours"}
        | {"status": NOT_MEASURED, "samples_s": []}
        for impl in dict.fromkeys((cell.against, *candidates))
    ]


def with_resources(plan: dict[TileCell, list[Row]], workers: int) -> dict[TileCell, list[Row]]:
    """Add each candidate's compilation to its row. Another one replaces a present choice that fails."""
    todo = [(cell, row) for cell, rows in plan.items() for row in rows]
    replies = compile_all([cell.case(row["impl"], "cuda").params for cell, row in todo], workers)
    for (_, row), reply in zip(todo, replies, strict=True):
        row |= reply | {"status": NOT_MEASURED if reply["status"] == "ok" else reply["status"]}
    compared = {}
    for cell, rows in plan.items():
        alive = [row for row in rows if row["status"] == NOT_MEASURED]
        against = next(iter(alive), rows[0])["impl"]  # the present choice is the first
        for row in rows:
            row |= {"against": against, "role": "against" if row["impl"] == against else "ours"}
        compared[replace(cell, against=against)] = rows
    return compared
