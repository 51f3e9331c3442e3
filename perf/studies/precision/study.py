"""Measure what low precision costs and saves: the course's questions on mixed precision."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from perf.options import Finite
from perf.studies.device import device_kind
from perf.studies.document import document, heading, out_option, write_in_parts
from perf.studies.precision import accumulation, dtypes, results, training
from perf.studies.rows import Row
from perf.tables import prose, text_table
from perf.workloads.workload import Unavailable

PARTS = ("accumulation", "dtypes", "training")

TINY = {"context": 64, "batch": 8, "steps": 200}
OTHERS = {"context": 512, "batch": 16, "steps": 300}


@click.command()
@click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, help="Only this one. Default: all.")
@click.option(
    "--size", help='"seed" (6 layers, d_model 768) or a name of MODEL_CONFIGS. [default: seed; tiny on a CPU]'
)
@click.option("--context", type=click.IntRange(2, 2**17), help="Tokens of a sequence. [default: 512; 64 if tiny]")
@click.option("--batch", type=click.IntRange(1, 2**16), help="Sequences of a step. [default: 16; 8 if tiny]")
@click.option("--steps", type=click.IntRange(10, 10**6), help="Of each precision. [default: 300; 200 if tiny]")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**63 - 1), help="Of weights and stream.")
@click.option("--lr", default=1e-3, show_default=True, type=Finite(0, 1, min_open=True), help="Of AdamW.")
@out_option
def command(
    parts: tuple[str, ...],
    size: str | None,
    context: int | None,
    batch: int | None,
    steps: int | None,
    seed: int,
    lr: float,
    out: Path,
) -> None:
    """Measure what low precision costs and saves. Uses the GPU if there is one; a minute.

    \b
    accumulation  a thousand times 0.01 in fp32, fp16, bf16 and mixed, and where each error comes from
    dtypes        of parameters, activations, loss and gradients under autocast, and why layer norm is special
    training      one model on one stream in fp32, bf16 and fp16 with loss scaling: samples/s, memory, loss,
                  overflow and underflow; its loss curves are precision-loss.png
    """
    device = device_kind()
    size = size or ("seed" if device == "cuda" else "tiny")
    defaults = TINY if size == "tiny" else OTHERS
    run = training.Run(
        config=_config(size),
        device=device,
        context=context or defaults["context"],
        batch=batch or defaults["batch"],
        steps=steps or defaults["steps"],
        seed=seed,
        lr=lr,
    )
    whole = document(device, [])
    click.echo(heading(whole))
    if device == "cpu":
        click.echo("There is no GPU here: everything was measured on this CPU.")

    def documents() -> Iterator[dict[Path, dict[str, Any]]]:
        for part in parts or PARTS:
            if part == "accumulation":
                whole["rows"] += _accumulation()
            elif part == "dtypes":
                whole["rows"] += _dtypes(device)
            else:
                whole["rows"] += _training(run, size, whole["device"]["name"], out)
            yield {out / "precision.json": whole}

    write_in_parts(documents())


def _config(size: str) -> Any:
    try:
        sizes = training.sizes()
    except Unavailable as error:
        raise click.ClickException(str(error)) from None
    if size not in sizes:
        raise click.BadParameter(f"{size!r} was given; allowed: {', '.join(sizes)}", param_hint="--size")
    return sizes[size]


def _accumulation() -> list[Row]:
    rows = accumulation.rows()
    _show(f"Sums of {accumulation.TERM}, one term after another", accumulation.table(rows))
    _say(accumulation.answer(rows))
    return rows


def _dtypes(device: str) -> list[Row]:
    rows, variances = dtypes.rows(device), dtypes.variances()
    _show("dtypes of the course's ToyModel under autocast", dtypes.table(rows))
    _show("Variance, every step of it rounded to a dtype", dtypes.table(variances))
    _say(*dtypes.answer(rows, variances))
    return rows + variances


def _training(run: training.Run, size: str, device_name: str, out: Path) -> list[Row]:
    vanished, rows = training.underflow(run), training.rows(run)
    config = run.config
    what = (
        f"{size} ({config.num_layers} layers, d_model {config.d_model}), context {run.context}, batch {run.batch}, "
        f"random seed {run.seed}, AdamW with lr {run.lr:g}"
    )
    times = f"times of steps {training.WARM_UP + 1} to {run.steps}, {_clock(run.device)}"
    _show(
        f"Training of {what}: {times}; losses are means of the last {run.window} steps",
        results.training_table(run, rows),
    )
    _show("Gradients of the first batch", results.underflow_table(vanished))
    _say(*results.answer(run, rows, vanished))
    results.draw(out / "precision-loss.png", run, rows, f"{what}\n{device_name}")
    setup = {name: getattr(run, name) for name in ("device", "context", "batch", "steps", "seed", "lr", "window")}
    return [{"part": "setup", "size": size} | setup | {"lowest_loss": run.lowest_loss}, *rows, *vanished]


def _clock(device: str) -> str:
    return "each between two synchronizations" if device == "cuda" else "by the wall"


def _show(title: str, rows: list[Row]) -> None:
    click.echo(f"\n{title}\n{text_table(rows)}")


def _say(*paragraphs: str) -> None:
    for paragraph in paragraphs:
        click.echo()
        click.echo(prose(paragraph))
