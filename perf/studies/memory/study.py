"""Attribute the memory of a forward and of a training step: timelines, peaks and their largest allocations."""

from pathlib import Path

import click

from perf.studies.device import device_kind
from perf.studies.document import conclude, heading, kept, out_option
from perf.studies.lm import WITH_PHASES, Models, Setting, model_options, rows_of
from perf.studies.memory.recording import (
    STEP,
    forward_alone,
    gradient_addresses,
    held_bytes,
    record,
    whole_step,
)
from perf.studies.memory.timeline import draw, summary
from perf.studies.rows import Row, requested_size
from perf.studies.workspaces import workspaces
from perf.tables import text_table
from perf.units import memory
from perf.workloads import measured
from perf.workloads.transformer_training import Training

PASSES = {"forward": forward_alone, "step": whole_step}
CAPTIONS = {"forward": "a forward alone, without gradients", "step": "a full training step"}
WARM_UP = 2
SHOWN = 5
"""Largest allocations in the table of a setting; its row has more."""

ON_A_GPU = {"size": ("2.7B",), "context": (128, 256, 512), "precision": ("fp32", "bf16")}
ELSEWHERE = {"precision": ("fp32", "bf16")}


@click.command()
@model_options(ON_A_GPU, ELSEWHERE, allowed={"variant": WITH_PHASES})
@out_option
def command(models: Models, out: Path) -> None:
    """Attribute the memory of a forward and of a training step. 2.7B on a GPU: some minutes; tiny on a CPU: seconds.

    \b
    python -m perf study memory --size 2.7B --context 512 --precision fp32 --precision bf16 --out memory

    The course's measurement: after two warm-up passes the allocator's history is recorded over a forward without
    gradients, and over a whole step. Names the peak of each, its phase, the largest allocations and where they are
    made. In --out: a timeline of active memory for each setting, phases and peak marked, and the snapshots
    (memory_SIZE_CONTEXT_PRECISION_forward.pickle, .._step.pickle) for https://pytorch.org/memory_viz.
    A pass that does not fit is a row with the allocation that failed.
    """
    kind = device_kind()
    settings = models.settings()
    if kind == "cpu":
        _refuse_compiled(settings)
    held = workspaces() if kind == "cuda" else None
    # Of a step that does not fit, the forward alone may.
    tried = rows_of(settings, lambda training, setting: measure(training, setting, out), tries_all=True)
    whole = kept(tried, kind, out / "memory.json", workspaces=held)
    rows = whole["rows"]
    click.echo(heading(whole))
    click.echo(about(held))
    click.echo(f"Batch {models.batch}, after {WARM_UP} warm-up passes; before and peak are allocated bytes")
    click.echo(peaks(rows))
    for row in rows:
        if "largest" in row.get("step", {}):
            click.echo(f"\nLargest allocations at the peak of the step: {_name(row)}")
            click.echo(allocations(row))
    conclude(["", *answers(rows)])
    for setting, row in zip(settings, rows, strict=True):
        if passes := {CAPTIONS[name]: row[name] for name in PASSES if "phases" in row.get(name, {})}:
            title = f"{_name(row)}, {setting.variant}, attention {setting.attention}, batch {setting.batch}"
            draw(passes, out / f"{stem(setting)}.png", f"{title}\n{heading(whole)}; bytes requested")


def measure(training: Training, setting: Setting, out: Path | None = None) -> Row:
    """Return the `summary` of both passes, or the allocation that failed, and the bytes of each owner between steps.

    The forward comes first, before there are gradients or optimizer states.
    """
    import torch

    train = training.train
    d_model = measured("configs", "MODEL_CONFIGS")[setting.size].d_model
    row: Row = {"batch": setting.batch, "d_model": d_model}
    row["residual_bytes"] = setting.batch * setting.context_length * d_model * 4
    for name, phases in PASSES.items():
        snapshot = out and out / f"{stem(setting)}_{name}.pickle"
        try:
            for _ in range(WARM_UP):
                for _phase in phases(train):
                    pass
            row[f"held_before_{name}"] = held_bytes(train)
            recording = record(phases(train), train, snapshot)
            row[name] = summary(recording, gradient_addresses(train))
        except torch.OutOfMemoryError as error:
            error.__traceback__ = None  # it holds the frames, and they the tensors
            requested = requested_size(str(error))
            row[name] = {"out_of_memory": requested}
            row |= {"status": "out_of_memory", "reason": f"{name} {requested}"}
    return row


def stem(setting: Setting) -> str:
    """Return memory_SIZE_CONTEXT_PRECISION, with the variant and the attention unless they are the defaults."""
    unusual = [value for value in (setting.variant, setting.attention) if value not in ("eager", "reference")]
    return "_".join(["memory", setting.size, str(setting.context_length), setting.precision, *unusual])


def about(held: dict[str, int] | None) -> str:
    """Describe the memory in use before any model."""
    if held is None:
        return "A CPU has no workspace of cuBLAS; memory is that of tensors, by the lifetimes of their storages."
    before, product, backward = held.values()
    return (
        f"torch.cuda.memory_allocated() is {memory(before)} before any model and {memory(product)} after a first "
        f"product: cuBLAS's workspace is {memory(product - before)}. The backward's thread has its own of "
        f"{memory(backward - product)}. Both stay allocated and count in every before and every peak."
    )


