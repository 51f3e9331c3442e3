"""Measure what torch.compile saves, for attention alone and for the whole model, and what its first call costs."""

import functools
import itertools
import re
import statistics
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from perf.harness.case import Cache
from perf.harness.clock import Clock, Stop, WallClock
from perf.harness.status import describe, refusals
from perf.options import Count
from perf.studies import figures
from perf.studies.device import bench, device_kind, release
from perf.studies.document import any_result, conclude, document, heading, out_option, write_in_parts
from perf.studies.lm import VARIANTS, WITH_PHASES, Models, Setting, model_options, rows_of
from perf.studies.progress import progress
from perf.studies.rows import Row, differing, refusal
from perf.studies.workspaces import workspaces
from perf.tables import text_table
from perf.workloads.transformer_training import Training
from perf.workloads.workload import Workload

PARTS = ("attention", "model")
STOP = Stop(min_samples=10, max_samples=40, max_seconds=1.0)


@click.command()
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Default: both.")
@click.option("--d", "dims", multiple=True, type=Count(), help="Attention's. Default: 16, 32, 64, 128.")
@click.option("--seq-len", "seq_lens", multiple=True, type=Count(), help="Attention's. Default: 256 to 16384.")
@model_options({"variant": VARIANTS}, {"variant": WITH_PHASES})
@out_option
def command(
    models: Models, parts: tuple[str, ...], dims: tuple[int, ...], seq_lens: tuple[int, ...], out: Path
) -> None:
    """Measure what torch.compile saves in attention and in the whole model. Ten minutes on a GPU, all of it compiling.

    \b
    python -m perf study compile --part model --size small --variant eager --variant compiled

    Attention as in the course (batch 8, no heads, float32, full), forward and backward; the model's forward (without a
    graph for a backward) and whole step, in every --variant (default: all that run here). Medians; the first call,
    which compiles, is separate. Each part has its rows, compile-PART.json, and its figure.
    """
    # Inductor warns once a process; IEEE float32 is what we measure.
    warnings.filterwarnings("ignore", "TensorFloat32 tensor cores .* available but not enabled")
    wanted = parts or PARTS
    default = ((256, 1024, 4096, 8192, 16384), (16, 32, 64, 128)) if device_kind() == "cuda" else ((256,), (64,))
    sizes = list(itertools.product(seq_lens or default[0], dims or default[1]))
    measured: dict[str, Iterable[Row]] = {
        "attention": attention_rows(sizes) if "attention" in wanted else (),
        "model": rows_of(models.settings(), measure_model) if "model" in wanted else (),
    }
    whole = document(device_kind(), [])
    click.echo(heading(whole))
    rows: dict[str, list[Row]] = {}

    def documents() -> Iterator[dict[Path, dict[str, Any]]]:
        for part, of_part in measured.items():
            for row in of_part:
                rows.setdefault(part, []).append({"part": part} | row)
                mine = {"command": command_of(part, whole["command"]), "rows": rows[part]}
                yield {out / f"compile-{part}.json": whole | mine}

    write_in_parts(documents())
    for part, mine in rows.items():
        click.echo(f"\n{part.capitalize()}: medians, ms; first call, s; gain over eager")
        click.echo(text_table(shown(mine)))
        if any_result(mine):
            DRAWN[part](mine, out / f"compile-{part}.png", heading(whole))
    conclude([])


def command_of(part: str, command: str) -> str:
    """Return the command that measures this part alone."""
    return re.sub(r" --part[ =]\w+", "", command) + f" --part {part}"


CALLS = ("forward", "backward", "step")
GAIN = "times as fast as eager"


def attention_rows(shapes: list[tuple[int, int]]) -> Iterator[Row]:
    """Yield a row for each shape and form, eager and compiled, with its forward and backward."""
    from perf.workloads import build

    if device_kind() == "cuda":
        workspaces()  # starts cuBLAS in both threads, which would otherwise count as the first row's first calls
    for seq_len, d in progress(shapes, unit="shape"):
        for impl, variant in {"reference": "eager", "reference_compiled": "compiled"}.items():
            row: Row = {"part": "attention", "seq_len": seq_len, "d": d, "variant": variant, "status": "ok"}
            params = {"batch": 8, "seq_len": seq_len, "d": d, "is_causal": False, "dtype": "float32", "impl": impl}
            try:
                for mode in ("forward", "backward"):
                    make = functools.partial(build, "attention", params | {"mode": mode}, device_kind())
                    row |= _timed(mode, make, "cold")
            except Exception as error:  # the compiler may raise anything
                row |= refusal(error)
            release()
            yield row


