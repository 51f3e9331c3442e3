"""Of the answers' tables those about memory: of a model's forward and step, and of attention alone."""

from collections.abc import Callable

from perf.harness.status import describe
from perf.studies.answers.rows import BATCH, SIZES, Documents, by, gib, markdown, mib, percent, share
from perf.studies.rows import Row
from perf.units import GIB, MIB
from perf.workloads import measured

SIZE, CONTEXT = "2.7B", 512
"""Of the single model that the course looks into."""


def memory_peaks(found: Documents) -> str:
    """A forward without gradients and a whole step, in both precisions."""
    rows = by(found["memory"]["rows"], "size", "context", "precision")
    shown = []
    for context in _contexts(found):
        exact, mixed = (rows[SIZE, context, precision] for precision in ("fp32", "bf16"))
        cells: Row = {"context": context}
        for name in ("forward", "step"):
            before, after = exact[name]["peak_bytes"], mixed[name]["peak_bytes"]
            cells[f"{name}, fp32"], cells[f"{name}, bf16"] = gib(before), gib(after)
            cells[f"{name}: change"] = percent(after / before - 1)
        shown.append(cells)
    return markdown(shown)


def memory_phases(found: Documents) -> str:
    """Bytes in use at the ends of a step's phases."""
    shown = []
    for row in found["memory"]["rows"]:
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
    return markdown(shown)


def memory_largest(found: Documents) -> str:
    """A tensor of the residual stream, and the largest blocks at the peaks."""
    shown = []
    for row in found["memory"]["rows"]:
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
    return markdown(shown)


def _places(groups: list[Row]) -> str:
    """Lines of code, or the names of gradients."""
    places = [group["where"].split(" < ")[0].removeprefix("cs336_systems/") for group in groups]
    if all(place.startswith("gradient of") for place in places):
        return "gradients of `w1`, `w2`, `w3`"
    return ", ".join("the backward" if place.startswith("autograd") else f"`{place}`" for place in places)


def memory_block(found: Documents) -> str:
    """What one block keeps for its backward, by closed forms whose sum is that of `cs336_systems.accounting`."""
    exact, mixed = (block_parts(precision) for precision in ("fp32", "bf16"))
    total = {"fp32": sum(exact.values()), "bf16": sum(mixed.values())}
    shown = [
        {
            "kept": name,
            "fp32, MiB": mib(exact[name]),
            "share": share(exact[name] / total["fp32"]),
            "bf16, MiB": mib(mixed[name]),
            "share in bf16": share(mixed[name] / total["bf16"]),
        }
        for name in sorted(exact, key=lambda name: -exact[name])
    ]
    shown.append({"kept": "sum", "fp32, MiB": mib(total["fp32"]), "bf16, MiB": mib(total["bf16"])})
    return markdown(shown)


def block_parts(precision: str) -> dict[str, int]:
    """Bytes by what they are; B, T, d, f, H as in `cs336_systems.accounting`."""
    config = measured("configs", "MODEL_CONFIGS")[SIZE]
    mixed = precision == "bf16"
    element = 2 if mixed else 4
    tokens = BATCH * CONTEXT
    stream, scores = tokens * config.d_model, BATCH * config.num_heads * CONTEXT**2
    weights = 4 * config.d_model**2 + 3 * config.d_model * config.d_ff
    return {
        "SwiGLU: `w1 x`, its SiLU, `w3 x`, their product": 4 * element * tokens * config.d_ff,
        "attention's probabilities": (6 if mixed else 4) * scores,
        "q, k, v": 3 * element * stream,
        "outputs of the two RMSNorms": (5 * 2 if mixed else 2 * 4) * stream,  # in bf16 a cast for each of five matrices
        "inputs of the two RMSNorms": 2 * 4 * stream,
        "output of attention": element * stream,
        "causal mask, scales of the RMSNorms": CONTEXT**2 + 8 * tokens,
        "autocast's copies of the weights": 2 * weights if mixed else 0,
    }


def peaks(found: Documents) -> str:
    """The peak of a step, predicted and measured, where the activations decide and where the states do."""
    rows = by(found["end-to-end"]["rows"], "size", "context", "precision")
    shown = []
    for size in SIZES:
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
    return markdown(shown)


def peaks_within(found: Documents) -> str:
    """How many of all settings are within 5 %, and how many of these hold mostly activations."""
    rows = list(by(found["end-to-end"]["rows"], "size", "context", "precision").values())
    near = [row for row in rows if abs(row["peak_bytes"] / row["predicted_bytes"] - 1) <= 0.05]
    mostly = [row for row in near if states(row["size"]) < row["peak_bytes"] / 2]
    far = max(row["peak_bytes"] - row["predicted_bytes"] for row in rows if row not in near)
    return (
        f"{len(near)} of {len(rows)} settings are within 5 %, {len(mostly)} of them with more than half of the peak "
        f"beside the states; the others, small at short contexts, are off by at most {mib(far)} MiB.\n"
    )


def states(size: str) -> int:
    """Parameters, gradients and moments: 16P bytes."""
    return 16 * measured("accounting.compute", "parameters")(measured("configs", "MODEL_CONFIGS")[size])


def attention_memory(found: Documents) -> str:
    """Of one head dimension every length, predicted and measured; of the others the longest lengths."""
    document = found["attention-memory"]
    longest = max(row["seq_len"] for row in document["rows"])
    shown = []
    for row in sorted(document["rows"], key=lambda row: (row["seq_len"], row["d"])):
        if row["d"] != 64 and row["seq_len"] not in (16384, longest):
            continue
        cells = {"seq_len, d": f"{row['seq_len']}, {row['d']}"}
        names = {"saved": "saved for the backward", "forward": "peak of forward", "backward": "peak of backward"}
        for name, title in names.items():
            size = row["measured"].get(name)
            cells[title] = "-" if size is None else f"{size / GIB:.3f}"
        cells["peak, predicted"] = f"{row['predicted']['backward'] / GIB:.3f}"
        shown.append(cells | {"status": describe(row)})
    return markdown(shown)


def attention_exact(found: Documents) -> str:
    """How many of the measured values are what was predicted, which are not, and the first length that fails."""
    rows = found["attention-memory"]["rows"]
    values = [
        (f"{name} at {row['seq_len']}, d {row['d']}", size, row["predicted"][name])
        for row in rows
        for name, size in row["measured"].items()
    ]
    others = [
        f"{where} is {(size - predicted) / MIB:+.1f} MiB off" for where, size, predicted in values if size != predicted
    ]
    failed = [row["seq_len"] for row in rows if row["status"] == "out_of_memory"]
    first = f"seq_len {min(failed)} is the first that does not fit here" if failed else "nothing failed"
    counted = f"{len(values) - len(others)} of {len(values)} measured values are the predicted ones to the byte"
    return f"{'; '.join([counted, *others])}; {first}.\n"


def _contexts(found: Documents) -> list[int]:
    return sorted({row["context"] for row in found["memory"]["rows"]})


MEMORY_TABLES: dict[str, Callable[[Documents], str]] = {
    "memory-peaks": memory_peaks,
    "memory-phases": memory_phases,
    "memory-largest": memory_largest,
    "memory-block": memory_block,
    "peaks": peaks,
    "peaks-within": peaks_within,
    "attention-memory": attention_memory,
    "attention-exact": attention_exact,
}
