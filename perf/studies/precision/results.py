"""Results of the training part of the precision study: tables, answers, and loss curves."""

import statistics
from pathlib import Path
from typing import Any

from perf.harness.status import describe
from perf.studies import figures
from perf.studies.precision.training import SCALE, Run
from perf.studies.rows import Row
from perf.units import GIB

STYLES: dict[str, dict[str, Any]] = {
    "fp32": {"color": "lightgray", "linewidth": 5},  # the others lie on top of it
    "bf16": {"color": "tab:blue", "linewidth": 1.5},
    "fp16": {"color": "tab:orange", "linewidth": 1.5, "linestyle": "--"},
}


def training_table(run: Run, rows: list[Row]) -> list[Row]:
    """Return the cells of each row; a loss is the mean of the last `run.window` steps."""
    shown_steps = sorted({1, *(run.steps * quarter // 4 for quarter in (1, 2, 3, 4))})
    return [_training_row(run, row, shown_steps) for row in rows]


def _training_row(run: Run, row: Row, shown_steps: list[int]) -> Row:
    if row["status"] != "ok":
        return {"precision": row["precision"], "samples/s": describe(row)}
    shown = {
        "precision": row["precision"],
        "samples/s": f"{row['samples_per_s']:.1f}",
        "step, ms": f"{row['step_mean_s'] * 1e3:.2f}",
        "median, ms": f"{row['step_median_s'] * 1e3:.2f}",
        "SD, ms": f"{row['step_sd_s'] * 1e3:.2f}",
    }
    if row["peak_bytes"] is not None:
        shown["peak memory, GiB"] = f"{row['peak_bytes'] / GIB:.2f}"
    for step in shown_steps:
        shown[f"loss at {step}"] = f"{statistics.fmean(row['losses'][max(0, step - run.window) : step]):.4f}"
    overflowed = row["overflowed_steps"]
    return shown | {
        "overflowed steps": f"{overflowed} ({row['overflowed_elements']} elements)" if overflowed else "0",
        "skipped steps": row["skipped_steps"],
        "last loss scale": "" if row["loss_scale"] is None else f"{row['loss_scale']:g}",
    }


def underflow_table(rows: list[Row]) -> list[Row]:
    """Return the cells of each row by column title."""
    return [
        {
            "precision": row["precision"],
            "loss scale": f"{row['scale']:g}",
            "not zero in fp32": row["nonzero_in_fp32"],
            "of these zero here": row["zero_here"],
            "share": f"{_share(row):.3%}",
            "inf or nan here": row["not_finite"],
        }
        if row["status"] == "ok"
        else {"precision": row["precision"], "loss scale": describe(row)}
        for row in rows
    ]


def _share(row: Row) -> float:
    return row["zero_here"] / row["nonzero_in_fp32"]


def answer(run: Run, rows: list[Row], vanished: list[Row]) -> list[str]:
    """Return paragraphs on speed and memory, convergence, and stability."""
    done = {row["precision"]: row for row in rows if row["status"] == "ok"}
    paragraphs = [f"{row['precision']}: {describe(row)}." for row in rows if row["status"] != "ok"]
    if any(row["status"] == "out_of_memory" for row in rows):
        paragraphs.append("A smaller --batch or --context takes less memory.")
    if "fp32" in done:
        paragraphs += [_speed(run, done), _convergence(run, done)]
    if "fp16" in done:
        paragraphs.append(_stability(run, done["fp16"], [row for row in vanished if row["status"] == "ok"]))
    return paragraphs


def _speed(run: Run, done: dict[str, Row]) -> str:
    exact = done["fp32"]
    parts = []
    for name, row in done.items():
        if name == "fp32":
            continue
        ratio = exact["step_median_s"] / row["step_median_s"]
        part = f"{name} {row['samples_per_s']:.1f} ({ratio:.2f} times as fast by the median step"
        if row["peak_bytes"] is not None:
            part += f", with {1 - row['peak_bytes'] / exact['peak_bytes']:.0%} less memory"
        parts.append(part + ")")
    text = f"fp32 trains {exact['samples_per_s']:.1f} samples/s; {', '.join(parts)}."
    if run.device == "cpu":
        return text + " This is a CPU: its times say nothing about a GPU's, and its memory was not measured."
    return text + (
        " fp32 is IEEE, without TF32. Parameters, gradients and optimizer state stay in fp32 under autocast; what "
        "shrinks is what the forward keeps."
    )


def _convergence(run: Run, done: dict[str, Row]) -> str:
    exact = done["fp32"]["final_loss"]
    others = [f"{name} {row['final_loss'] - exact:+.4f}" for name, row in done.items() if name != "fp32"]
    return (
        f"Over the last {run.window} of {run.steps} steps the loss of fp32 is {exact:.4f} nats, and against it "
        f"{', '.join(others)}; it began at {done['fp32']['losses'][0]:.2f}, and the stream's "
        f"entropy is {run.lowest_loss:.2f}."
    )


def _stability(run: Run, fp16: Row, vanished: list[Row]) -> str:
    shares = [
        f"{row['zero_here']} ({_share(row):.3%}) in {row['precision']}"
        + (f" scaled by {row['scale']:g}" if row["scale"] != 1 else "")
        for row in vanished
    ]
    skipped = fp16["skipped_steps"]
    why = ", in which scaled gradients overflowed" if skipped else ""
    text = (
        f"fp16 skipped {skipped or 'none'} of {run.steps} steps{why}; its loss scale began at {SCALE:g} and ended at "
        f"{fp16['loss_scale']:g}."
    )
    if shares:
        text += f" Of the first batch's gradient elements that are not zero in fp32, zero are: {', '.join(shares)}."
    return text


def smoothed(losses: list[float], window: int) -> list[float]:
    """Return the means of `window` successive losses; the first is that of steps 1 to `window`."""
    return [statistics.fmean(losses[end - window : end]) for end in range(window, len(losses) + 1)]


def draw(path: Path, run: Run, rows: list[Row], title: str) -> None:
    """Plot loss curves, and below them their difference from that of fp32."""
    curves = {row["precision"]: smoothed(row["losses"], run.window) for row in rows if row["status"] == "ok"}
    steps = range(run.window, run.steps + 1)
    figure, (above, below) = figures.subplots(2, 1, figsize=(7.5, 5.5), sharex=True, height_ratios=(2, 1))
    for name, curve in curves.items():
        label = "fp16 with loss scaling" if name == "fp16" else name
        above.plot(steps, curve, label=label, **STYLES[name])
        if "fp32" in curves and name != "fp32":
            differences = [here - exact for here, exact in zip(curve, curves["fp32"], strict=True)]
            below.plot(steps, differences, **STYLES[name])
    above.axhline(run.lowest_loss, color="gray", linewidth=1, linestyle=":", label="lowest possible")
    below.axhline(0, **STYLES["fp32"], zorder=0)
    above.set_ylabel("loss (nats)")
    below.set_ylabel("loss $-$ that of fp32")
    below.set_xlabel(f"step (each point: mean of the last {run.window} steps)")
    above.set_title(title, fontsize=10, loc="left")
    above.legend(frameon=False)
    for axes in (above, below):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figures.save(figure, path)
