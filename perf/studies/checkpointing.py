"""Predict and measure memory and time of gradient checkpoints, for every number of layers in a group and every mode."""

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from perf.harness.status import describe
from perf.options import Count
from perf.studies import figures
from perf.studies.device import device_kind
from perf.studies.document import heading, kept, out_option, present
from perf.studies.end_to_end import measure, step_seconds
from perf.studies.lm import WITH_PHASES, Models, Setting, accounted, model_options, rows_of
from perf.studies.rows import Row, differing, grouped
from perf.units import GIB, memory, times
from perf.workloads import measured
from perf.workloads.transformer_training import Training

ON_A_GPU = {"size": ("2.7B",), "context": (2048,), "attention": ("triton",)}
ELSEWHERE = {"attention": ("sdpa",)}
PREDICTED = {"variant": WITH_PHASES, "precision": ("fp32", "tf32", "bf16", "fp16")}


@click.command()
@model_options(ON_A_GPU, ELSEWHERE, allowed=PREDICTED, of_others=False)
@click.option("--every", multiple=True, type=Count(), help="Layers in a group. Default: each number.")
@click.option("--warm-up", default=1, show_default=True, type=Count(0), help="Steps that do not count.")
@click.option("--steps", default=3, show_default=True, type=Count(2), help="Steps that count.")
@out_option
def command(models: Models, every: tuple[int, ...], warm_up: int, steps: int, out: Path) -> None:
    """Peak and time of a step with checkpoints every k layers, predicted and measured. tiny on a CPU: a minute.

    \b
    python -m perf study checkpointing --precision bf16 --every 1 --every 2 --every 4

    The course's problem (Spring 2026, gradient_checkpointing), whose xl is the 2.7B here: all k, then nested, selective
    and offloaded checkpoints of single layers. Time is predicted from FLOPs, by that of the step with the fewest that
    was measured. Memory is measured on a GPU only.
    """
    settings = [each for setting in models.settings() for each in ways(setting, every)]
    rows = rows_of(settings, lambda training, _: timed(training, warm_up, steps))
    planned = (plan(setting) | row for setting, row in zip(settings, rows, strict=True))
    whole = kept(planned, device_kind(), out / "checkpointing.json")
    title = f"Batch {models.batch}, {warm_up} warm-up steps, median of {steps} steps; predicted / measured"
    axes = told_apart_by(whole["rows"])
    sentences = [sentence for group in groups(whole["rows"]) for sentence in answers(group, axes)]
    present(whole, title, shown(whole["rows"]), sentences)
    for group in groups(whole["rows"]):
        name = "-".join(str(group[0][axis]) for axis in axes)
        draw(group, out / f"checkpointing-{name}.png", f"{_where(group[0], axes)}\n{heading(whole)}")


def ways(setting: Setting, every: tuple[int, ...]) -> Iterator[Setting]:
    """Yield the setting without checkpoints, with groups of each size, and with each other mode of single layers."""
    yield setting
    for k in every or range(1, layers_of(setting) + 1):
        yield dataclasses.replace(setting, checkpoint_every=k)
    modes = ("groups", "nested") if setting.attention == "reference" else ("groups", "nested", "selective")
    for mode in modes:
        for offload in (False, True):
            if (mode, offload) != ("groups", False):
                yield dataclasses.replace(setting, checkpoint_every=1, checkpoint_mode=mode, checkpoint_offload=offload)


def layers_of(setting: Setting) -> int:
    """Return the number of layers of the setting's model."""
    return int(measured("configs", "MODEL_CONFIGS")[setting.size].num_layers)


def plan(setting: Setting) -> Row:
    """Return what is known of a setting before it runs: layers that run again, bytes kept on the device and FLOPs."""
    config, sizes = measured("configs", "MODEL_CONFIGS")[setting.size], (setting.batch, setting.context_length)
    how = accounted(setting)
    attention = "reference" if setting.attention == "reference" else "flash"
    return {
        "batch": setting.batch,
        "every": setting.checkpoint_every,
        "mode": setting.checkpoint_mode,
        "offload": setting.checkpoint_offload,
        "recomputed": measured("accounting.checkpointing", "recomputed_blocks")(config.num_layers, *how.values())
        if how
        else 0,
        "kept_bytes": measured("accounting.kept", "model_kept_bytes")(
            config, *sizes, attention=attention, precision=setting.precision, **how
        ),
        "flops": measured("accounting.compute", "step_flops")(config, *sizes, **how),
    }


def timed(training: Training, warm_up: int, steps: int) -> Row:
    """Return the seconds of every counted step, and on a GPU the peak of allocated bytes."""
    row = measure(training, warm_up, steps)
    return {"step_s": step_seconds(row), "peak_bytes": row.get("peak_bytes")}


def groups(rows: list[Row]) -> list[list[Row]]:
    """Return the rows of each model, context, precision, variant and attention."""
    return [mine for _, mine in grouped(rows, *Setting.AXES)]


def predicted_seconds(rows: list[Row], row: Row) -> float | None:
    """Return the time that a row's FLOPs take at the rate of the measured row with the fewest; None without any."""
    first = min((each for each in rows if "step_s" in each), key=lambda each: each["flops"], default=None)
    return statistics.median(first["step_s"]) * row["flops"] / first["flops"] if first else None


def named(row: Row) -> str:
    """Name a row's checkpoints."""
    if row["every"] is None:
        return "none"
    mode = "" if row["mode"] == "groups" else f"{row['mode']}, "
    return f"{mode}k = {row['every']}{', offloaded' if row['offload'] else ''}"


