"""memory_profiling: the peaks of a forward and of a step, their timelines, and what a block keeps."""

import functools
from collections.abc import Callable

from perf.studies.lm import SIZES_2025
from perf.studies.on_file import OnFile, some
from perf.writeup.answers.rows import BATCH, Answer, Documents, Row, accounted, by, config_of, settings
from perf.writeup.answers.steps import states
from perf.writeup.formats import gib, mib, percent, share
from perf.writeup.markdown import Markup, code

SIZE, CONTEXT = "2.7B", 512
"""The single model that the course looks into, which 2026 calls xl."""

CONTEXTS, CONTEXTS_2026 = (128, 256, 512), (128, 2048)


def memory_peaks(documents: Documents, contexts: tuple[int, ...] = CONTEXTS) -> list[Row]:
    """A forward without gradients and a whole step, in both precisions, with what did not fit."""
    rows = OnFile({(row["context"], row["precision"]): row for row in _rows(documents, contexts)})
    shown: list[Row] = []
    for context in sorted({context for context, _ in rows}):
        exact, mixed = (rows[context, precision] for precision in ("fp32", "bf16"))
        cells: Row = {"context": context}
        for name in ("forward", "step"):
            before, after = (row.get(name, {}).get("peak_bytes") for row in (exact, mixed))
            cells[f"{name}, fp32"], cells[f"{name}, bf16"] = (gib(each) if each else "OOM" for each in (before, after))
            cells[f"{name}: change"] = percent(after / before - 1) if before and after else ""
        shown.append(cells)
    return shown


def memory_phases(documents: Documents, contexts: tuple[int, ...] = CONTEXTS) -> list[Row]:
    """Bytes in use at the ends of a step's phases."""
    shown: list[Row] = []
    for row in _whole(documents, contexts):
        phases = {phase["name"]: phase for phase in row["step"]["phases"]}
        shown.append(
            {
                "context, precision": f"{row['context']}, {row['precision']}",
                "before": gib(phases["zero_grad"]["start_bytes"]),
                "gradients freed": gib(phases["forward"]["start_bytes"]),
                "end of forward": gib(phases["forward"]["end_bytes"]),
                "the forward adds": gib(phases["forward"]["end_bytes"] - phases["forward"]["start_bytes"]),
                "end of backward": gib(phases["backward"]["end_bytes"]),
                "end of optimizer": gib(phases["optimizer"]["end_bytes"]),
                "peak": gib(row["step"]["requested_peak_bytes"]),
                "in the": row["step"]["peak_phase"],
            }
        )
    return shown


def memory_largest(documents: Documents, contexts: tuple[int, ...] = CONTEXTS) -> list[Row]:
    """A tensor of the residual stream, and the largest blocks at the peaks."""
    shown: list[Row] = []
    for row in _whole(documents, contexts):
        cells: Row = {
            "context, precision": f"{row['context']}, {row['precision']}",
            "residual stream, MiB": mib(row["residual_bytes"]),
        }
        for name in ("forward", "step"):
            largest = row[name]["largest"]
            most = [group for group in largest if group["bytes"] == largest[0]["bytes"]]
            count = sum(one["count"] for one in most)
            cells[f"largest at the peak of the {name}"] = f"{count} of {mib(most[0]['bytes'])} MiB"
            cells[f"made at ({name})"] = _places(most)
        shown.append(cells)
    return shown


def _places(groups: list[Row]) -> str:
    """Lines of code, or the names of gradients."""
    places = [group["where"].split(" < ")[0].removeprefix("cs336_systems/") for group in groups]
    if all(place.startswith("gradient of") for place in places):
        return Markup("gradients of `w1`, `w2`, `w3`")
    return Markup(", ".join("the backward" if place.startswith("autograd") else code(place) for place in places))


def _some_of_the_model(documents: Documents) -> None:
    some([row for row in documents["memory"]["rows"] if row["size"] == SIZE], f"memory of {SIZE}")


def memory_block(documents: Documents) -> list[Row]:
    """Tensors that a block keeps for its backward, by closed forms whose sum is that of `cs336_systems.accounting`."""
    _some_of_the_model(documents)  # closed forms stand beside what was measured
    exact, mixed = (block_parts(precision) for precision in ("fp32", "bf16"))
    total = {"fp32": sum(exact.values()), "bf16": sum(mixed.values())}
    shown: list[Row] = [
        {
            "kept": Markup(name),
            "fp32, MiB": mib(exact[name]),
            "share": share(exact[name] / total["fp32"]),
            "bf16, MiB": mib(mixed[name]),
            "share in bf16": share(mixed[name] / total["bf16"]),
        }
        for name in sorted(exact, key=lambda name: -exact[name])
    ]
    shown.append({"kept": "sum", "fp32, MiB": mib(total["fp32"]), "bf16, MiB": mib(total["bf16"])})
    return shown


