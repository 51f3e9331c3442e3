"""Results of the study of kernels: a table for each question, a sentence for each setting, and a figure."""

import re
from pathlib import Path
from typing import Any

import click

from perf.harness.status import describe
from perf.studies import figures
from perf.studies.end_to_end import PHASES
from perf.studies.kernels.profiling import KINDS
from perf.studies.lm import Setting
from perf.studies.rows import Row, differing
from perf.tables import text_table
from perf.units import digits

SETTINGS_SHOWN = 4  # with a table of their own, since more are hundreds of lines
NAME_WIDTH = 64  # CUTLASS names go on for a thousand characters
PARTS = {"forward_only": "forward", "step": "step"}
BOUND = {
    "launches": "launch-bound: the device is busy for {busy:.0%} of the step's wall time",
    "bandwidth": "bandwidth-bound: kernels other than matmuls take {rest:.0%} of the step's busy time",
    "compute": "compute-bound: matmuls and fused attention take {products:.0%} of the step's busy time",
}


def echo_tables(rows: list[Row], top: int, *, on_gpu: bool) -> None:
    """Print every table under the question that it answers. On a CPU operators stand for kernels."""
    done = [row for row in rows if row["status"] == "ok"]
    work, device = ("kernels", "device") if on_gpu else ("operators", "CPU operators' self")
    click.echo(f"\nDoes the {device} time agree with the wall clock? {device} / wall, ms; forward without a graph")
    click.echo(phases_table(rows, "launches" if on_gpu else work))
    if lost := sum(row[part]["unattributed"] for row in done for part in PARTS):
        click.echo(f"{lost} {work} have no launch in the trace: they count in the totals, in no phase and in no range.")
    if not done:
        return
    click.echo(f"\nHow much of the {device} time is spent in matmuls, and is the longest one the same?")
    click.echo(matmul_table(done))
    if any(row["ranges_s"] for row in done):
        click.echo(f"\nForward by range, {device} time, ms; ranges contain each other")
        click.echo(ranges_table(done))
    if any(row["attention_parts"] for row in done):
        click.echo("\nSoftmax against the two matmuls of attention, all layers of a forward")
        click.echo(attention_table(done))
    if len(done) > SETTINGS_SHOWN:
        click.echo(
            f"\nThe longest {work} of more than {SETTINGS_SHOWN} settings are in kernels.json alone; choose a --size."
        )
        return
    for row in done:
        click.echo(f"\n{', '.join(str(value) for value in named(row).values())}: the longest {work}")
        click.echo(kernels_table(row, top))


def named(row: Row) -> Row:
    """Return the setting of a row."""
    return {axis: row[axis] for axis in Setting.AXES}


def phases_table(rows: list[Row], counted: str) -> str:
    """Return busy and wall time of each phase, the number of kernels, and the idle time."""
    shown = []
    for row in rows:
        cells = named(row)
        if row["status"] == "ok":
            wall, step = row["wall_s"], row["step"]
            cells["forward only"] = pair(row["forward_only"]["busy_s"], wall["forward only"])
            cells |= {name: pair(row["phases_s"][name], wall[name]) for name in PHASES}
            cells["step"] = pair(step["busy_s"], wall["step"])
            cells["idle, ms"] = ms(max(0.0, wall["step"] - step["busy_s"]))
            cells["busy"] = f"{step['busy_s'] / wall['step']:.0%}"
            cells[counted] = f"{row['forward_only']['launches']} / {step['launches']}"
        else:
            cells["forward only"] = describe(row)
        shown.append(cells)
    return table(shown)


def matmul_table(rows: list[Row]) -> str:
    """Return the share of matmuls in a forward and in a step, and the longest kernel of each."""
    shown = []
    for row in rows:
        cells = named(row)
        for part, name in PARTS.items():
            cells[f"{name}: matmul"] = f"{share(row[part], 'matmul'):.0%}"
            top, _, count, seconds = row[part]["kernels_s"][0]
            cells[f"{name}: top, its calls and share"] = f"{short(top, 36)} {count}x {seconds / total(row[part]):.0%}"
        cells["same"] = "yes" if row["forward_only"]["kernels_s"][0][0] == row["step"]["kernels_s"][0][0] else "no"
        shown.append(cells)
    return table(shown)


def ranges_table(rows: list[Row]) -> str:
    """Return the busy time of a forward in each named range."""
    return table(
        [named(row) | {f"in {name}": ms(seconds) for name, seconds in row["ranges_s"].items()} for row in rows]
    )


