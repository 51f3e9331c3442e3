"""The tables of the answers to the course, each made from rows alone: steps, precision, attention and compilation."""

import itertools
import statistics
from collections.abc import Callable

from perf.studies.answers.attention import ATTENTION_TABLES
from perf.studies.answers.kernels import KERNEL_TABLES
from perf.studies.answers.memory import MEMORY_TABLES
from perf.studies.answers.rows import BATCH, CONTEXTS, SIZES, Documents, Row, by, gain, gib, markdown, ms, share
from perf.studies.end_to_end import PHASES, mean_and_deviation
from perf.studies.speedups import best, bound_of, known, milliseconds, speedup_of
from perf.studies.train_step.study import tflops
from perf.workloads import measured

DIMS = (16, 32, 64, 128)


def step_s(row: Row) -> list[float]:
    """Each whole step: the sum of its phases."""
    return [sum(phases) for phases in zip(*(row[f"{phase}_s"] for phase in PHASES), strict=True)]


def end_to_end(found: Documents) -> str:
    """All sizes at one context in fp32, and the rates that the times amount to."""
    rows = by(found["end-to-end"]["rows"], "size", "context", "precision")
    shown = []
    for size in SIZES:
        row = rows[size, 512, "fp32"]
        config = measured("configs", "MODEL_CONFIGS")[size]
        forward = measured("accounting.compute", "forward_flops")(config, BATCH, 512)
        step = measured("accounting.compute", "step_flops")(config, BATCH, 512)
        moved = measured("accounting.compute", "optimizer_bytes")(measured("accounting.compute", "parameters")(config))
        shown.append(
            {"size": size}
            | {f"{phase}, ms": mean_and_deviation(row[f"{phase}_s"]) for phase in PHASES}
            | {
                "step, ms": mean_and_deviation(step_s(row)),
                "forward, TFLOP/s": f"{forward / statistics.mean(row['forward_s']) / 1e12:.1f}",
                "step, TFLOP/s": f"{step / statistics.mean(step_s(row)) / 1e12:.1f}",
                "optimizer, TB/s": f"{moved / statistics.mean(row['optimizer_s']) / 1e12:.2f}",
                "peak, GiB": gib(row["peak_bytes"]),
            }
        )
    return markdown(shown)


def warm_up(found: Documents) -> str:
    """The first step beside a settled one, and the forward after 0, 1, 2 and 5 steps of warm-up."""
    shown = []
    for row in found["warm-up"]["rows"]:
        steps = step_s(row)
        settled = statistics.median(steps[5:])
        shown.append(
            {
                "size": row["size"],
                "first step / settled": f"{steps[0] / settled:.1f}",
                "first forward, ms": ms(row["forward_s"][0], 1),
                "settled forward, ms": ms(statistics.median(row["forward_s"][5:]), 1),
            }
            | {f"warm-up {count}": mean_and_deviation(row["forward_s"][count : count + 10]) for count in (0, 1, 2, 5)}
        )
    return markdown(shown)


def accumulation(found: Documents) -> str:
    """Sums of 0.01."""
    return markdown(
        {
            "sum": row["sum"],
            "terms": row["terms"],
            "value": row["value"],
            "error": f"{row['error']:+.3g}",
            "of representation": f"{row['representation_error']:+.3g}",
            "of accumulation": f"{row['accumulation_error']:+.3g}",
        }
        for row in found["precision"]["rows"]
        if row["part"] == "accumulation"
    )


def dtypes(found: Documents) -> str:
    """What autocast makes on CUDA."""
    names = ("autocast", "parameters", "fc1", "layer norm", "logits", "cross entropy", "gradients", "mean()")
    rows = [row for row in found["precision"]["rows"] if row["part"] == "dtypes" and row["on"] == "cuda"]
    return markdown({"loss by mean()" if name == "mean()" else name: row[name] for name in names} for row in rows)