def shown(rows: list[Row]) -> Iterator[Row]:
    """Yield the cells of each row by column title."""
    for group in groups(rows):
        for row in group:
            cells: Row = {axis: row[axis] for axis in told_apart_by(rows)}
            cells |= {
                "checkpoints": named(row),
                "run again": row["recomputed"],
                "kept, GiB": f"{row['kept_bytes'] / GIB:.3f}",
            }
            peaks = (row.get("predicted_bytes"), row.get("peak_bytes"))
            cells["peak, GiB"] = " / ".join(f"{size / GIB:.3f}" for size in peaks if size is not None)
            seconds = (predicted_seconds(group, row), statistics.median(row["step_s"]) if "step_s" in row else None)
            cells["step, ms"] = " / ".join(f"{value * 1e3:.1f}" for value in seconds if value is not None)
            yield cells | ({} if row["status"] == "ok" else {"status": describe(row)})


def told_apart_by(rows: list[Row]) -> list[str]:
    """Return the axes that name a group of these rows: variant and attention only if there are several."""
    return differing(rows, Setting.AXES, always=Setting.AXES[:3])


def _where(row: Row, axes: Sequence[str]) -> str:
    words = {"context": f"context {row['context']}"}
    return ", ".join(words.get(axis) or row[axis] for axis in axes)


def answers(rows: list[Row], axes: Sequence[str] = Setting.AXES[:3]) -> Iterator[str]:
    """Name the best k with its neighbours, and what each other mode changes."""
    what = _where(rows[0], axes)
    by_name = {named(row): row for row in rows}
    grouped = [row for row in rows if row["every"] is not None and row["mode"] == "groups" and not row["offload"]]
    for key, verb in (("predicted_bytes", "predicted"), ("peak_bytes", "measured")):
        known = sorted((row for row in grouped if row.get(key) is not None), key=lambda row: row["every"] or 0)
        if not known:
            continue
        best = min(known, key=lambda row: (row[key], -(row["every"] or 0)))
        at = known.index(best)
        around = (known[place] for place in (at - 1, at + 1) if 0 <= place < len(known))
        beside = ", ".join(f"{named(row)} {memory(row[key])}" for row in around)
        none = by_name.get("none", {}).get(key)
        smallest = "; a group has one layer at least" if best["every"] == 1 else ""
        yield (
            f"{what}: the least peak that is {verb} has {named(best)}, {memory(best[key])}"
            f"{f' against {memory(none)} without checkpoints' if none is not None else ''}"
            f" (beside it: {beside or 'nothing'}{smallest})."
        )
    single, nested = by_name.get("k = 1"), by_name.get("nested, k = 1")
    if single is None or nested is None:
        return
    peak = ""
    if "predicted_bytes" in single and "predicted_bytes" in nested:
        saved = single["predicted_bytes"] - nested["predicted_bytes"]
        peak = f", and the predicted peak of the step is {f'{memory(saved)} less' if saved else 'the same'}"
    yield (
        f"Nested, single layers: {nested['recomputed']} layers run again instead of {single['recomputed']}, "
        f"{times(nested['flops'] / single['flops'])} the FLOPs; {memory(nested['kept_bytes'])} are kept after the "
        f"forward instead of {memory(single['kept_bytes'])}{peak}."
    )
    if selective := by_name.get("selective, k = 1"):
        yield (
            f"Selective: attention's results take {memory(selective['kept_bytes'] - single['kept_bytes'])} and save "
            f"{1 - selective['flops'] / single['flops']:.2%} of the step's FLOPs."
        )
    if offloaded := by_name.get("k = 1, offloaded"):
        yield f"Offloaded: {memory(single['kept_bytes'] - offloaded['kept_bytes'])} cross the bus twice in a step."


def draw(rows: list[Row], path: Path, title: str) -> None:
    """Plot peak and time over k: predictions as lines, measurements as dots; other modes as horizontal lines."""
    figure, (peak, time) = figures.subplots(1, 2, figsize=(8.5, 3.4))
    grouped = [row for row in rows if row["mode"] == "groups" and not row["offload"] and row["every"] is not None]
    every = [row["every"] for row in grouped]
    predicted = [row.get("predicted_bytes", float("nan")) / GIB for row in grouped]
    peak.plot(every, predicted, lw=1, label="groups, predicted")
    dots = {row["every"]: size / GIB for row in grouped if (size := row.get("peak_bytes")) is not None}
    peak.scatter(list(dots), list(dots.values()), s=14, label="groups, measured")
    others = [row for row in rows if row not in grouped]
    for number, row in enumerate(others):
        style = {"color": f"C{number + 1}", "lw": 1, "label": named(row)}
        if "predicted_bytes" in row:
            peak.axhline(row["predicted_bytes"] / GIB, ls=":", **style)
        if "step_s" in row:
            time.axhline(statistics.median(row["step_s"]) * 1e3, ls="-", **style)
    lines = [(k, value) for k, row in zip(every, grouped, strict=True) if (value := predicted_seconds(rows, row))]
    time.plot([k for k, _ in lines], [value * 1e3 for _, value in lines], lw=1)
    for row in grouped:
        if "step_s" in row:
            time.scatter([row["every"]], [statistics.median(row["step_s"]) * 1e3], s=14, color="C0")
    peak.set(xlabel="layers in a group, k", ylabel="peak, GiB")
    time.set(xlabel="layers in a group, k", ylabel="step, ms", yscale="log")  # nested takes five times the others'
    for axes in (peak, time):
        axes.xaxis.get_major_locator().set_params(integer=True)
    peak.legend(fontsize=6)
    figures.save(figure, path, title)
