"""What does torch.compile buy, for attention alone and for the whole model, and what does the first call cost?"""

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from perf.harness.case import Cache
from perf.harness.clock import Clock, Stop, WallClock, visit
from perf.studies.document import document, heading, out_option, write
from perf.studies.lm import ON_A_CPU, Setting, device_kind, model_options, release, rows_of, settings_of, synchronize
from perf.workloads.workload import Floor, Workload

PARTS = ("attention", "model")
STOP = Stop(min_samples=10, max_samples=40, max_seconds=1.0)


@click.command()
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Default: both.")
@click.option("--d", "dims", multiple=True, type=click.IntRange(1), help="Of attention. Default: 16, 32, 64, 128.")
@click.option(
    "--seq-len", "seq_lens", multiple=True, type=click.IntRange(1), help="Of attention. Default: 256 to 16384."
)
@model_options
@out_option
def command(
    parts: tuple[str, ...], dims: tuple[int, ...], seq_lens: tuple[int, ...], out: Path | None, **options: Any
) -> None:
    """What does torch.compile buy? Attention alone and the whole model: ten minutes on a GPU, all of it compiling.

    \b
    python -m perf study compile --part model --size small --variant eager --variant compiled

    Attention as the course has it (batch 8, no heads, float32, full), forward and backward; the model's forward
    (without a graph for a backward) and whole step, in every --variant (default: all that run here). Medians; the first
    call, which compiles, apart.
    """
    on_gpu = device_kind() == "cuda"
    rows: list[dict[str, Any]] = []
    if "attention" in (parts or PARTS):
        default = ((256, 1024, 4096, 8192, 16384), (16, 32, 64, 128)) if on_gpu else ((256,), (64,))
        shapes = [(n, d) for n in seq_lens or default[0] for d in dims or default[1]]
        rows += attention_rows(shapes)
    if "model" in (parts or PARTS):
        options["variant"] = options["variant"] or ("eager", "compiled_blocks", "compiled", *GRAPHS[: 2 * on_gpu])
        rows += [{"part": "model"} | row for row in rows_of(settings_of(**options), measure_model)]
    whole = document(device_kind(), rows)
    click.echo(heading(whole))
    for part in PARTS:
        if mine := [row for row in rows if row["part"] == part]:
            click.echo(f"\n{part.capitalize()}: medians, ms; first call, s; gain over eager")
            click.echo(table(mine))
    if not on_gpu:
        click.echo(ON_A_CPU)
    if out:
        write(out / "compile.json", whole)


GRAPHS = ("cuda_graph", "compiled_cuda_graph")
CALLS = ("forward", "backward", "step")


def attention_rows(shapes: list[tuple[int, int]]) -> Iterator[dict[str, Any]]:
    """Eager and compiled, forward and backward, of each shape."""
    import torch
    from tqdm import tqdm

    from perf.workloads import build

    for seq_len, d in tqdm(shapes, unit="shape", leave=False, disable=None):
        for impl, variant in {"reference": "eager", "reference_compiled": "compiled"}.items():
            row: dict[str, Any] = {"part": "attention", "seq_len": seq_len, "d": d, "variant": variant, "status": "ok"}
            params = {"batch": 8, "seq_len": seq_len, "d": d, "is_causal": False, "dtype": "float32", "impl": impl}
            try:
                for mode in ("forward", "backward"):
                    begin = time.perf_counter()
                    work = build("attention", params | {"mode": mode}, device_kind())
                    work.run()
                    synchronize()
                    row[f"{mode}_first_s"] = time.perf_counter() - begin
                    row[f"{mode}_s"] = seconds_of(work, "cold")
            except torch.OutOfMemoryError:
                row["status"] = "out of memory"
            except Exception as error:
                row["status"] = _one_line(error)
            release()
            yield row


def measure_model(train: Any, setting: Setting) -> dict[str, Any]:
    """Median seconds of the forward without a graph and of the whole step, and of their first calls."""
    import torch

    from perf.workloads import measured

    def forward() -> Any:
        with torch.no_grad():
            return train.forward()

    step = train.step
    found: dict[str, Any] = {}
    try:
        calls: dict[str, Callable[[], Any]] = {"forward": forward, "step": step}
        if setting.variant in GRAPHS:
            begin = time.perf_counter()
            calls = {"step": measured("training", "captured")(step)}
            synchronize()
            found["step_first_s"] = time.perf_counter() - begin
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            synchronize()
            found.setdefault(f"{name}_first_s", time.perf_counter() - begin)
            found[f"{name}_s"] = seconds_of(Workload(run=call, check=lambda: 0.0, floor=Floor()), "warm")
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        found["status"] = _one_line(error)
    return found


def seconds_of(work: Workload, cache: Cache) -> float:
    """Median of one visit: CUDA events for attention, which is device work; the wall for a step, which may not be."""
    clock: Clock
    if device_kind() == "cpu":
        clock, cache = WallClock(), "warm"
    else:
        from perf.harness.cuda_clocks import EventClock, GpuWallClock

        clock = EventClock() if cache == "cold" else GpuWallClock()
    clock.warm_up(work)
    return statistics.median(visit(clock, work, cache, STOP).samples_s)


def table(rows: list[dict[str, Any]]) -> str:
    """Each beside the eager row of the same shape or model."""
    from tabulate import tabulate

    eager: dict[Any, dict[str, Any]] = {}
    shown = []
    for row in rows:
        cell = tuple(row.get(axis) for axis in ("seq_len", "d", "size", "context", "precision", "attention"))
        if row["variant"] == "eager":
            eager[cell] = row
        line = {axis: row[axis] for axis in (*Setting.AXES, "seq_len", "d") if axis in row}
        for call in CALLS:
            if f"{call}_s" in row:
                line[call] = f"{row[f'{call}_s'] * 1e3:.3f}"
                base = eager.get(cell, {}).get(f"{call}_s")
                line[f"{call} gain"] = f"{base / row[f'{call}_s']:.2f}" if base else "-"
                line[f"{call} first"] = f"{row[f'{call}_first_s']:.1f}"
        shown.append(line | ({} if row["status"] == "ok" else {"status": row["status"]}))
    return tabulate(shown, headers="keys", disable_numparse=True)


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:100]}"
