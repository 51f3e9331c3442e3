"""What holds the memory of a forward and of a training step: timelines, peaks and their largest allocations."""

from pathlib import Path

import click

from perf.studies.document import document, heading, kept, out_option, text_table, write
from perf.studies.lm import ON_A_CPU, Models, Setting, asked_for, device_kind, model_options, rows_of
from perf.studies.memory.recording import (
    FORWARD,
    STEP,
    forward_alone,
    gradient_addresses,
    held_bytes,
    record,
    whole_step,
    workspaces,
)
from perf.studies.memory.timeline import draw, sized, summary
from perf.studies.rows import Row
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
@model_options(ON_A_GPU, ELSEWHERE)
@out_option
def command(models: Models, out: Path) -> None:
    """What holds the memory of a forward and of a training step? 2.7B on a GPU: some minutes; tiny on a CPU: seconds.

    \b
    python -m perf study memory --size 2.7B --context 512 --precision fp32 --precision bf16 --out memory

    As the course asks: after two warm-up passes the allocator's history is recorded over a forward without gradients,
    and over a whole step. Says the peak of each, in which phase it lies, which allocations are the largest and where
    they come from. In --out: a timeline of active memory per setting, phases and peak marked, and the snapshots
    (memory_SIZE_CONTEXT_PRECISION_forward.pickle, .._step.pickle) that https://pytorch.org/memory_viz reads.
    A pass that does not fit is a row with the memory it asked for.
    """
    kind = device_kind()
    settings = models.settings(phases=True)
    if kind == "cpu":
        _refuse_compiled(settings)
    held = workspaces() if kind == "cuda" else None
    rows = kept(rows_of(settings, lambda training, setting: measure(training, setting, out)), kind, out / "memory.json")
    whole = document(kind, rows) | {"workspaces": held}
    click.echo(heading(whole))
    click.echo(about(held))
    click.echo(f"Batch {models.batch}, after {WARM_UP} warm-up passes; before and peak are allocated bytes")
    click.echo(peaks(rows))
    for row in rows:
        if "largest" in row.get("step", {}):
            click.echo(f"\nLargest allocations at the peak of the step: {_name(row)}")
            click.echo(allocations(row))
    click.echo("")
    for sentence in answers(rows):
        click.echo(sentence)
    if kind == "cpu":
        click.echo(ON_A_CPU)
    write(out / "memory.json", whole)
    for setting, row in zip(settings, rows, strict=True):
        passes = {CAPTIONS[one]: row[one] for one in PASSES if "phases" in row.get(one, {})}
        if passes:
            title = f"{_name(row)}, {setting.variant}, attention {setting.attention}, batch {setting.batch}"
            draw(passes, out / f"{stem(setting)}.png", f"{title}\n{heading(whole)}; bytes asked for")


def measure(training: Training, setting: Setting, out: Path | None = None) -> Row:
    """Both passes: each a `summary`, or the memory that could not be had; and who holds what between steps.

    The forward comes first, while there are neither gradients nor an optimizer's state.
    """
    import torch

    train = training.train
    d_model = measured("configs", "MODEL_CONFIGS")[setting.size].d_model
    found: Row = {"batch": setting.batch, "d_model": d_model}
    found["residual_bytes"] = setting.batch * setting.context_length * d_model * 4
    for name, phases in PASSES.items():
        snapshot = out and out / f"{stem(setting)}_{name}.pickle"
        try:
            for _ in range(WARM_UP):
                for _phase in phases(train):
                    pass
            found[f"held_before_{name}"] = held_bytes(train)
            recording = record(phases(train), train, snapshot)
            found[name] = summary(recording, gradient_addresses(train))
        except torch.OutOfMemoryError as error:
            error.__traceback__ = None  # it holds the frames, and they the tensors
            found[name] = {"out_of_memory": asked_for(error)}
            found |= {"status": "out_of_memory", "reason": f"{name} {asked_for(error)}"}
    return found


def stem(setting: Setting) -> str:
    """memory_SIZE_CONTEXT_PRECISION, and the variant and the attention where they are not the usual ones."""
    unusual = [value for value in (setting.variant, setting.attention) if value not in ("eager", "reference")]
    return "_".join(["memory", setting.size, str(setting.context_length), setting.precision, *unusual])


def about(held: dict[str, int] | None) -> str:
    """What is there before any model."""
    if held is None:
        return "A CPU has no workspace of cuBLAS; memory is that of tensors, by the lifetimes of their storages."
    before, product, backward = held.values()
    return (
        f"torch.cuda.memory_allocated() is {sized(before)} before any model and {sized(product)} after a first "
        f"product: cuBLAS's workspace is {sized(product - before)}. The backward's thread gets "
        f"{sized(backward - product)} of its own. Both stay, and every before and every peak has them."
    )


def peaks(rows: list[Row]) -> str:
    """A row per setting."""
    shown = []
    for row in rows:
        cells = {axis: row[axis] for axis in Setting.AXES}
        for name in PASSES:
            one = row.get(name, {})
            if "phases" in one:
                cells[f"before {name}"] = sized(one["before_bytes"])
                cells[f"peak of {name}"] = sized(one["peak_bytes"])
            else:
                cells[f"peak of {name}"] = one.get("out_of_memory") or row["reason"]
        cells["peak is in"] = row.get("step", {}).get("peak_phase", "")
        cells["residual B·T·d·4"] = sized(row["residual_bytes"]) if "residual_bytes" in row else ""
        shown.append(cells)
    return text_table(shown)


