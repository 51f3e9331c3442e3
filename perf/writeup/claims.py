"""What the notes that this project started from promise, beside what the rows say, and why the two differ."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from perf import units
from perf.studies.on_file import NotOnFile, OnFile, some
from perf.workloads import measured
from perf.writeup import flash
from perf.writeup.markdown import Markup, table
from perf.writeup.problems import FLASH, STEPS, Need
from perf.writeup.source import Row, Source

VARIANTS = Need("attention.FlashVariants")
PRECISION = Need("precision")
ATTENTION_MEMORY = Need("attention-memory")


@dataclass(frozen=True)
class Claim:
    """One promise."""

    what: str
    theirs: str
    """As quoted; no measurement of ours."""

    ours: Callable[[Source], str] | None
    """From rows; raises `NotOnFile` where they do not have it. None: only another GPU could say."""

    need: Need
    why: str


def chapter(source: Source) -> str:
    """The table. A claim without a number of ours has the command that makes it."""
    return table(
        {
            "claim": claim.what,
            "the notes": claim.theirs,
            "here": _ours(claim, source),
            "why they differ": claim.why,
        }
        for claim in CLAIMS
    )


def _ours(claim: Claim, source: Source) -> str:
    command = f"`{claim.need.command(source.machine)}`"
    if claim.ours is None:
        return Markup(f"not measured: on that GPU {command}")
    try:
        return claim.ours(source)
    except NotOnFile:
        return Markup(f"not measured: {command}")


def _gain_at(seq_len: int, *, and_longer: bool = False) -> Callable[[Source], str]:
    """Time and peak memory of a forward and backward, eager over ours, bfloat16, over all head sizes."""

    def ours(source: Source) -> str:
        found = []
        for quantity in ("time", "peak_memory"):
            cells = source.newest_cells("attention.FlashAttention", quantity)
            if cells.empty:
                raise NotOnFile(quantity)
            cells = cells[(cells["dtype"] == "bfloat16") & (cells["mode"] == "forward_backward")]
            cells = cells[cells["seq_len"] >= seq_len] if and_longer else cells[cells["seq_len"] == seq_len]
            values = flash.gains(cells)["gain"]
            found.append(f"{units.times(values.min())} to {units.times(values.max())}")
        return f"{found[0]} the speed, memory {found[1]} less (one head, batch 1)"

    return ours


def _tiled(source: Source) -> str:
    cells = source.newest_cells("attention.FlashVariants")
    if cells.empty:
        raise NotOnFile("variants")
    cells = cells[(cells["seq_len"] == 1024) & (cells["mode"] == "forward_backward") & (cells["status"] == "ok")]
    gains = []
    for dtype in ("float32", "bfloat16"):
        times = cells[cells["dtype"] == dtype].set_index("impl")["value"]
        gains.append(f"{units.times(times['reference'] / times['pytorch'])} in {dtype}")
    return "forward and backward: " + ", ".join(gains)


def _steps(source: Source) -> dict[tuple[str, int, str], Row]:
    rows = source.documents()["end-to-end"]["rows"]
    return OnFile({(row["size"], row["context"], row["precision"]): row for row in rows if row["status"] == "ok"})


def _step_s(row: Row) -> float:
    return sum(statistics.mean(row[f"{phase}_s"]) for phase in ("forward", "backward", "optimizer"))


def _pairs(source: Source) -> list[tuple[Row, Row]]:
    steps = _steps(source)
    pairs = [
        (row, steps[size, context, "bf16"])
        for (size, context, precision), row in steps.items()
        if precision == "fp32" and (size, context, "bf16") in steps
    ]
    return some(pairs, "fp32 beside bf16")


def _bf16_speed(source: Source) -> str:
    gains = [_step_s(exact) / _step_s(mixed) for exact, mixed in _pairs(source)]
    return f"{units.times(min(gains))} to {units.times(max(gains))} the speed of a step, over {len(gains)} settings"


def _bf16_memory(source: Source) -> str:
    changes = [mixed["peak_bytes"] / exact["peak_bytes"] - 1 for exact, mixed in _pairs(source)]
    return f"peak of a step: {_change(min(changes))} to {_change(max(changes))}"


def _change(fraction: float) -> str:
    return f"{fraction:+.1%}".replace("%", " %")


def _training(source: Source) -> str:
    trained = (row for row in source.documents()["precision"]["rows"] if row["part"] == "training")
    rows = OnFile((row.get("precision"), row) for row in trained)
    exact, mixed = rows["fp32"], rows["bf16"]
    return (
        f"{exact['samples_per_s']:.1f} samples/s and {exact['peak_bytes'] / 2**30:.2f} GiB in fp32, "
        f"{mixed['samples_per_s']:.1f} and {mixed['peak_bytes'] / 2**30:.2f} GiB in bf16 "
        f"({units.times(mixed['samples_per_s'] / exact['samples_per_s'])})"
    )


def _forward(size: str, context: int) -> Callable[[Source], str]:
    def ours(source: Source) -> str:
        steps = _steps(source)
        exact, mixed = (statistics.mean(steps[size, context, one]["forward_s"]) * 1e3 for one in ("fp32", "bf16"))
        return f"{exact:.2f} → {mixed:.2f} ms ({units.times(exact / mixed)})"

    return ours


def _peak_of_large(source: Source) -> str:
    steps = _steps(source)
    exact, mixed = (steps["large", 256, one]["peak_bytes"] / 2**30 for one in ("fp32", "bf16"))
    return f"{exact:.1f} GiB in fp32, {mixed:.1f} in bf16"


def _attention_peak(source: Source) -> str:
    rows = source.documents()["attention-memory"]["rows"]
    (peak, *_) = some(
        [row["measured"]["forward"] for row in rows if (row["seq_len"], row["d"], row["status"]) == (16384, 64, "ok")],
        "seq_len 16384, d 64",
    )
    written_out = measured("accounting.attention", "course_forward_peak_bytes")(8, 16384)
    return f"{peak / 1e9:.1f} GB; {written_out / 1e9:.1f} GB by the closed form with the course's softmax"


CLAIMS = (
    Claim(
        "tiled attention in plain PyTorch beside eager, seq_len 1024",
        "18.7 against 45.2 ms (2.4×), 3.1 against 8.3 GB",
        _tiled,
        VARIANTS,
        "a loop over tiles in Python launches kernels for every pair of them, eager a few in all; the handout says "
        "itself that it is slower",
    ),
    Claim(
        "Triton attention beside eager, seq_len 1024",
        "15.3 against 45.2 ms (3.0×), 2.9 against 8.3 GB (2.9×)",
        _gain_at(1024),
        FLASH,
        "batch and heads are not told; with one head a 1024 × 1024 matrix of scores stays in the L2 cache",
    ),
    Claim(
        "the same at seq_len 2048, batch 16, on an H100",
        "3.5 to 4×, memory 3.2×",
        _gain_at(2048),
        FLASH,
        "ours is batch 1: eager moves a sixteenth of the bytes, and launches weigh more",
    ),
    Claim("the same on an A100", "2.8 to 3.5×, memory 3×", None, FLASH, "no A100 was measured"),
    Claim("the same on an RTX 3090", "2.5 to 3×, memory 2.8×", None, FLASH, "no RTX 3090 was measured"),
    Claim(
        "from seq_len 2048 on",
        "2 to 4×, memory 2 to 3×",
        _gain_at(2048, and_longer=True),
        FLASH,
        "no constant: eager's time and memory grow with T², of memory ours grows with T, so the ratio grows on and on",
    ),
    Claim(
        "bf16 or fp16 instead of fp32, speed",
        "1.5 to 2×",
        _bf16_speed,
        STEPS,
        "no constant either: launches decide at short contexts of small models, tensor cores in large ones; fp32 here "
        "is IEEE, without TF32",
    ),
    Claim(
        "the same, memory",
        "40 to 50 % less",
        _bf16_memory,
        STEPS,
        "autocast keeps fp32 parameters, gradients and moments, and adds bf16 copies of the weights; only part of the "
        "activations halves",
    ),
    Claim(
        "training 6 layers of d_model 768",
        "100 samples/s and 16 GB in fp32, 180 and 8 GB in bf16 (1.8×)",
        _training,
        PRECISION,
        "the same in kind: another GPU, whose fp32 and bf16 rates are further apart; batch and context are not told",
    ),
    Claim(
        "forward of small at context 1024, fp32 → bf16 (RTX 4090)",
        "78.13 → 50.16 ms (1.56×)",
        _forward("small", 1024),
        STEPS,
        "an H200 has more of everything; relative to its fp32 its tensor cores are faster",
    ),
    Claim(
        "forward of large at context 256, fp32 → bf16 (RTX 4090)",
        "72.43 → 74.96 ms (0.97×)",
        _forward("large", 256),
        STEPS,
        "theirs waits for launches: small, medium and large all take about 2 ms for each of their layers",
    ),
    Claim(
        "peak of a step of large at context 256",
        "21.2 GiB in fp32, 20.4 GiB in bf16",
        _peak_of_large,
        STEPS,
        "presumably the course's own model, which writes out softmax and SiLU and so keeps more, and its AdamW",
    ),
    Claim(
        "peak of eager attention's forward, batch 8, seq_len 16384",
        "about 33 GB",
        _attention_peak,
        ATTENTION_MEMORY,
        "the course's softmax is written out and has four T × T matrices alive, torch.softmax two",
    ),
)
"""In the order of the table."""
