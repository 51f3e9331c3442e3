"""List the kernels of a training step and what limits it: the course's questions to nsys, from torch.profiler."""

import dataclasses
import os
import statistics
from pathlib import Path
from typing import Any

import click

from perf.harness import profiler
from perf.harness.clock import WallClock
from perf.harness.cuda_clocks import GpuWallClock
from perf.options import Count
from perf.studies.device import bench, device_kind
from perf.studies.document import conclude, heading, kept, out_option, write
from perf.studies.kernels.nsys import profile as profile_by_nsys
from perf.studies.kernels.profiling import annotated, busy_s, kind_of, phase, profiled, shortened, summary
from perf.studies.kernels.results import PARTS, draw, echo_tables, sentence
from perf.studies.lm import WITH_PHASES, Models, Setting, model_options, rows_of
from perf.studies.rows import Row
from perf.workloads import measured
from perf.workloads.transformer_training import PHASES, Training
from perf.workloads.workload import Workload

RANGES = (
    "attention",
    "scaled dot product attention",
    "computing attention scores",
    "computing softmax",
    "final matmul",
    "feed-forward",
)
BUSY_ENOUGH = 0.7
"""Busy share of the wall time below which a step is launch-bound."""


@click.command()
@model_options({"context": (128, 256, 512, 1024)}, allowed={"variant": WITH_PHASES})
@click.option("--warm-up", default=5, show_default=True, type=Count(), help="Steps before the profile.")
@click.option("--steps", default=5, show_default=True, type=Count(), help="Steps of each wall time.")
@click.option("--top", default=5, show_default=True, type=Count(), help="Kernels listed for each part.")
@click.option("--nsys", is_flag=True, help="Also print nsys commands for the same, and run them where nsys is.")
@out_option
def command(models: Models, warm_up: int, steps: int, top: int, nsys: bool, out: Path) -> None:
    """List the kernels of each phase and what limits a step. Five minutes on a GPU; tiny on a CPU: seconds.

    \b
    python -m perf study kernels --size small --context 512 --precision bf16
    python -m perf study kernels --size large --context 256 --nsys --out results

    One forward without a graph and one step, after --warm-up, under torch.profiler. Shows device time beside wall time,
    the longest kernels and matmuls among them, softmax beside the matmuls of attention, and the idle time. It ends with
    the limit of the step (launches, memory bandwidth or arithmetic) and, on a GPU, the measured gain of the variant to
    try next. By default all sizes, contexts 128 to 1024.
    """
    for name, value in profiler.ENVIRONMENT.items():  # before torch is imported
        os.environ.setdefault(name, value)
    kind = device_kind()
    on_gpu = kind == "cuda"
    settings = models.settings()
    measured = rows_of(settings, lambda training, setting: measure(training, setting, warm_up, steps))
    whole = kept(measured, kind, out / "kernels.json", shortened_row)
    rows = with_gains(settings, whole["rows"], steps) if on_gpu else whole["rows"]
    click.echo(heading(whole))
    echo_tables(rows, top, on_gpu=on_gpu)
    conclude(["", *map(sentence, rows)])
    write(out / "kernels.json", whole | {"rows": list(map(shortened_row, rows))})
    draw(rows, out / "kernels.png", heading(whole), on_gpu=on_gpu)
    if nsys:
        profile_by_nsys(settings, warm_up, steps, out)


def measure(training: Training, setting: Setting, warm_up: int, steps: int) -> dict[str, Any]:
    """Return wall times, measured without a profiler, the kernels of one forward and of one step, and the limit."""
    import torch

    on_gpu, train = device_kind() == "cuda", training.train

    def forward() -> Any:
        with phase("forward only"), torch.no_grad():
            return train.forward()

    def step() -> None:
        with phase("step"):
            train.optimizer.zero_grad(set_to_none=True)
            with phase("forward"):
                loss = train.forward()
            with phase("backward"):
                train.backward(loss)
            with phase("optimizer"):
                train.optimizer_step()

    for _ in range(warm_up):
        train.step()
    phases = bench().laps(training.phases(), steps).seconds
    wall = {name: statistics.median(step[name] for step in phases) for name in PHASES}
    wall |= {"forward only": wall_s(training.forward(), steps), "step": wall_s(training.step(), steps)}
    with annotated(setting):
        alone, whole = profiled(forward, on_gpu=on_gpu), profiled(step, on_gpu=on_gpu)
    if not on_gpu:  # there the profiler makes the operators themselves slower
        wall = {name: (alone if name == "forward only" else whole).host_s(name) for name in wall}
    stepping = whole.within("optimizer")
    for profile, mode in ((alone, "forward"), (whole, "step")):
        bench().require_above_floor([busy_s(profile.kernels, on_gpu=on_gpu)], training.floor(mode), "warm")
    row = {
        "wall_s": wall,
        "forward_only": summary(alone.kernels, [], on_gpu=on_gpu),
        "step": summary(whole.kernels, stepping, on_gpu=on_gpu),
        "phases_s": {name: busy_s(whole.within(name), on_gpu=on_gpu) for name in PHASES},
        "ranges_s": {name: busy_s(alone.within(name), on_gpu=on_gpu) for name in RANGES if name in alone.ranges},
        "attention_parts": attention_parts(alone, setting),
    }
    limit = limit_of(row)
    following = next_to_try(setting, limit, row)
    if following and "cuda_graph" in following.variant and not on_gpu:
        following = None
    return row | {"limit": limit, "next": following and following.axes()}


