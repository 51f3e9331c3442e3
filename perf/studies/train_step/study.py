"""How fast is the whole training step, beside another way to run it?"""

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import click

from perf.harness.comparison import Pilot, compare
from perf.harness.status import describe
from perf.options import Finite
from perf.studies.document import document, heading, kept, out_option
from perf.studies.fresh_process import DIED, FreshProcess
from perf.studies.lm import ON_A_CPU, SIZES, device_kind
from perf.studies.lm import OURS as MODEL
from perf.studies.ratio_figure import draw
from perf.studies.ratios import FEWEST, best, bound_of, known, milliseconds, processes_wanted, speedup_of
from perf.studies.train_step import arms
from perf.studies.train_step.arms import Expected, TrainingCase, check_arm
from perf.workloads import measured

OURS = {"cuda": "bf16_weights/compiled_cuda_graph/sdpa", "cpu": "fp32/eager/sdpa"}
AGAINST = {"cuda": ("bf16/compiled_blocks/sdpa", "bf16/compiled/sdpa"), "cpu": ("fp32/eager/reference",)}
SAMPLES = ("ours_s", "against_s", "against_busy_s")
"""Fields of a row with the seconds of every step, a list for each process."""


@click.command()
@click.option("--size", "sizes", multiple=True, type=click.Choice(SIZES), help="Default: all of 2025; tiny on a CPU.")
@click.option("--context", "contexts", multiple=True, type=click.IntRange(1), help="Default: 512, 1024; 64 on a CPU.")
@click.option("--batch", default=4, show_default=True, type=click.IntRange(1))
@click.option("--model", default=MODEL, show_default=True, help="module:function of a model of your own.")
@click.option("--ours", help="PRECISION/VARIANT/ATTENTION, as in the other studies. Default: our fastest.")
@click.option("--against", multiple=True, help="The same, or module:function. Default: stock PyTorch, compiled.")
@click.option("--rounds", default=20, show_default=True, type=click.IntRange(2), help="Steps of each arm in a process.")
@click.option("--half-width", default=2.0, show_default=True, type=Finite(0), help="% that is narrow enough.")
@click.option("--processes", type=click.IntRange(2), help="At most. Default: 12; 3 on a CPU.")
@out_option
def command(
    sizes: tuple[str, ...],
    contexts: tuple[int, ...],
    batch: int,
    model: str,
    ours: str | None,
    against: tuple[str, ...],
    rounds: int,
    half_width: float,
    processes: int | None,
    out: Path,
) -> None:
    """How fast is the whole training step, beside another way to run it? Three minutes a size on a GPU.

    \b
    python -m perf study train-step --size small --context 512
    python -m perf study train-step --size small --against my_package.peers:build_step

    All arms in one process take single steps in turn, A B C C B A, so that the drift of the machine hits each alike;
    then again in fresh processes: three, and as many more as by their scatter make the 95 % interval of the speed-up
    over the best narrow enough. Where another arm waits for its host, those are too many; then the speed-up over the
    time for which the GPU is busy with that arm's step is asked for instead, which no host can undercut. Arms that do
    not fit together go in pairs.

    Every arm is checked before it is timed: its loss, gradient and update against float64. A peer of your own,
    build_step(config, weights, ids, targets), is called with TransformerLM's weights by name, float32, and returns a
    function that takes one step of AdamW (torch's defaults) and returns its loss; that and the next one are held to
    ours. A wrong one gets no time, and no arm one below what the GPU's best rate of arithmetic allows.
    """
    kind = device_kind()
    ours, against = ours or OURS[kind], against or AGAINST[kind]
    for name in (ours, *against):
        try:
            check_arm(name)
        except ValueError as error:
            raise click.ClickException(str(error)) from None
    sizes = sizes or (SIZES[1:6] if kind == "cuda" else SIZES[:1])
    cells = [
        TrainingCase(size, context, batch, model)
        for context, size in itertools.product(contexts or ((512, 1024) if kind == "cuda" else (64,)), sizes)
    ]
    processes = processes or (12 if kind == "cuda" else FEWEST)
    found = measure(cells, ours, against, rounds, processes, half_width / 100)
    rows = kept(found, kind, out / "train-step.json")
    whole = document(kind, rows)
    click.echo(heading(whole))
    click.echo(f"Whole step, batch {batch}, of {ours}: median ms, and its speed-up over each other arm, 95 % interval")
    click.echo(table(rows))
    for sentence in answers(rows, half_width / 100):
        click.echo(sentence)
    if kind == "cpu":
        click.echo(ON_A_CPU)
    draw(rows, lambda row: f"{row['size']}, {row['context']}", out / "train-step.png", heading(whole))