def allocations(row: Row) -> str:
    """The largest blocks that the step made and that were alive at its peak, equal ones together."""
    shown = [
        {
            "each": sized(group["bytes"]),
            "count": group["count"],
            "together": sized(group["bytes"] * group["count"]),
            "made in": group["phase"],
            "where": group["where"],
        }
        for group in row["step"]["largest"][:SHOWN]
    ]
    return text_table(shown)


def answers(rows: list[Row]) -> list[str]:
    """The course's questions, a sentence each, from the numbers of `rows`."""
    said = [_course(row) for row in rows if "phases" in row.get("step", {})]
    said += _precisions(rows)
    said += _between(rows)
    seen = {(row["size"], row["context"]): row for row in rows if "residual_bytes" in row}
    said += [
        f"{size}, context {context}: a tensor of the residual stream in float32 is {row['batch']} x {context} x "
        f"{row['d_model']} x 4 bytes = {row['residual_bytes'] / 2**20:.2f} MiB."
        for (size, context), row in seen.items()
    ]
    said += [_largest(row) for row in rows if row.get("step", {}).get("largest")]
    return said


def _largest(row: Row) -> str:
    """The blocks of the greatest size, by the place that asked for them."""
    groups = row["step"]["largest"]
    most = [group for group in groups if group["bytes"] == groups[0]["bytes"]]
    places = "; ".join(f"{group['count']} made in the {group['phase']}: {group['where']}" for group in most)
    return (
        f"{_name(row)}: the largest allocations of the step are of {sized(groups[0]['bytes'])}, of which "
        f"{sum(group['count'] for group in most)} are alive at its peak ({places})."
    )


def _course(row: Row) -> str:
    """What the timeline looks like: the bytes at the ends of each phase, and where the peak is."""
    phases = {phase["name"]: phase for phase in row["step"]["phases"]}
    forward, backward, optimizer = (phases[name] for name in STEP[1:])
    moved = {phase["name"]: phase["end_bytes"] - phase["start_bytes"] for phase in phases.values()}
    still = abs(moved["optimizer"]) < 1e-3 * optimizer["end_bytes"]
    tail = "leaves it there" if still else f"ends at {sized(optimizer['end_bytes'])}"
    alone = ""
    if "phases" in row.get("forward", {}):
        (only,) = (phase for phase in row["forward"]["phases"] if phase["name"] in FORWARD)
        gone = only["peak_bytes"] - only["end_bytes"]
        alone = (
            f"a forward alone peaks {sized(only['peak_bytes'] - only['start_bytes'])} above its start and gives "
            f"{sized(gone)} of it back; "
        )
    return (
        f"{_name(row)}: {alone}the step goes from {sized(forward['start_bytes'])} to {sized(forward['end_bytes'])} in "
        f"the forward, which {'keeps' if moved['forward'] > 0 else 'keeps none of'} its activations, the backward "
        f"ends at {sized(backward['end_bytes'])} with the gradients in their place, the optimizer {tail}; the peak, "
        f"{sized(row['step']['requested_peak_bytes'])}, is in the {row['step']['peak_phase']}."
    )


def _between(rows: list[Row]) -> list[str]:
    """Who holds what before a step, which no timeline of a single step can tell; the same for every context."""
    said = {}
    for row in rows:
        if "phases" in row.get("step", {}):
            held = row["held_before_step"]
            rest = row["step"]["before_bytes"] - sum(held.values())
            owners = ", ".join(f"{owner.replace('_', ' ')} {sized(count)}" for owner, count in held.items())
            other = f"; workspaces and the allocator's rounding are {sized(rest)}" if rest else ""
            said[row["size"]] = f"{row['size']}: before a step there are {owners}{other}."
    return list(said.values())


def _precisions(rows: list[Row]) -> list[str]:
    """Every other precision against fp32, all else equal."""
    said = []
    for row in rows:
        same = [axis for axis in Setting.AXES if axis != "precision"]
        for base in rows:
            if row is base or base["precision"] != "fp32" or any(row[axis] != base[axis] for axis in same):
                continue
            changes = [
                f"the peak of the {name} from {sized(base[name]['peak_bytes'])} to {sized(row[name]['peak_bytes'])} "
                f"({row[name]['peak_bytes'] / base[name]['peak_bytes'] - 1:+.1%})"
                for name in PASSES
                if "phases" in row.get(name, {}) and "phases" in base.get(name, {})
            ]
            if changes:
                said.append(f"{_name(row)}: against fp32, it changes {' and '.join(changes)}.")
    return said


def _name(row: Row) -> str:
    return f"{row['size']}, context {row['context']}, {row['precision']}"


def _refuse_compiled(settings: list[Setting]) -> None:
    for setting in settings:
        if setting.variant != "eager":
            raise click.BadParameter(
                f"{setting.variant} was given; allowed without a GPU: eager, whose operations can be watched",
                param_hint="--variant",
            )
