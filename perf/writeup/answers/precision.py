"""mixed_precision_accumulation and benchmarking_mixed_precision: sums, dtypes, times and losses."""

import functools
import statistics
from collections.abc import Callable

from perf.studies.end_to_end import mean_and_deviation, step_seconds
from perf.studies.lm import SIZES_2025
from perf.studies.precision.results import smoothed
from perf.writeup.answers.rows import CONTEXTS, Answer, Documents, Row, by, settings
from perf.writeup.answers.steps import forward_flops
from perf.writeup.formats import gain, gib, ms
from perf.writeup.markdown import Markup


def accumulation(documents: Documents) -> list[Row]:
    """Sums of 0.01."""
    return [
        {
            "sum": row["sum"],
            "terms": row["terms"],
            "value": row["value"],
            "error": f"{row['error']:+.3g}",
            "of representation": f"{row['representation_error']:+.3g}",
            "of accumulation": f"{row['accumulation_error']:+.3g}",
        }
        for row in documents["precision"]["rows"]
        if row["part"] == "accumulation"
    ]


def dtypes(documents: Documents) -> list[Row]:
    """Dtypes under autocast on CUDA."""
    names = ("autocast", "parameters", "fc1", "layer norm", "logits", "cross entropy", "gradients", "mean()")
    rows = [row for row in documents["precision"]["rows"] if row["part"] == "dtypes" and row["on"] == "cuda"]
    return [{"loss by mean()" if name == "mean()" else name: row[name] for name in names} for row in rows]


def variances(documents: Documents) -> list[Row]:
    """A variance with every step of it rounded to a dtype."""
    return [
        {
            "dtype": row["dtype"],
            "variance of ±300": f"{row['variance of +-300']:g}",
            "variance of ±0.0001": f"{row['variance of +-0.0001']:.3g}",
            "largest number": f"{row['largest']:.4g}",
            "significant bits": row["bits"],
        }
        for row in documents["precision"]["rows"]
        if row["part"] == "variances"
    ]


def mixed_precision(documents: Documents) -> list[Row]:
    """fp32 and bf16 at one context."""
    rows = settings(documents, "end-to-end")
    shown = []
    for size in SIZES_2025:
        exact, mixed = rows[size, 512, "fp32"], rows[size, 512, "bf16"]
        cells: Row = {"size": size}
        for phase in ("forward", "backward"):
            before, after = (statistics.mean(row[f"{phase}_s"]) for row in (exact, mixed))
            cells[f"{phase}, fp32, ms"], cells[f"{phase}, bf16, ms"] = ms(before), ms(after)
            cells[f"{phase} gain"] = gain(before, after)
        flops = forward_flops(size, 512)
        cells["forward, bf16, TFLOP/s"] = f"{flops / statistics.mean(mixed['forward_s']) / 1e12:.0f}"
        shown.append(cells)
    return shown


def precision_gain(documents: Documents) -> list[Row]:
    """The gain of the step, every size and context."""
    rows = settings(documents, "end-to-end")
    shown = []
    for size in SIZES_2025:
        cells: Row = {"size": size}
        for context in CONTEXTS:
            steps = (step_seconds(rows[size, context, precision]) for precision in ("fp32", "bf16"))
            before, after = map(statistics.mean, steps)
            cells[f"context {context}"] = f"{ms(before, 1)} → {ms(after, 1)} ({gain(before, after)})"
        shown.append(cells)
    return shown


def short_contexts(documents: Documents) -> list[Row]:
    """Settings in which bf16 gains little: the time of the forward stays the same while its FLOPs grow."""
    rows = settings(documents, "end-to-end")
    again = settings(documents, "kernels")
    shown = []
    for size, context in (("small", 128), ("small", 256), ("small", 512), ("medium", 128), ("medium", 256)):
        exact, mixed = (rows[size, context, precision] for precision in ("fp32", "bf16"))
        whole = again[size, context]
        flops = forward_flops(size, context)
        before, after = whole["wall_s"]["step"], whole["next_s"]
        shown.append(
            {
                "size, context": f"{size}, {context}",
                "forward, TFLOP": f"{flops / 1e12:.3f}",
                "forward, fp32, ms": mean_and_deviation(exact["forward_s"]),
                "forward, bf16, ms": mean_and_deviation(mixed["forward_s"]),
                "step, fp32, ms": mean_and_deviation(step_seconds(exact)),
                "step, bf16, ms": mean_and_deviation(step_seconds(mixed)),
                "gain": gain(statistics.mean(step_seconds(exact)), statistics.mean(step_seconds(mixed))),
                Markup("again, in `kernels`"): f"{ms(before, 1)} → {ms(after, 1)} ({gain(before, after)})",
            }
        )
    return shown


def training(documents: Documents) -> list[Row]:
    """One model on one stream in three precisions."""
    return [
        {
            "precision": row["precision"],
            "samples/s": f"{row['samples_per_s']:.1f}",
            "step, ms": f"{ms(row['step_mean_s'])} ± {ms(row['step_sd_s'])}",
            "peak, GiB": gib(row["peak_bytes"]),
            "last loss, nats": f"{row['final_loss']:.4f}",
            "skipped steps": row["skipped_steps"],
        }
        for row in documents["precision"]["rows"]
        if row["part"] == "training"
    ]


class Precision(Answer):
    """Figures of `study precision`."""

    def _part(self, part: str, *axes: str) -> dict[tuple[object, ...], Row]:
        return by((row for row in self.documents["precision"]["rows"] if row["part"] == part), *axes)

    def sum(self, kind: str, terms: int) -> Row:
        """A sum of that many 0.01: value, error, representation_error, accumulation_error, stalled_after."""
        return self._part("accumulation", "sum", "terms")[kind, terms]

    def dtypes(self, autocast: str) -> Row:
        """The dtypes of what a model makes on CUDA."""
        return self._part("dtypes", "on", "autocast")["cuda", autocast]

    def variance(self, dtype: str, of: str = "300") -> float:
        """The variance of ± `of` with every step rounded to the dtype."""
        return self._part("variances", "dtype")[(dtype,)][f"variance of +-{of}"]

    @functools.cached_property
    def trained(self) -> dict[tuple[object, ...], Row]:
        """The training run of each precision."""
        return self._part("training", "precision")

    def training(self, precision: str) -> Row:
        """One training run."""
        return self.trained[(precision,)]

    def loss_difference(self, precision: str, steps: int | None = None) -> float:
        """The largest difference of a smoothed loss from that of fp32, over the first steps or all."""
        losses, exact = (smoothed(self.training(one)["losses"][:steps], 15) for one in (precision, "fp32"))
        return max(abs(a - b) for a, b in zip(losses, exact, strict=True))

    def vanished(self, precision: str) -> float:
        """The share of the first batch's nonzero gradients that are 0 in this precision, without loss scaling."""
        row = self._part("underflow", "precision", "scale")[precision, 1.0]
        return row["zero_here"] / row["nonzero_in_fp32"]


TABLES: dict[str, Callable[[Documents], list[Row]]] = {
    "accumulation": accumulation,
    "dtypes": dtypes,
    "variances": variances,
    "mixed-precision": mixed_precision,
    "precision-gain": precision_gain,
    "short-contexts": short_contexts,
    "training": training,
}