def peaks(rows: list[Row]) -> str:
    """Return the table of peaks, a line for each setting."""
    shown = []
    for row in rows:
        cells = {axis: row[axis] for axis in Setting.AXES}
        for name in PASSES:
            recorded = row.get(name, {})
            if "phases" in recorded:
                cells[f"before {name}"] = memory(recorded["before_bytes"])
                cells[f"peak of {name}"] = memory(recorded["peak_bytes"])
            else:
                cells[f"peak of {name}"] = recorded.get("out_of_memory") or row["reason"]
        cells["peak is in"] = row.get("step", {}).get("peak_phase", "")
        cells["residual B·T·d·4"] = memory(row["residual_bytes"]) if "residual_bytes" in row else ""
        shown.append(cells)
    return text_table(shown)


def allocations(row: Row) -> str:
    """Return the table of the largest blocks that the step made and that were alive at its peak."""
    shown = [
        {
            "each": memory(group["bytes"]),
            "count": group["count"],
            "together": memory(group["bytes"] * group["count"]),
            "made in": group["phase"],
            "where": group["where"],
        }
        for group in row["step"]["largest"][:SHOWN]
    ]
    return text_table(shown)


def answers(rows: list[Row]) -> list[str]:
    """Answer the course's questions, a sentence each, from the numbers of `rows`."""
    sentences = [_course(row) for row in rows if "phases" in row.get("step", {})]
    sentences += _precisions(rows)
    sentences += _between(rows)
    seen = {(row["size"], row["context"]): row for row in rows if "residual_bytes" in row}
    sentences += [
        f"{size}, context {context}: a tensor of the residual stream in float32 is {row['batch']} x {context} x "
        f"{row['d_model']} x 4 bytes = {row['residual_bytes'] / 2**20:.2f} MiB."
        for (size, context), row in seen.items()
    ]
    sentences += [_largest(row) for row in rows if row.get("step", {}).get("largest")]
    return sentences


def _largest(row: Row) -> str:
    """Describe the blocks of the greatest size by the code that allocated them."""
    groups = row["step"]["largest"]
    most = [group for group in groups if group["bytes"] == groups[0]["bytes"]]
    places = "; ".join(f"{group['count']} made in the {group['phase']}: {group['where']}" for group in most)
    return (
        f"{_name(row)}: the largest allocations of the step are of {memory(groups[0]['bytes'])}, of which "
        f"{sum(group['count'] for group in most)} are alive at its peak ({places})."
    )


def _course(row: Row) -> str:
    """Describe the timeline: the bytes at the ends of each phase, and where the peak is."""
    phases = {phase["name"]: phase for phase in row["step"]["phases"]}
    forward, backward, optimizer = (phases[name] for name in STEP[1:])
    moved = {phase["name"]: phase["end_bytes"] - phase["start_bytes"] for phase in phases.values()}
    still = abs(moved["optimizer"]) < 1e-3 * optimizer["end_bytes"]
    tail = "leaves it there" if still else f"ends at {memory(optimizer['end_bytes'])}"
    alone = ""
    if "phases" in row.get("forward", {}):
        (only,) = (phase for phase in row["forward"]["phases"] if phase["name"] == "forward")
        gone = only["peak_bytes"] - only["end_bytes"]
        alone = (
            f"a forward alone peaks {memory(only['peak_bytes'] - only['start_bytes'])} above its start and gives "
            f"{memory(gone)} of it back; "
        )
    return (
        f"{_name(row)}: {alone}the step goes from {memory(forward['start_bytes'])} to {memory(forward['end_bytes'])} "
        f"in the forward, which {'keeps' if moved['forward'] > 0 else 'keeps none of'} its activations, the backward "
        f"ends at {memory(backward['end_bytes'])} with the gradients in their place, the optimizer {tail}; the peak, "
        f"{memory(row['step']['requested_peak_bytes'])}, is in the {row['step']['peak_phase']}."
    )


def _between(rows: list[Row]) -> list[str]:
    """Give the bytes of each owner before a step, which are the same for every context."""
    sentences: dict[str, str] = {}
    for row in rows:
        if "phases" in row.get("step", {}):
            held = row["held_before_step"]
            rest = row["step"]["before_bytes"] - sum(held.values())
            owners = ", ".join(f"{owner.replace('_', ' ')} {memory(count)}" for owner, count in held.items())
            other = f"; workspaces and the allocator's rounding are {memory(rest)}" if rest else ""
            sentences.setdefault(f"before a step there are {owners}{other}.", f"{row['size']}, {row['precision']}")
    return [f"{models}: {sentence}" for sentence, models in sentences.items()]


def _precisions(rows: list[Row]) -> list[str]:
    """Compare every other precision with fp32, all else equal."""
    sentences = []
    for row in rows:
        same = [axis for axis in Setting.AXES if axis != "precision"]
        for base in rows:
            if row is base or base["precision"] != "fp32" or any(row[axis] != base[axis] for axis in same):
                continue
            changes = [
                f"the peak of the {name} from {memory(base[name]['peak_bytes'])} to {memory(row[name]['peak_bytes'])} "
                f"({row[name]['peak_bytes'] / base[name]['peak_bytes'] - 1:+.1%})"
                for name in PASSES
                if "phases" in row.get(name, {}) and "phases" in base.get(name, {})
            ]
            if changes:
                sentences.append(f"{_name(row)}: against fp32, it changes {' and '.join(changes)}.")
    return sentences


def _name(row: Row) -> str:
    unusual = [row[axis] for axis in ("variant", "attention") if row[axis] not in ("eager", "reference")]
    return ", ".join([row["size"], f"context {row['context']}", row["precision"], *unusual])


def _refuse_compiled(settings: list[Setting]) -> None:
    for setting in settings:
        if setting.variant != "eager":
            raise click.BadParameter(
                f"{setting.variant} was given; allowed without a GPU: eager, whose operations can be watched",
                param_hint="--variant",
            )