def attention_table(rows: list[Row]) -> str:
    """Return time and FLOPs of softmax over those of the matmuls: 5 T^2 and 4 T^2 d for each head."""
    shown = []
    for row in rows:
        if parts := row["attention_parts"]:
            times = parts["softmax_s"] / parts["matmul_s"]
            flops = parts["softmax_flops"] / parts["matmul_flops"]
            shown.append(
                named(row)
                | {
                    "softmax, ms": ms(parts["softmax_s"]),
                    "matmuls, ms": ms(parts["matmul_s"]),
                    "scale and mask, ms": ms(parts["scale_and_mask_s"]),
                    "softmax / matmuls: time": f"{times:.2f}",
                    "FLOPs": f"1 : {1 / flops:.0f}",
                    "time per FLOP": f"{times / flops:.0f}x",
                }
            )
    return table(shown)


def kernels_table(row: Row, top: int) -> str:
    """Return the longest `top` kernels of a forward, of a step, and of a forward without its matmuls."""
    shown = []
    for part, name in (*PARTS.items(), ("forward_only", "forward, no matmul")):
        kernels = [each for each in row[part]["kernels_s"] if "no matmul" not in name or each[1] != "matmul"]
        shown += [
            {
                "of": name,
                "name": short(kernel, NAME_WIDTH),
                "kind": kind,
                "calls": count,
                "ms": ms(seconds),
                "share": f"{seconds / total(row[part]):.1%}",
            }
            for kernel, kind, count, seconds in kernels[:top]
        ]
    return table(shown)


def sentence(row: Row) -> str:
    """Name the limit of the step, the change to try next and, where it was measured, its gain."""
    name = ", ".join(str(value) for value in named(row).values())
    if row["status"] != "ok":
        return f"{name}: {describe(row)}."
    step = row["step"]
    products = share(step, "matmul") + share(step, "fused attention")
    text = BOUND[row["limit"]].format(busy=step["busy_s"] / row["wall_s"]["step"], rest=1 - products, products=products)
    if row["next"] is None:
        return f"{name}: {text}. There is no easy change left."
    changed = ", ".join(f"--{axis} {value}" for axis, value in row["next"].items() if value != row[axis])
    text += f". Try {changed}"
    if "next_s" in row:
        before, after = row["wall_s"]["step"], row["next_s"]
        text += f": {before * 1e3:.2f} -> {after * 1e3:.2f} ms a step, {before / after:.2f} times as fast"
    elif "next_status" in row:
        text += f" ({describe({'status': row['next_status'], 'reason': row.get('next_reason')})})"
    return f"{name}: {text}."


def draw(rows: list[Row], path: Path, title: str, *, on_gpu: bool) -> None:
    """Draw a bar for the forward and the step of each setting: shares of device time by kind, and its sum."""
    done = [row for row in rows if row["status"] == "ok"]
    if not done:
        return
    varied = differing(done, Setting.AXES, always=("size", "context"))
    bars = [(" ".join(str(row[axis]) for axis in varied), row, part) for row in done for part in PARTS]
    figure, axes = figures.subplots(figsize=(7.5, 1.3 + 0.24 * len(bars)))
    colors = dict(zip(KINDS, ("C0", "C9", "C3", "C1", "C2", "0.7"), strict=True))
    shares = {kind: [100 * share(row[part], kind) for _, row, part in bars] for kind in KINDS}
    shares = {kind: widths for kind, widths in shares.items() if any(widths)}
    labels = [f"{label}  {PARTS[part]}" for label, _, part in bars]
    figures.stacked_bars(axes, labels, shares, [colors[kind] for kind in shares])
    for place, (_, row, part) in enumerate(bars):
        axes.text(101, place, f"{ms(total(row[part]))} ms", va="center", fontsize=8)
    axes.set_xlim(0, 115)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("% of device time" if on_gpu else "% of CPU operators' self time")
    figures.legend_below(figure)
    figures.save(figure, path, title)


def total(part: dict[str, Any]) -> float:
    """Return the seconds of all kernels of a forward or of a step."""
    return sum(part["kinds_s"].values())


def share(part: dict[str, Any], kind: str) -> float:
    """Return the share of one kind in the time of all kernels."""
    return part["kinds_s"][kind] / total(part)


def short(name: str, width: int) -> str:
    """Return the start of a kernel's name without torch's common prefixes."""
    return re.sub(r"^void |at::native::|\(anonymous namespace\)::", "", name)[:width]


def pair(busy: float, wall: float) -> str:
    """Format both in milliseconds."""
    return f"{ms(busy)} / {ms(wall)}"


def ms(seconds: float) -> str:
    """Format milliseconds with three significant digits."""
    return digits(seconds * 1e3)


def table(shown: list[dict[str, Any]]) -> str:
    """Return a table for the terminal without constant columns of the settings."""
    constant = {axis for axis in Setting.AXES[2:] if len({cells.get(axis) for cells in shown}) == 1}
    return text_table({name: value for name, value in cells.items() if name not in constant} for cells in shown)
