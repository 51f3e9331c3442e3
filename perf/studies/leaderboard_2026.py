"""Take the step of the leaderboard of 2026, or a slice of it that fits, beside its closed forms."""

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from perf.harness.status import describe
from perf.options import Count
from perf.studies.cases import measured_rows
from perf.studies.device import Device, bench, device_kind, memory_bytes
from perf.studies.document import kept, out_option, present
from perf.studies.rows import Row
from perf.tables import prose, text_table
from perf.units import gib, memory, seconds
from perf.workloads import measured
from perf.workloads.transformer_oracle import SIZES, Size

WHOLE: dict[str, Any] = SIZES["8B"]._asdict() | {
    "context_length": 32_768,
    "batch": 1,
    "world_size": 2,
    "precision": "bf16",
    "variant": "compiled_blocks",
    "attention": "triton",
    "prefetch": 2,
}
"""The leaderboard's step: two sequences on two GPUs."""

TOY: dict[str, Any] = WHOLE | Size(64, 128, 4, 2, 259)._asdict()
TOY |= {"context_length": 64, "precision": "fp32", "variant": "eager", "attention": "pytorch"}

SHARE = 0.92
"""Share of a GPU's memory that the closed form may fill: the rest is for workspaces and fragments."""


@click.command(name="leaderboard-2026")
@click.option("--layers", type=Count(), help="Default: all 34 on two GPUs, as many as fit on one; 4 on a CPU.")
@click.option("--context", type=Count(2), help="Default: 32768; 64 on a CPU.")
@click.option("--world-size", type=click.IntRange(1, 64), help="Ranks, a sequence each. Default: 2, or 1 on one GPU.")
@click.option("--checkpoint-every", type=Count(), help="Layers in a group. Default: by the closed form.")
@out_option
def command(
    layers: int | None, context: int | None, world_size: int | None, checkpoint_every: int | None, out: Path
) -> None:
    """Run the whole training step of the leaderboard of 2026 on two GPUs, or a slice of it on one.

    \b
    python -m perf study leaderboard-2026
    python -m perf study leaderboard-2026 --layers 8 --world-size 1

    34 layers of width 4096, a vocabulary of 151936, two sequences of 32768 tokens, bfloat16: zero_grad, forward, loss,
    backward and AdamW. Weights, gradients and moments are sharded over the ranks, groups of layers are checkpointed,
    the loss holds one chunk of the logits. The predicted peak of a GPU and the least time are printed before anything
    runs. A slice has fewer layers, its time and peak are extrapolated by the closed forms of slice and whole.
    """
    device = device_kind()
    params = params_of(device, layers, context, world_size, checkpoint_every)
    predicted = prediction(params, rates(params["precision"]), device)
    click.echo(text_table(predicted_cells(params, predicted)))
    least = f"Least time: {seconds(predicted['predicted_s'])}, at this device's rates of matmuls and copies."
    if predicted["predicted_bytes"] > memory_bytes():
        raise click.ClickException(
            f"the predicted peak exceeds this GPU's {gib(memory_bytes(), 0)}; try fewer --layers"
        )
    click.echo(prose(least))
    rows = (row | predicted for row in measured_rows("leaderboard_step", [params], device))
    whole = kept(rows, device, out / "leaderboard-2026.json")
    title = f"Step: median of the slowest rank; {params['precision']}, {params['variant']}"
    present(whole, title, shown(whole["rows"]), answers(whole["rows"]))


def params_of(
    device: Device, layers: int | None, context: int | None, world_size: int | None, checkpoint_every: int | None
) -> dict[str, Any]:
    """Return the workload's params: those requested, or what this machine can run."""
    import torch

    params = WHOLE if device == "cuda" else TOY
    ranks = world_size or (min(2, torch.cuda.device_count()) if device == "cuda" else 2)
    params = params | {"world_size": ranks, "context_length": context or params["context_length"]}

    def of(num_layers: int) -> dict[str, Any]:
        mine = params | {"num_layers": num_layers}
        return mine | {"checkpoint_every": checkpoint_every or best_checkpoint_every(mine, device)}

    if layers or device == "cpu":
        return of(layers or params["num_layers"])
    counts = range(params["num_layers"], 0, -1)
    return next((p for p in map(of, counts) if peak_bytes(p, device) <= SHARE * memory_bytes()), of(1))


def rates(precision: str) -> tuple[float, float]:
    """Return FLOP/s and bytes/s of this device, as measured."""
    ceilings = bench().instruments.measure_ceilings()
    return ceilings["matmul_flops_per_s"]["bfloat16" if precision == "bf16" else "float32"], ceilings[
        "copy_bytes_per_s"
    ]


