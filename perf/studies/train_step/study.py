"""Compare the whole training step with another way to run it."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import click

from perf.harness.comparison import Pilot, compare
from perf.harness.status import describe
from perf.options import Named
from perf.studies.device import device_kind
from perf.studies.document import heading, kept, out_option, present
from perf.studies.fresh_process import DIED, FreshProcess
from perf.studies.lm import Models, model_options
from perf.studies.progress import progress
from perf.studies.rows import Row, grouped
from perf.studies.speedup_figure import draw
from perf.studies.speedups import (
    FEWEST,
    Effort,
    best,
    bound_of,
    effort_options,
    milliseconds,
    processes_wanted,
    speedup_of,
    with_interval,
)
from perf.studies.train_step import arms
from perf.studies.train_step.arms import Expected, Model, check_arm
from perf.workloads import measured
from perf.workloads.transformer_training import OURS as TRANSFORMER_LM

OURS = {"cuda": "bf16_weights/compiled_cuda_graph/sdpa", "cpu": "fp32/eager/sdpa"}
PLAIN = "perf.workloads.plain_step"
AGAINST = {"cuda": (f"{PLAIN}:compiled_blocks", f"{PLAIN}:compiled"), "cpu": (f"{PLAIN}:eager",)}
AGAINST_OF_OTHERS = {"cuda": ("bf16/compiled_blocks/sdpa", "bf16/compiled/sdpa"), "cpu": ("fp32/eager/reference",)}
"""Of a user's own model, which the plain steps do not compute."""

SAMPLES = ("ours_s", "against_s", "against_busy_s")
"""Fields of a row with the seconds of every step, a list for each process."""

Sample = Callable[[tuple[str, ...], Model, int, int, Expected | None], Row]
"""Takes the samples of one process; arguments and reply as of `arms.samples_of`."""


@click.command()
@model_options({"context": (512, 1024)}, axes=("size", "context"))
@click.option(
    "--ours",
    type=Named(check_arm),
    help="PRECISION/VARIANT/ATTENTION, as in the other studies. Default: our fastest.",
)
@click.option(
    "--against",
    multiple=True,
    type=Named(check_arm),
    help=f"The same, or module:function. Default: plain PyTorch, compiled ({PLAIN}).",
)
@effort_options(rounds=20, processes=12, on_a_cpu=FEWEST)
@out_option
def command(models: Models, ours: str | None, against: tuple[str, ...], effort: Effort, out: Path) -> None:
    """Compare the whole training step with another way to run it. Three minutes a size on a GPU.

    \b
    python -m perf study train-step --size small --context 512
    python -m perf study train-step --size small --against my_package.peers:build_step

    All arms in one process take single steps in turn, A B C C B A, so that drift of the machine affects each alike, and
    again in fresh processes: three, and as many more as their scatter demands for a narrow 95 % interval of the
    speed-up over the best. Where the other arm waits for its host, that may be too many; then they are as many as the
    speed-up over the GPU's busy time in that arm's step demands, below which no host can bring it. Arms that do not fit
    together are compared in pairs.

    Every arm is checked before it is timed: its loss, gradient and update against float64. A peer of your own,
    build_step(config, weights, ids, targets), is called with TransformerLM's state dict, float32, whose RoPE rotates
    dimension i of a head with i + head_dim / 2. It returns a function that takes one step of AdamW (torch's defaults)
    and returns its loss from before the update; its first four losses are compared with ours, which shows a wrong mask
    or gradient, but not a missing weight decay. Incorrect arms and times below the physical floor are refused.
    """
    kind = device_kind()
    ours = ours or OURS[kind]
    against = against or (AGAINST if models.model == TRANSFORMER_LM else AGAINST_OF_OTHERS)[kind]
    todo: list[Model] = [
        {"size": size, "context_length": context, "batch": models.batch, "model": models.model}
        for context, size in itertools.product(*map(models.values, ("context", "size")))
    ]
    whole = kept(measure(todo, ours, against, effort, in_a_fresh_process), kind, out / "train-step.json")
    title = f"Whole step, batch {models.batch}, of {ours}: median ms, speed-up over each other arm, 95 % interval"
    present(whole, title, shown(whole["rows"]), answers(whole["rows"], effort.half_width))
    draw(whole["rows"], lambda row: f"{row['size']}, {row['context']}", out / "train-step.png", heading(whole))