def variances(found: Documents) -> str:
    """A variance with every step of it rounded to a dtype."""
    return markdown(
        {
            "dtype": row["dtype"],
            "variance of ±300": f"{row['variance of +-300']:g}",
            "variance of ±0.0001": f"{row['variance of +-0.0001']:.3g}",
            "largest number": f"{row['largest']:.4g}",
            "significant bits": row["bits"],
        }
        for row in found["precision"]["rows"]
        if row["part"] == "variances"
    )


def mixed_precision(found: Documents) -> str:
    """fp32 and bf16 at one context."""
    rows = by(found["end-to-end"]["rows"], "size", "context", "precision")
    shown = []
    for size in SIZES:
        exact, mixed = rows[size, 512, "fp32"], rows[size, 512, "bf16"]
        cells = {"size": size}
        for phase in ("forward", "backward"):
            before, after = (statistics.mean(row[f"{phase}_s"]) for row in (exact, mixed))
            cells[f"{phase}, fp32, ms"], cells[f"{phase}, bf16, ms"] = ms(before), ms(after)
            cells[f"{phase} gain"] = gain(before, after)
        config = measured("configs", "MODEL_CONFIGS")[size]
        flops = measured("accounting.compute", "forward_flops")(config, BATCH, 512)
        cells["forward, bf16, TFLOP/s"] = f"{flops / statistics.mean(mixed['forward_s']) / 1e12:.0f}"
        shown.append(cells)
    return markdown(shown)


def precision_gain(found: Documents) -> str:
    """The gain of the step, every size and context."""
    rows = by(found["end-to-end"]["rows"], "size", "context", "precision")
    shown = []
    for size in SIZES:
        cells = {"size": size}
        for context in CONTEXTS:
            before, after = (statistics.mean(step_s(rows[size, context, precision])) for precision in ("fp32", "bf16"))
            cells[f"context {context}"] = f"{ms(before, 1)} → {ms(after, 1)} ({gain(before, after)})"
        shown.append(cells)
    return markdown(shown)


def short_contexts(found: Documents) -> str:
    """Where bf16 gains little or nothing: the forward stays what it is while its work grows."""
    rows = by(found["end-to-end"]["rows"], "size", "context", "precision")
    again = by(found["kernels"]["rows"], "size", "context")
    shown = []
    for size, context in (("small", 128), ("small", 256), ("small", 512), ("medium", 128), ("medium", 256)):
        exact, mixed = (rows[size, context, precision] for precision in ("fp32", "bf16"))
        whole = again[size, context]
        config = measured("configs", "MODEL_CONFIGS")[size]
        flops = measured("accounting.compute", "forward_flops")(config, BATCH, context)
        before, after = whole["wall_s"]["step"], whole["next_s"]
        shown.append(
            {
                "size, context": f"{size}, {context}",
                "forward, TFLOP": f"{flops / 1e12:.3f}",
                "forward, fp32, ms": mean_and_deviation(exact["forward_s"]),
                "forward, bf16, ms": mean_and_deviation(mixed["forward_s"]),
                "step, fp32, ms": mean_and_deviation(step_s(exact)),
                "step, bf16, ms": mean_and_deviation(step_s(mixed)),
                "gain": gain(statistics.mean(step_s(exact)), statistics.mean(step_s(mixed))),
                "again, in `kernels`": f"{ms(before, 1)} → {ms(after, 1)} ({gain(before, after)})",
            }
        )
    return markdown(shown)


def training(found: Documents) -> str:
    """One model on one stream in three precisions."""
    return markdown(
        {
            "precision": row["precision"],
            "samples/s": f"{row['samples_per_s']:.1f}",
            "step, ms": f"{ms(row['step_mean_s'])} ± {ms(row['step_sd_s'])}",
            "peak, GiB": gib(row["peak_bytes"]),
            "last loss, nats": f"{row['final_loss']:.4f}",
            "skipped steps": row["skipped_steps"],
        }
        for row in found["precision"]["rows"]
        if row["part"] == "training"
    )