def shortened_row(row: Row) -> Row:
    """Return a row without its shortest kernels."""
    return row | {part: shortened(row[part]) for part in PARTS if part in row}


def attention_parts(alone: Any, setting: Setting) -> dict[str, Any] | None:
    """Return seconds and FLOPs of softmax, matmuls, and scale and mask in all layers; None for fused attention.

    FLOPs are those of `accounting.attention`.
    """
    softmax = alone.within("computing softmax")
    if not softmax:
        return None
    config = measured("configs", "MODEL_CONFIGS")[setting.size]
    rest = alone.within("computing attention scores") + alone.within("final matmul")
    matmuls = [kernel for kernel in rest if kind_of(kernel.name) == "matmul"]
    others = [kernel for kernel in rest if kind_of(kernel.name) != "matmul"]
    heads = config.num_layers * setting.batch * config.num_heads, setting.context_length
    return {
        "softmax_s": sum(kernel.seconds for kernel in softmax),
        "matmul_s": sum(kernel.seconds for kernel in matmuls),
        "scale_and_mask_s": sum(kernel.seconds for kernel in others),
        "softmax_flops": measured("accounting.attention", "softmax_flops")(*heads),
        "matmul_flops": measured("accounting.attention", "matmul_flops")(*heads, config.head_dim),
    }


def limit_of(row: Row) -> str:
    """Return what limits a step: launches, bandwidth or compute."""
    busy = row["step"]["busy_s"]
    if busy < BUSY_ENOUGH * row["wall_s"]["step"]:
        return "launches"
    kinds = row["step"]["kinds_s"]
    return "compute" if kinds["matmul"] + kinds["fused attention"] >= sum(kinds.values()) / 2 else "bandwidth"


def next_to_try(setting: Setting, limit: str, row: Row) -> Setting | None:
    """Return the setting with one change against its limit; None where the easy changes are made."""
    if limit == "launches":
        variant = "compiled" if setting.precision == "fp16" else "cuda_graph"  # no graph can hold loss scaling
        if setting.variant.startswith("compiled") and variant == "cuda_graph":
            variant = "compiled_cuda_graph"
        return None if variant == setting.variant else dataclasses.replace(setting, variant=variant)
    if limit == "compute":
        return dataclasses.replace(setting, precision="bf16") if setting.precision in ("fp32", "tf32") else None
    parts = row["attention_parts"] or {}
    of_attention = parts.get("softmax_s", 0.0) + parts.get("scale_and_mask_s", 0.0)
    kinds = row["forward_only"]["kinds_s"]
    if of_attention > (sum(kinds.values()) - kinds["matmul"]) / 2:  # score matrices are most of what is moved
        return dataclasses.replace(setting, attention="triton" if device_kind() == "cuda" else "sdpa")
    return None if setting.variant == "compiled" else dataclasses.replace(setting, variant="compiled")


def with_gains(settings: list[Setting], rows: list[Row], steps: int) -> list[Row]:
    """Add "next_s" to `rows`, the wall seconds of a step of the setting to try next, or "next_status" without them.

    Run after all other measurements, so that only one model is in memory at any time.
    """
    changed = ("precision", "variant", "attention")
    following = {
        index: dataclasses.replace(settings[index], **{axis: row["next"][axis] for axis in changed})
        for index, row in enumerate(rows)
        if row.get("next")
    }
    timed = rows_of(list(following.values()), lambda training, setting: {"next_s": step_s(training, setting, steps)})
    for index, step in zip(following, timed, strict=True):
        rows[index] |= {"next_status": step["status"], "next_reason": step.get("reason", "")}
        rows[index] |= {"next_s": step["next_s"]} if step["status"] == "ok" else {}
    return rows


def step_s(training: Training, setting: Setting, steps: int) -> float:
    """Return the median wall seconds of a step in the setting's variant, after compilation or capture."""
    work = training.step()
    for _ in range(3):
        work.run()
    return wall_s(work, steps)


def wall_s(work: Workload, count: int) -> float:
    """Return the median wall seconds of `count` calls, each with an idle device before and after it."""
    bench().check(work)
    clock = GpuWallClock() if device_kind() == "cuda" else WallClock()
    return statistics.median(bench().batch(clock, work, "warm", count))