def measure(models: list[Model], ours: str, against: tuple[str, ...], effort: Effort, sample: Sample) -> Iterator[Row]:
    """Yield a row for each model and other arm, with the samples of every process, each taken by `sample`.

    All arms share a process, or pairs do where that fails because they do not fit or one of them does not run.
    """
    with progress(total=len(models), unit="model") as bar:
        for model in models:
            bar.set_postfix_str(f"{model['size']} {model['context_length']}")
            rows = _together(model, (ours, *against), effort, sample)
            if len(against) > 1 and rows[0]["status"] != "ok":
                rows = [row for other in against for row in _together(model, (ours, other), effort, sample)]
            yield from rows
            bar.update()


def _together(model: Model, names: tuple[str, ...], effort: Effort, sample: Sample) -> list[Row]:
    axes: Row = {"size": model["size"], "context": model["context_length"], "batch": model["batch"], "ours": names[0]}
    if (own := model.get("model", TRANSFORMER_LM)) != TRANSFORMER_LM:
        axes["model"] = own
    rows = [axes | {"against": other, "status": "ok"} | {name: [] for name in SAMPLES} for other in names[1:]]
    expected: Expected | None = None

    def in_a_process(_: Sequence[Any], number: int) -> Iterator[Row]:
        yield sample(names, model, effort.rounds, number % len(names), expected)

    until = Pilot[list[Row]](FEWEST, effort.processes, lambda rows: processes_wanted(rows, effort))
    for reply in compare([rows], until, in_a_process):
        if reply["status"] == "throttled" and rows[0]["ours_s"]:
            continue  # it costs its own samples alone
        if reply["status"] != "ok":
            return [row | {"status": reply["status"], "reason": reply["reason"]} for row in rows]
        expected = reply.get("expected")
        for arm, row in enumerate(rows, 1):
            row["ours_s"].append(reply["samples_s"][0])
            row["against_s"].append(reply["samples_s"][arm])
            if reply["busy_s"]:
                row["against_busy_s"].append(reply["busy_s"][arm])
    return rows


def shown(rows: list[Row]) -> Iterator[Row]:
    """Yield the cells of each row by column title."""
    for row in rows:
        cells: Row = {"size": row["size"], "context": row["context"], "against": row["against"]}
        if row["status"] != "ok":
            yield cells | {"ours, ms": describe(row)}
            continue
        ours = milliseconds(row, "ours")
        cells |= {
            "ours, ms": f"{ours:.2f}",
            **({} if "model" in row else {"TFLOP/s": f"{tflops(row, ours):.0f}"}),  # another model's are unknown
            "its ms": f"{milliseconds(row, 'against'):.2f}",
            "speed-up": with_interval(*speedup_of(row)),
            "processes": len(row["ours_s"]),
        }
        if row["against_busy_s"]:
            cells["its GPU's ms"] = f"{milliseconds(row, 'against_busy'):.2f}"
            cells["at least"] = with_interval(*bound_of(row))
        yield cells


def tflops(row: Mapping[str, Any], ms: float) -> float:
    """Return the rate of the model's FLOPs: three forwards, all attention scores counted."""
    config = measured("configs", "MODEL_CONFIGS")[row["size"]]
    return measured("accounting.compute", "step_flops")(config, row["batch"], row["context"]) / ms * 1e-9


def answers(rows: list[Row], half_width: float) -> Iterator[str]:
    """Compare ours with the best of the others for every model, or say that the interval is too wide."""
    timed = [row for row in rows if row["status"] == "ok"]
    for (size, context), mine in grouped(timed, "size", "context"):
        where = f"{size}, context {context}: {mine[0]['ours']}"
        (speedup, half, fastest), (bound, bound_half, busiest) = best(mine, speedup_of), best(mine, bound_of)
        if half <= half_width:
            yield f"{where} is {with_interval(speedup, half)} as fast as the best of the others, {fastest}."
        elif bound_half <= half_width and bound > 1:
            yield (
                f"{where} is at least {with_interval(bound, bound_half)} as fast as the best of the others, by the "
                f"GPU's busy time of {busiest}; {with_interval(speedup, half)} with its waits for this host."
            )
        else:
            yield f"{where}: {with_interval(speedup, half)} is too wide for a verdict; raise --processes."


def in_a_fresh_process(
    names: tuple[str, ...], model: Model, rounds: int, built_first: int, expected: Expected | None
) -> Row:
    """Return `arms.samples_of` these arms in a process that ends with it."""
    with FreshProcess(arms.__name__) as process:
        try:
            return process.ask(arms.samples_of, names, model, rounds, built_first, expected)
        except BrokenProcessPool:
            return DIED