def attention_time(found: Documents) -> str:
    """Eager attention: every shape of the course."""
    return _attention(found, lambda eager, _, call: ms(eager[call], 3))


def attention_compiled(found: Documents) -> str:
    """Compiled attention, and its gain over eager."""
    return _attention(found, lambda eager, one, call: f"{ms(one[call], 3)} ({gain(eager[call], one[call])})")


def attention_saved(found: Documents) -> str:
    """What the compiled forward saves over the eager one."""
    return _attention(found, lambda eager, one, call: ms(eager[call] - one[call], 3), calls=("forward",))


def _attention(
    found: Documents, cell: Callable[[Row, Row, str], str], calls: tuple[str, ...] = ("forward", "backward")
) -> str:
    """A row per length, a column per head dimension, forward and backward."""
    rows = by(found["compile-attention"]["rows"], "seq_len", "d", "variant")
    return markdown(
        {"seq_len": seq_len}
        | {
            f"{call}, d = {d}": cell(rows[seq_len, d, "eager"], rows[seq_len, d, "compiled"], f"{call}_s")
            for call in calls
            for d in DIMS
        }
        for seq_len in sorted({seq_len for seq_len, _, _ in rows})
    )


def compiled_model(found: Documents) -> str:
    """Whole models: the variants, their gains beside what they could be, and the first calls."""
    rows = by(found["compile-model"]["rows"], "size", "variant")
    profiles = by(found["kernels"]["rows"], "size", "context")
    shown = []
    for size, variant in rows:
        row, eager = rows[size, variant], rows[size, "eager"]
        kinds = profiles[size, row["context"]]["step"]["kinds_s"]
        shown.append(
            {
                "size": size,
                "variant": f"`{variant}`",
                "forward, ms": f"{ms(row['forward_s'])} ({gain(eager['forward_s'], row['forward_s'])})",
                "step, ms": f"{ms(row['step_s'])} ({gain(eager['step_s'], row['step_s'])})",
                "matmuls of the eager step": share(kinds["matmul"] / sum(kinds.values())),
                "first forward, s": f"{row['forward_first_s']:.1f}",
                "first step, s": f"{row['step_first_s']:.1f}",
            }
        )
    return markdown(shown)


def fastest_step(found: Documents) -> str:
    """Our fastest step beside the best of the others, and beside the time for which that keeps its GPU busy."""
    pairs = itertools.groupby(found["train-step"]["rows"], key=lambda row: (row["size"], row["context"]))
    shown = []
    for (size, context), group in pairs:
        mine = list(group)
        rows = {row["against"]: row for row in mine}
        (speedup, half, name), (bound, bound_half, busiest) = best(mine, speedup_of), best(mine, bound_of)
        ours = milliseconds(rows[name], "ours")
        shown.append(
            {
                "size, context": f"{size}, {context}",
                "ours, ms": f"{ours:.2f}",
                "TFLOP/s": f"{tflops(rows[name], ours):.0f}",
                "the best other's, ms": f"{milliseconds(rows[name], 'against'):.2f}",
                "speed-up": known(speedup, half),
                "its GPU busy, ms": f"{milliseconds(rows[busiest], 'against_busy'):.2f}",
                "speed-up over that": known(bound, bound_half),
            }
        )
    return markdown(shown)


TABLES: dict[str, Callable[[Documents], str]] = {
    "end-to-end": end_to_end,
    "warm-up": warm_up,
    "accumulation": accumulation,
    "dtypes": dtypes,
    "variances": variances,
    "mixed-precision": mixed_precision,
    "precision-gain": precision_gain,
    "short-contexts": short_contexts,
    "training": training,
    "attention-time": attention_time,
    "attention-compiled": attention_compiled,
    "attention-saved": attention_saved,
    "compiled-model": compiled_model,
    "fastest-step": fastest_step,
    **ATTENTION_TABLES,
    **KERNEL_TABLES,
    **MEMORY_TABLES,
}
"""By the names in the README's marks."""