def memory_block_2026(documents: Documents) -> list[Row]:
    """The same in fp32 at both contexts of 2026."""
    _some_of_the_model(documents)
    short, long = (block_parts("fp32", context) for context in CONTEXTS_2026)
    columns = tuple(zip(CONTEXTS_2026, (short, long), strict=True))
    shown: list[Row] = []
    for name in sorted((name for name in long if long[name]), key=lambda name: -long[name]):
        cells: Row = {"kept": Markup(name)}
        for context, parts in columns:
            cells[f"at {context}, MiB"] = mib(parts[name])
            cells[f"share at {context}"] = share(parts[name] / sum(parts.values()))
        shown.append(cells)
    return [*shown, {"kept": "sum"} | {f"at {context}, MiB": mib(sum(parts.values())) for context, parts in columns}]


def block_parts(precision: str, context: int = CONTEXT) -> dict[str, int]:
    """Bytes by what they are; B, T, d, f, H as in `cs336_systems.accounting`."""
    config = config_of(SIZE)
    mixed = precision == "bf16"
    element = 2 if mixed else 4
    tokens = BATCH * context
    stream, scores = tokens * config.d_model, BATCH * config.num_heads * context**2
    weights = 4 * config.d_model**2 + 3 * config.d_model * config.d_ff
    return {
        "SwiGLU: `w1 x`, its SiLU, `w3 x`, their product": 4 * element * tokens * config.d_ff,
        "attention's probabilities": (6 if mixed else 4) * scores,
        "q, k, v": 3 * element * stream,
        "outputs of the two RMSNorms": (5 * 2 if mixed else 2 * 4) * stream,  # in bf16 a cast for each of five matrices
        "inputs of the two RMSNorms": 2 * 4 * stream,
        "output of attention": element * stream,
        "causal mask, scales of the RMSNorms": context**2 + 8 * tokens,
        "autocast's copies of the weights": 2 * weights if mixed else 0,
    }


def peaks(documents: Documents) -> list[Row]:
    """The peak of a step, predicted and measured, where the activations decide and where the states do."""
    rows = settings(documents, "end-to-end")
    shown: list[Row] = []
    for size in SIZES_2025:
        for context, precision in ((256, "bf16"), (512, "fp32"), (1024, "fp32"), (1024, "bf16")):
            row = rows[size, context, precision]
            shown.append(
                {
                    "size, context, precision": f"{size}, {context}, {precision}",
                    "predicted, GiB": gib(row["predicted_bytes"]),
                    "measured, GiB": gib(row["peak_bytes"]),
                    "measured over predicted": percent(row["peak_bytes"] / row["predicted_bytes"] - 1),
                    "of it not states": share(1 - states(size) / row["peak_bytes"]),
                }
            )
    return shown


def _rows(documents: Documents, contexts: tuple[int, ...]) -> list[Row]:
    return [row for row in documents["memory"]["rows"] if row["size"] == SIZE and row["context"] in contexts]


def _whole(documents: Documents, contexts: tuple[int, ...]) -> list[Row]:
    """The rows whose step fitted."""
    return [row for row in _rows(documents, contexts) if row.get("status", "ok") == "ok"]