def measure(
    cells: list[TrainingCase], ours: str, against: tuple[str, ...], rounds: int, processes: int, half_width: float
) -> Iterator[dict[str, Any]]:
    """A row for each cell and other arm, with the samples of every process.

    Of all arms together; in pairs where that fails: they do not fit, or one of them does not run.
    """
    from tqdm import tqdm

    with tqdm(total=len(cells), unit="model", leave=False, disable=None) as bar:
        for cell in cells:
            bar.set_postfix_str(f"{cell.size} {cell.context_length}")
            rows = _together(cell, ours, against, rounds, processes, half_width)
            if len(against) > 1 and rows[0]["status"] != "ok":
                pairs = (_together(cell, ours, (other,), rounds, processes, half_width) for other in against)
                rows = list(itertools.chain.from_iterable(pairs))
            yield from rows
            bar.update()


def _together(
    cell: TrainingCase, ours: str, others: tuple[str, ...], rounds: int, processes: int, half_width: float
) -> list[dict[str, Any]]:
    model: dict[str, Any] = {"size": cell.size, "context": cell.context_length, "batch": cell.batch, "ours": ours}
    rows = [model | {"against": other, "status": "ok"} | {name: [] for name in SAMPLES} for other in others]
    names = (ours, *others)
    known: Expected | None = None

    def in_a_process(_: Sequence[Any], number: int) -> Iterator[dict[str, Any]]:
        yield _in_a_fresh_process(names, cell, rounds, number % len(names), known)

    until = Pilot[list[dict[str, Any]]](FEWEST, processes, lambda rows: processes_wanted(rows, half_width, processes))
    for reply in compare([rows], until, in_a_process):
        if reply["status"] != "ok":
            return [row | {"status": reply["status"], "reason": reply["reason"]} for row in rows]
        known = reply.get("known")
        for arm, row in enumerate(rows, 1):
            row["ours_s"].append(reply["samples_s"][0])
            row["against_s"].append(reply["samples_s"][arm])
            if reply["busy_s"]:
                row["against_busy_s"].append(reply["busy_s"][arm])
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """For a terminal."""
    from tabulate import tabulate

    shown = []
    for row in rows:
        cells = {"size": row["size"], "context": row["context"], "against": row["against"]}
        if row["status"] == "ok":
            ours = milliseconds(row, "ours")
            cells |= {
                "ours, ms": f"{ours:.2f}",
                "TFLOP/s": f"{tflops(row, ours):.0f}",
                "its ms": f"{milliseconds(row, 'against'):.2f}",
                "speed-up": known(*speedup_of(row)),
                "processes": len(row["ours_s"]),
            }
            if row["against_busy_s"]:
                cells |= {
                    "its GPU's ms": f"{milliseconds(row, 'against_busy'):.2f}",
                    "at least": known(*bound_of(row)),
                }
        else:
            cells["ours, ms"] = describe(row)
        shown.append(cells)
    return tabulate(shown, headers="keys", disable_numparse=True)


def tflops(row: dict[str, Any], ms: float) -> float:
    """Of the model: three forwards, all scores of attention counted."""
    config = measured("configs", "MODEL_CONFIGS")[row["size"]]
    return measured("accounting.compute", "step_flops")(config, row["batch"], row["context"]) / ms * 1e-9


def answers(rows: list[dict[str, Any]], half_width: float) -> Iterator[str]:
    """For every model, the best of the others beside ours; or that it was not measured well enough to say."""
    timed = [row for row in rows if row["status"] == "ok"]
    for (size, context), group in itertools.groupby(timed, key=lambda row: (row["size"], row["context"])):
        mine = list(group)
        where = f"{size}, context {context}: {mine[0]['ours']}"
        (speedup, half, fastest), (bound, bound_half, busiest) = best(mine, speedup_of), best(mine, bound_of)
        if half <= half_width:
            yield f"{where} is {known(speedup, half)} as fast as the best of the others, {fastest}."
        elif bound_half <= half_width and bound > 1:
            yield (
                f"{where} is at least {known(bound, bound_half)} as fast as the best of the others, by the time for "
                f"which the GPU is busy with {busiest}. With its waits for this host: {known(speedup, half)}."
            )
        else:
            yield f"{where}: {known(speedup, half)} is too wide for a verdict; more --processes."


def _in_a_fresh_process(
    names: tuple[str, ...], cell: TrainingCase, rounds: int, built_first: int, known: Expected | None
) -> dict[str, Any]:
    with FreshProcess(arms.__name__) as process:
        try:
            return process.ask(arms.samples_of, names, cell, rounds, built_first, known)
        except BrokenProcessPool:
            return DIED