def measure_model(training: Training, setting: Setting) -> dict[str, Any]:
    """Return the median seconds of the forward without a graph and of the step, and those of their first calls."""
    calls = {"forward": training.forward, "step": training.step}
    if training.graphed:
        del calls["forward"]
    row: Row = {}
    try:
        for name, make in calls.items():
            row |= _timed(name, make, "warm")
    except refusals():
        raise
    except Exception as error:  # the compiler may raise anything
        row |= refusal(error)
    return row


def _timed(name: str, make: Callable[[], Workload], cache: Cache) -> dict[str, float]:
    """Return the seconds of the first call and the median of the others, by CUDA events if cold, else by the wall."""
    clock: Clock
    if device_kind() == "cpu":
        clock, cache = WallClock(), "warm"
    else:
        from perf.harness.cuda_clocks import EventClock, GpuWallClock

        clock = EventClock() if cache == "cold" else GpuWallClock()
    first_s, samples_s = bench().first_visit(make, clock, cache, STOP)
    return {f"{name}_first_s": first_s, f"{name}_s": statistics.median(samples_s)}


def shown(rows: list[Row]) -> Iterator[Row]:
    """Yield the cells of each row by column title, with its gain over the eager row of the same cell."""
    eager = _eager(rows)
    for row in rows:
        cells = {axis: row[axis] for axis in (*Setting.AXES, "seq_len", "d") if axis in row}
        for call in CALLS:
            if f"{call}_s" in row:
                gain = _gain(row, call, eager)
                cells[call] = f"{row[f'{call}_s'] * 1e3:.3f}"
                cells[f"{call} gain"] = "-" if gain is None else f"{gain:.2f}"
                cells[f"{call} first"] = f"{row[f'{call}_first_s']:.1f}"
        yield cells | ({} if row["status"] == "ok" else {"status": describe(row)})


def draw_model(rows: list[Row], path: Path, title: str) -> None:
    """Draw a panel for each call, and in it a bar for each compiled step: its gain."""
    if not (by_call := _gains(rows)):
        return
    figure, panels = figures.panels_of_bars({call: len(gains) for call, gains in by_call.items()})
    named = differing([row for row in rows if row["variant"] != "eager"], Setting.AXES)
    for call, axes in panels.items():
        labels = [" ".join(str(row[axis]) for axis in named) for row, _ in by_call[call]]
        figures.stacked_bars(axes, labels, {call: [gain for _, gain in by_call[call]]})
        axes.bar_label(axes.containers[0], fmt="%.2f", fontsize=7, padding=2)
        axes.axvline(1, color="black", lw=1, ls=":")
        axes.margins(x=0.1)
        axes.set_ylabel(", ".join(named), fontsize=8)
        axes.set_xlabel(GAIN, fontsize=8)
    figures.save(figure, path, title)


def draw_attention(rows: list[Row], path: Path, title: str) -> None:
    """Draw a panel for each call, and in it a line for each d: the gain over seq_len."""
    if not (by_call := _gains(rows)):
        return
    figure, grid = figures.subplots(1, len(by_call), figsize=(8.0, 3.1), squeeze=False)
    for axes, (call, gains) in zip(grid[0], by_call.items(), strict=True):
        for d in sorted({row["d"] for row, _ in gains}):
            points = sorted((row["seq_len"], gain) for row, gain in gains if row["d"] == d)
            axes.plot(*zip(*points, strict=True), marker="o", ms=3, label=f"d = {d}")
        axes.axhline(1, color="black", lw=1, ls=":")
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted({row["seq_len"] for row, _ in gains}))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.tick_params(labelsize=8)
        axes.set_title(call, fontsize=9)
        axes.set_xlabel("seq_len", fontsize=8)
    grid[0, 0].set_ylabel(GAIN, fontsize=8)
    figures.legend_below(figure)
    figures.save(figure, path, title)


DRAWN = {"attention": draw_attention, "model": draw_model}


def _gains(rows: list[Row]) -> dict[str, list[tuple[Row, float]]]:
    """Return by call the compiled rows with an eager one beside them, each with its gain."""
    eager = _eager(rows)
    compiled = [row for row in rows if row["variant"] != "eager"]
    by_call = {call: [(row, gain) for row in compiled if (gain := _gain(row, call, eager))] for call in CALLS}
    return {call: gains for call, gains in by_call.items() if gains}


def _eager(rows: list[Row]) -> dict[Any, dict[str, Any]]:
    return {_cell(row): row for row in rows if row["variant"] == "eager"}


def _cell(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(axis) for axis in ("seq_len", "d", "size", "context", "precision", "attention"))


def _gain(row: Row, call: str, eager: dict[Any, dict[str, Any]]) -> float | None:
    """Return the gain over the eager row of the same cell; None without an eager row."""
    base = eager.get(_cell(row), {}).get(f"{call}_s")
    return base / row[f"{call}_s"] if base and f"{call}_s" in row else None