def prediction(params: dict[str, Any], device_rates: tuple[float, float], device: Device) -> Row:
    """Return the fields of a row that are known before it is measured."""
    whole = WHOLE if device == "cuda" else TOY
    whole = whole | {"checkpoint_every": best_checkpoint_every(whole, device)}
    fields: Row = {}
    for prefix, one in (("", params), ("whole_", whole)):
        fields[f"{prefix}predicted_bytes"] = peak_bytes(one, device)
        fields[f"{prefix}predicted_s"] = least_seconds(one, device_rates)
    return fields


def peaks(params: dict[str, Any], device: Device) -> dict[str, int]:
    """Return the bytes of every phase that can be the peak of a rank."""
    return measured("accounting.sharded_step", "peak_by_phase")(*_model(params), **_options(params, device))


def peak_bytes(params: dict[str, Any], device: Device) -> int:
    """Return the predicted peak of a rank."""
    return max(peaks(params, device).values())


def best_checkpoint_every(params: dict[str, Any], device: Device) -> int:
    """Return the number of layers in a group that needs the least memory."""
    options = _options(params | {"checkpoint_every": 1}, device)
    del options["checkpoint_every"]
    return measured("accounting.sharded_step", "best_checkpoint_every")(*_model(params), **options)


def least_seconds(params: dict[str, Any], device_rates: tuple[float, float]) -> float:
    """Return the time of a step in which the device's matmuls never wait."""
    options = {"num_ranks": params["world_size"], "checkpoint_every": params["checkpoint_every"]}
    options |= dict(zip(("flops_per_s", "bytes_per_s"), device_rates, strict=True))
    return measured("accounting.sharded_step", "rank_seconds")(*_model(params), **options)


def _model(params: dict[str, Any]) -> tuple[Any, int, int]:
    config = measured("configs", "ModelConfig")(*(params[name] for name in Size._fields))
    return config, params["batch"], params["context_length"]


def _options(params: dict[str, Any], device: Device) -> dict[str, int]:
    import torch

    chunk_size = measured("linear_cross_entropy", "default_chunk_size")(params["d_model"], torch.device(device))
    options = {name: params[name] for name in ("checkpoint_every", "prefetch")}
    chunk_size = min(chunk_size, params["batch"] * params["context_length"])
    return options | {"num_ranks": params["world_size"], "chunk_size": chunk_size}


def predicted_cells(params: dict[str, Any], predicted: Row) -> Iterator[Row]:
    """Yield the predicted memory of a rank, phase by phase."""
    for phase, num_bytes in peaks(params, device_kind()).items():
        yield {
            "predicted": phase,
            "of a rank": memory(num_bytes),
            "": "peak" * (num_bytes == predicted["predicted_bytes"]),
        }


def shown(rows: list[Row]) -> Iterator[Row]:
    """Yield the cells of each row by column title."""
    for row in rows:
        cells: Row = {"layers": row["num_layers"], "context": row["context_length"], "ranks": row["world_size"]}
        cells |= {"checkpoint every": row["checkpoint_every"], "step": describe(row)}
        if row["status"] == "ok":
            cells |= {"step": seconds(statistics.median(row["samples_s"])), "least": seconds(row["predicted_s"])}
            cells["peak of a rank"] = memory(row["peak_bytes"]) if "peak_bytes" in row else "-"
            cells["predicted"] = memory(row["predicted_bytes"])
        yield cells


def answers(rows: list[Row]) -> Iterator[str]:
    """Compare with the closed forms; extrapolate a slice to the whole."""
    for row in rows:
        whole = WHOLE if row["device"] == "cuda" else TOY
        if row["status"] != "ok":
            continue
        step_s = statistics.median(row["samples_s"])
        steps = len(row["samples_s"])
        timed = f"median of {steps} steps" if steps > 1 else "one step"
        yield f"The step takes {step_s / row['predicted_s']:.2f} times its least time ({timed})."
        if all(row[name] == whole[name] for name in ("num_layers", "context_length", "world_size")):
            continue
        text = f"Extrapolated to {whole['num_layers']} layers and {whole['world_size']} ranks by the closed forms, "
        text += f"not measured: {seconds(step_s * row['whole_predicted_s'] / row['predicted_s'])}"
        if "peak_bytes" in row:
            text += f", {memory(row['peak_bytes'] * row['whole_predicted_bytes'] / row['predicted_bytes'])} a GPU"
        yield f"{text}; communication between GPUs not included."
