"""pytorch_attention and torch_compile: eager attention, its memory, and what compilation gains."""

import functools
import statistics
from collections.abc import Callable

from perf.harness.status import describe
from perf.studies.attention.memory import first_that_fails, predicted
from perf.units import GIB, MIB
from perf.workloads import measured
from perf.writeup.answers.kernels import matmul_share
from perf.writeup.answers.rows import DIMS, Answer, Documents, Row, by, settings
from perf.writeup.formats import gain, ms, share
from perf.writeup.markdown import code

SEQUENCES, SHAPE = 8, (8, 16384, 64)
"""The course's batch; batch, seq_len and d of the shape that is accounted for."""


def attention_time(documents: Documents) -> list[Row]:
    """Eager attention: every shape of the course."""
    return _attention(documents, lambda eager, _, call: ms(eager[call], 3))


def attention_compiled(documents: Documents) -> list[Row]:
    """Compiled attention, and its gain over eager."""
    return _attention(documents, lambda eager, one, call: f"{ms(one[call], 3)} ({gain(eager[call], one[call])})")


def attention_saved(documents: Documents) -> list[Row]:
    """The time that the compiled forward saves over the eager one."""
    return _attention(documents, lambda eager, one, call: ms(eager[call] - one[call], 3), calls=("forward",))


def _attention(
    documents: Documents, cell: Callable[[Row, Row, str], str], calls: tuple[str, ...] = ("forward", "backward")
) -> list[Row]:
    """A row per length, a column per head dimension, forward and backward."""
    rows = settings(documents, "compile-attention")
    return [
        {"seq_len": seq_len}
        | {
            f"{call}, d = {d}": cell(rows[seq_len, d, "eager"], rows[seq_len, d, "compiled"], f"{call}_s")
            for call in calls
            for d in DIMS
        }
        for seq_len in sorted({seq_len for seq_len, _, _ in rows})
    ]


def compiled_model(documents: Documents) -> list[Row]:
    """Whole models: the variants, their gains beside what they could be, and the first calls."""
    rows = settings(documents, "compile-model")
    profiles = settings(documents, "kernels")
    shown = []
    for size, variant in rows:
        row, eager = rows[size, variant], rows[size, "eager"]
        shown.append(
            {
                "size": size,
                "variant": code(variant),
                "forward, ms": f"{ms(row['forward_s'])} ({gain(eager['forward_s'], row['forward_s'])})",
                "step, ms": f"{ms(row['step_s'])} ({gain(eager['step_s'], row['step_s'])})",
                "matmuls of the eager step": share(matmul_share(profiles[size, row["context"]]["step"])),
                "first forward, s": f"{row['forward_first_s']:.1f}",
                "first step, s": f"{row['step_first_s']:.1f}",
            }
        )
    return shown


def attention_memory(documents: Documents) -> list[Row]:
    """Memory by length, predicted and measured: every length of d = 64, of the other d the longest ones."""
    rows = documents["attention-memory"]["rows"]
    longest = max(row["seq_len"] for row in rows)
    names = {"saved": "saved for the backward", "forward": "peak of forward", "backward": "peak of backward"}
    shown = []
    for row in sorted(rows, key=lambda row: (row["seq_len"], row["d"])):
        if row["d"] == 64 or row["seq_len"] in (SHAPE[1], longest):
            cells = {"seq_len, d": f"{row['seq_len']}, {row['d']}"}
            for name, title in names.items():
                size = row["measured"].get(name)
                cells[title] = "-" if size is None else f"{size / GIB:.3f}"
            cells["peak, predicted"] = f"{row['predicted']['backward'] / GIB:.3f}"
            shown.append(cells | {"status": describe(row)})
    return shown


