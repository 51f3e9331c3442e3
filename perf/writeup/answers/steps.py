"""benchmarking_script: the phases of a step, and its warm-up."""

import functools
import statistics
from collections.abc import Callable

from perf.studies.end_to_end import PHASES, mean_and_deviation, step_seconds
from perf.studies.lm import SIZES_2025
from perf.studies.on_file import OnFile, some
from perf.workloads import measured
from perf.writeup.answers.rows import BATCH, Answer, Documents, Row, accounted, by, settings
from perf.writeup.formats import gib, ms

COUNTED, WARM_UP = 10, 5
"""Steps that are timed, after so many that are not."""


def end_to_end(documents: Documents) -> list[Row]:
    """All sizes at one context in fp32, and the rates that the times amount to."""
    rows = settings(documents, "end-to-end")
    shown = []
    for size in SIZES_2025:
        row = rows[size, 512, "fp32"]
        forward, step = forward_flops(size, 512), accounted("compute.step_flops", size, BATCH, 512)
        moved = measured("accounting.compute", "optimizer_bytes")(parameters(size))
        shown.append(
            {"size": size}
            | {f"{phase}, ms": mean_and_deviation(row[f"{phase}_s"]) for phase in PHASES}
            | {
                "step, ms": mean_and_deviation(step_seconds(row)),
                "forward, TFLOP/s": f"{forward / statistics.mean(row['forward_s']) / 1e12:.1f}",
                "step, TFLOP/s": f"{step / statistics.mean(step_seconds(row)) / 1e12:.1f}",
                "optimizer, TB/s": f"{moved / statistics.mean(row['optimizer_s']) / 1e12:.2f}",
                "peak, GiB": gib(row["peak_bytes"]),
            }
        )
    return shown


def _warmed_up(documents: Documents) -> list[Row]:
    return some([row for row in documents["warm-up"]["rows"] if row.get("status", "ok") == "ok"], "warm-up")


def warm_up(documents: Documents) -> list[Row]:
    """The first step beside a settled one, and the forward after 0, 1, 2 and 5 steps of warm-up."""
    shown = []
    for row in _warmed_up(documents):
        steps = step_seconds(row)
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
    return shown


class Steps(Answer):
    """Figures of `study end-to-end`: by phase ("step" is all of them), size, context and precision."""

    @functools.cached_property
    def rows(self) -> dict[tuple[str, int, str], Row]:
        """The measured settings."""
        return settings(self.documents, "end-to-end")

    def samples_s(self, phase: str, size: str, context: int = 512, precision: str = "fp32") -> list[float]:
        """Seconds of each counted step."""
        row = self.rows[size, context, precision]
        return step_seconds(row) if phase == "step" else row[f"{phase}_s"]

    def mean_s(self, phase: str, size: str, context: int = 512, precision: str = "fp32") -> float:
        """Mean seconds of a phase."""
        return statistics.mean(self.samples_s(phase, size, context, precision))

    def backward_over_forward(self) -> list[float]:
        """Time of the backward over that of the forward, every size."""
        return [self.mean_s("backward", size) / self.mean_s("forward", size) for size in SIZES_2025]

    def deviation(self, *phases: str) -> float:
        """The largest relative standard deviation of these phases over all sizes."""
        samples = [self.samples_s(phase, size) for phase in phases for size in SIZES_2025]
        return max(statistics.stdev(one) / statistics.mean(one) for one in samples)

    def gain(self, phase: str, size: str, context: int = 512) -> float:
        """The speed-up of bf16 over fp32."""
        return self.mean_s(phase, size, context) / self.mean_s(phase, size, context, "bf16")

    def gains(self) -> list[float]:
        """The gain of a whole step in every measured setting."""
        settings = [key[:2] for key in self.rows if key[2] == "fp32" and (*key[:2], "bf16") in self.rows]
        return [self.gain("step", *setting) for setting in settings]

    def peak_changes(self) -> list[float]:
        """Relative changes of a step's peak from fp32 to bf16, every setting with both."""
        return [
            self.rows[size, context, "bf16"]["peak_bytes"] / row["peak_bytes"] - 1
            for (size, context, precision), row in self.rows.items()
            if precision == "fp32" and (size, context, "bf16") in self.rows
        ]

    def forward_rate(self, size: str, precision: str) -> float:
        """FLOP/s of a forward at context 512."""
        return forward_flops(size, 512) / self.mean_s("forward", size, precision=precision)

    def flops_growth(self, size: str, context: int, longer: int) -> float:
        """The ratio of a forward's FLOPs at the longer context to those at the other."""
        return forward_flops(size, longer) / forward_flops(size, context)

    def peaks_within(self, fraction: float) -> list[Row]:
        """The settings whose measured peak is the predicted one within this fraction."""
        return [row for row in self.rows.values() if abs(row["peak_bytes"] / row["predicted_bytes"] - 1) <= fraction]

    def peaks_beyond(self, fraction: float) -> list[Row]:
        """The other settings."""
        near = self.peaks_within(fraction)
        return [row for row in self.rows.values() if row not in near]

    def mostly_activations(self, rows: list[Row]) -> int:
        """The number of these settings whose peak is more than half something else than the states."""
        return sum(states(row["size"]) < row["peak_bytes"] / 2 for row in rows)

    def underestimate(self, rows: list[Row]) -> int:
        """The most bytes by which the peak of one of these settings exceeds the predicted one."""
        return max(row["peak_bytes"] - row["predicted_bytes"] for row in rows)


class WarmUp(Answer):
    """Figures of `study warm-up`: the first steps of a fresh process."""

    @functools.cached_property
    def rows(self) -> dict[str, Row]:
        """The row of each size."""
        return OnFile({size: row for (size,), row in by(_warmed_up(self.documents), "size").items()})

    def first_over_settled(self, size: str) -> float:
        """The first step over the median of those after warm-up."""
        steps = step_seconds(self.rows[size])
        return steps[0] / statistics.median(steps[WARM_UP:])

    def excess_s(self) -> list[float]:
        """Seconds that the first forward takes beyond a settled one, every size."""
        forwards = [row["forward_s"] for row in self.rows.values()]
        return [one[0] - statistics.median(one[WARM_UP:]) for one in forwards]

    def error_after(self, *skipped: int) -> float:
        """The largest relative difference of the mean after these numbers of warm-up steps from that after five."""
        return max(
            abs(self.mean_s(size, count) / self.mean_s(size, WARM_UP) - 1) for size in self.rows for count in skipped
        )

    def mean_s(self, size: str, skipped: int) -> float:
        """Mean forward of the counted steps after this many of warm-up."""
        return statistics.mean(self.rows[size]["forward_s"][skipped : skipped + COUNTED])

    def deviation_s(self, size: str, skipped: int) -> float:
        """Standard deviation of the counted forwards after this many of warm-up."""
        return statistics.stdev(self.rows[size]["forward_s"][skipped : skipped + COUNTED])


def parameters(size: str) -> int:
    """Parameters of a model."""
    return accounted("compute.parameters", size)


def states(size: str) -> int:
    """Bytes of parameters, gradients and moments: 16 a parameter."""
    return 16 * parameters(size)


def forward_flops(size: str, context: int) -> float:
    """FLOPs of a forward."""
    return accounted("compute.forward_flops", size, BATCH, context)


TABLES: dict[str, Callable[[Documents], list[Row]]] = {"end-to-end": end_to_end, "warm-up": warm_up}