class Memory(Answer):
    """Figures of `study memory`, whose model is 2.7B: by context and precision, of a "forward" or a "step"."""

    @functools.cached_property
    def rows(self) -> dict[tuple[int, str], Row]:
        """The recorded runs whose step fitted, at the contexts of 2025."""
        return by(_whole(self.documents, CONTEXTS), "context", "precision")

    def row_at(self, context: int, precision: str) -> Row:
        """The recorded run at a context of 2026, whose step may not fit; {} without one."""
        rows = _rows(self.documents, CONTEXTS_2026)
        return next((row for row in rows if (row["context"], row["precision"]) == (context, precision)), {})

    def peaks(self, name: str, *contexts: int, precision: str = "fp32") -> list[int]:
        """Allocated bytes at the peak."""
        return [self.rows[context, precision][name]["peak_bytes"] for context in contexts]

    def changes(self, name: str, *contexts: int) -> list[float]:
        """Relative changes of the peak from fp32 to bf16."""
        exact, mixed = (self.peaks(name, *contexts, precision=precision) for precision in ("fp32", "bf16"))
        return [after / before - 1 for before, after in zip(exact, mixed, strict=True)]

    def rounding(self) -> list[int]:
        """Bytes that are allocated beyond those asked for, at every peak."""
        parts = [row[name] for row in self.rows.values() for name in ("forward", "step")]
        return [part["peak_bytes"] - part["requested_peak_bytes"] for part in parts]

    def comb_bytes(self, precision: str) -> int:
        """The peak of a forward alone above what is there before it."""
        alone = self.rows[CONTEXT, precision]["forward"]
        return alone["requested_peak_bytes"] - alone["requested_before_bytes"]

    def peak_phases(self) -> list[str]:
        """The phases in which the steps have their peaks."""
        return sorted({row["step"]["peak_phase"] for row in self.rows.values()})

    def residual(self, context: int) -> int:
        """Bytes of a tensor of the residual stream."""
        return self.rows[context, "fp32"]["residual_bytes"]

    def largest(self, name: str, context: int, precision: str) -> int:
        """Bytes of the largest block at the peak."""
        return self.rows[context, precision][name]["largest"][0]["bytes"]

    def events(self, precision: str) -> int:
        """Allocations and releases of a forward alone."""
        return self.rows[CONTEXT, precision]["forward"]["phases"][0]["events"]

    def added(self, precision: str, context: int = CONTEXT, phase: str = "forward") -> int:
        """Bytes that a phase of a step adds, the forward or the backward."""
        (one,) = (one for one in self.rows[context, precision]["step"]["phases"] if one["name"] == phase)
        return one["end_bytes"] - one["start_bytes"]

    def unexplained(self, precision: str, context: int = CONTEXT) -> int:
        """Bytes that the forward adds and the closed form of what a model keeps lacks."""
        kept = accounted("kept.model_kept_bytes", SIZE, BATCH, context, precision=precision)
        return self.added(precision, context) - kept

    def kept(self, precision: str, context: int = CONTEXT) -> int:
        """Bytes that a block keeps for its backward, autocast's copies of the weights aside."""
        return sum(block_parts(precision, context).values()) - self.copies(precision)

    def copies(self, precision: str) -> int:
        """Bytes of autocast's copies of a block's weights."""
        return block_parts(precision)["autocast's copies of the weights"]

    def largest_terms(self, count: int, context: int = CONTEXT) -> float:
        """The share of what a block keeps in fp32 that its largest terms are."""
        parts = sorted(block_parts("fp32", context).values())
        return sum(parts[-count:]) / sum(parts)

    def kept_by_course(self, context: int = CONTEXT) -> int:
        """Bytes that a block of the course's own model keeps."""
        return accounted("kept.course_block_kept_bytes", SIZE, BATCH, context)

    def gradients(self) -> int:
        """Bytes of a block's gradients."""
        return 4 * accounted("compute.block_parameters", SIZE)

    def model_copies(self) -> int:
        """Bytes of autocast's copies of all weights that matmuls have."""
        return 2 * accounted("compute.matmul_weights", SIZE)

    def predicted_step(self, context: int, precision: str = "fp32") -> int:
        """The predicted peak of a step."""
        return accounted("peak.peak_step_bytes", SIZE, BATCH, context, precision=precision)

    def predicted_forward(self, context: int) -> int:
        """The predicted peak of a forward without gradients in fp32."""
        return accounted("peak.peak_forward_bytes", SIZE, BATCH, context, precision="fp32")

    def card_bytes(self) -> int:
        """Memory of the card."""
        return self.documents["memory"]["device"]["memory_bytes"]


TABLES: dict[str, Callable[[Documents], list[Row]]] = {
    "memory-peaks": memory_peaks,
    "memory-phases": memory_phases,
    "memory-largest": memory_largest,
    "memory-block": memory_block,
    "memory-peaks-2026": functools.partial(memory_peaks, contexts=CONTEXTS_2026),
    "memory-phases-2026": functools.partial(memory_phases, contexts=CONTEXTS_2026),
    "memory-largest-2026": functools.partial(memory_largest, contexts=CONTEXTS_2026),
    "memory-block-2026": memory_block_2026,
    "peaks": peaks,
}