class Attention(Answer):
    """Figures of `study compile --part attention` and `study attention-memory`."""

    @functools.cached_property
    def rows(self) -> dict[tuple[int, int, str], Row]:
        """The measured shapes, eager and compiled."""
        return settings(self.documents, "compile-attention")

    def doubled(self, *lengths: int) -> list[float]:
        """Ratios of eager times: twice these lengths over these lengths, every d and call."""
        return [
            self.rows[2 * n, d, "eager"][call] / self.rows[n, d, "eager"][call]
            for n in lengths
            for d in DIMS
            for call in ("forward_s", "backward_s")
        ]

    def gains(self, call: str) -> dict[tuple[int, int], float]:
        """Eager over compiled time by length and d; the call is "forward" or "backward"."""
        name = f"{call}_s"
        return {
            (n, d): row[name] / self.rows[n, d, "compiled"][name]
            for (n, d, variant), row in self.rows.items()
            if variant == "eager"
        }

    def saved_s(self, seq_len: int) -> list[float]:
        """Seconds that the compiled forward saves, every d."""
        return [
            self.rows[seq_len, d, "eager"]["forward_s"] - self.rows[seq_len, d, "compiled"]["forward_s"] for d in DIMS
        ]

    def saved_mean_s(self, seq_len: int) -> float:
        """Mean of those seconds over every d."""
        return statistics.mean(self.saved_s(seq_len))

    def saving_rate(self) -> float:
        """Bytes a second if the saved time of the longest sequences is a write and a read of the scores."""
        return 2 * scores_bytes(SHAPE[1]) / self.saved_mean_s(SHAPE[1])

    def saving_at_rate_s(self, seq_len: int) -> float:
        """Seconds that a write and a read of the scores take at that rate."""
        return 2 * scores_bytes(seq_len) / self.saving_rate()

    @functools.cached_property
    def memory(self) -> list[Row]:
        """The rows of the memory study, those that ran out of memory too."""
        return self.documents["attention-memory"]["rows"]

    def values(self) -> int:
        """The number of measured sizes."""
        return sum(len(row["measured"]) for row in self.memory)

    def unpredicted(self) -> list[str]:
        """The measured sizes that are not the predicted ones to the byte."""
        return [
            f"{name} at {row['seq_len']}, d {row['d']} is {(size - row['predicted'][name]) / MIB:+.1f} MiB off"
            for row in self.memory
            for name, size in row["measured"].items()
            if size != row["predicted"][name]
        ]

    def first_failed(self) -> int | None:
        """The shortest length that ran out of memory."""
        return min((row["seq_len"] for row in self.memory if row["status"] == "out_of_memory"), default=None)

    def predicted_bytes(self, what: str) -> int:
        """Bytes of the accounted shape: saved, forward, backward, or the "peak" of them."""
        sizes = predicted(*SHAPE)
        return max(sizes.values()) if what == "peak" else sizes[what]

    def fails_on(self, gigabytes: float) -> int:
        """The shortest power of two that does not fit such a card."""
        return first_that_fails(SEQUENCES, SHAPE[2], gigabytes * 1e9)

    def measured_peak(self) -> int:
        """Bytes at the measured peak of the accounted shape's forward."""
        return by(self.memory, "seq_len", "d")[SHAPE[1:]]["measured"]["forward"]

    def course_peak(self) -> int:
        """Bytes at that peak by the closed form of the course's softmax, which is written out."""
        return measured("accounting.attention", "course_forward_peak_bytes")(*SHAPE[:2])

    def flash_bytes(self) -> int:
        """Bytes that FlashAttention keeps of the accounted shape: q, k, v, the output, and a number per row."""
        return measured("accounting.attention", "flash_kept_bytes")(*SHAPE)


def scores_bytes(seq_len: int) -> int:
    """Bytes of the T x T matrices of all sequences in float32."""
    return measured("accounting.attention", "scores_bytes")(SEQUENCES, seq_len)


class CompiledModel(Answer):
    """Figures of `study compile --part model`."""

    @functools.cached_property
    def rows(self) -> dict[tuple[str, str], Row]:
        """The measured models by size and variant."""
        return settings(self.documents, "compile-model")

    def gain(self, call: str, size: str) -> float:
        """Eager over compiled time; the call is "forward" or "step"."""
        return self.rows[size, "eager"][f"{call}_s"] / self.rows[size, "compiled"][f"{call}_s"]

    def first_steps_s(self, variant: str) -> list[float]:
        """Seconds of the first step, which compiles, every size."""
        return [row["step_first_s"] for (_, one), row in self.rows.items() if one == variant]

    def matmuls(self, size: str) -> float:
        """The matmuls' share of the eager step's device time."""
        profile = settings(self.documents, "kernels")[size, 512]
        return matmul_share(profile["step"])

    def unmeasured(self, sizes: tuple[str, ...]) -> list[str]:
        """Sizes without a row."""
        return [size for size in sizes if (size, "compiled") not in self.rows]


TABLES: dict[str, Callable[[Documents], list[Row]]] = {
    "attention-time": attention_time,
    "attention-compiled": attention_compiled,
    "attention-saved": attention_saved,
    "attention-memory": attention_memory,
    "compiled-model": compiled_model,
}
