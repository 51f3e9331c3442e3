"""Predict and measure the memory of eager attention by part, and find the length that no longer fits."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from perf.harness.status import describe
from perf.options import Count
from perf.studies import figures
from perf.studies.accounting.memory import CARDS_GB, LENGTHS
from perf.studies.device import device_kind
from perf.studies.document import heading, kept, out_option, tiny_option
from perf.studies.progress import progress
from perf.studies.rows import Row, refusal
from perf.studies.workspaces import workspaces
from perf.tables import prose, text_table
from perf.units import GIB, memory, mib

DIMS = (16, 32, 64, 128)
FARTHEST = 2**20

ALLOCATOR = "PYTORCH_ALLOC_CONF", "expandable_segments:True"
"""torch's default, whole segments, wastes memory: `out` takes a corner of a cached block as large as a score matrix;
the rest can neither hold the next score matrix nor be freed. At seq_len 32768 that is 32 GiB."""


@click.command(name="attention-memory")
@tiny_option
@click.option("--batch", default=8, show_default=True, type=Count(), help="Sequences; there are no heads.")
@click.option("--d", "dims", multiple=True, type=Count(), help="Default: 16, 32, 64, 128; 16 if tiny.")
@click.option("--seq-len", "seq_lens", multiple=True, type=Count(), help="Default: 256 to 16384; 256 if tiny.")
@click.option("--beyond/--no-beyond", default=True, show_default=True, help="Double the longest until one fails.")
@out_option
def command(
    size: str | None, batch: int, dims: tuple[int, ...], seq_lens: tuple[int, ...], beyond: bool, out: Path
) -> None:
    """Eager attention's memory, predicted and measured, up to the first real out-of-memory. A minute on a GPU.

    Full attention in float32, batch 8, no heads, as in the course. Predicted: the bytes that a forward keeps for its
    backward, the peaks of both, and the first length that does not fit 24, 80 and 141 GB. Without a GPU there is the
    prediction alone. Measured with expandable segments unless PYTORCH_ALLOC_CONF is set.
    """
    os.environ.setdefault(*ALLOCATOR)  # before torch is imported
    first = 1 if size else None
    cells = list(itertools.product(dims or DIMS[:first], sorted(seq_lens or LENGTHS[:first])))
    held = workspaces() if device_kind() == "cuda" else None
    facts: dict[str, Any] = {"workspaces": held, "allocator": os.environ[ALLOCATOR[0]]}
    measured, path = _rows(batch, cells, beyond and not size), out / "attention-memory.json"
    whole = kept(measured, device_kind(), path, has_results=bool, **facts)  # predictions are results, too
    rows = whole["rows"]
    click.echo(heading(whole))
    allocator = f", {os.environ[ALLOCATOR[0]]}" if held else ""
    click.echo(f"Eager attention, float32, batch {batch}, no heads{allocator}; predicted / measured, GiB")
    click.echo(text_table(shown(rows)))
    predicted_alone = "There is no GPU here: these are predictions, measured exact to the byte on an H200."
    for sentence in (about(held) if held else predicted_alone, *answers(rows, batch)):
        click.echo(prose(sentence))
    draw(rows, batch, out / "attention-memory.png")


def predicted(batch: int, seq_len: int, d: int) -> dict[str, int]:
    """Return the bytes of `cs336_systems.attention.reference` in float32 that are alive together at each time.

    saved      the probabilities, q, k, v, out and out's gradient, when the backward begins
    forward    scores and probabilities, and q, k, v and out's gradient, which a caller holds
    backward   probabilities, their gradient, that of the scores and the scaled one; and all but the last of the six
               (batch, n, d) tensors, on a graph that is kept
    """
    square, thin = 4 * batch * seq_len**2, 4 * batch * seq_len * d
    return {"saved": square + 5 * thin, "forward": 2 * square + 4 * thin, "backward": 4 * square + 6 * thin}


def first_that_fails(batch: int, d: int, memory_bytes: float) -> int:
    """Return the shortest power of two whose forward and backward need more memory."""
    return next(n for n in (2**k for k in range(4, 40)) if max(predicted(batch, n, d).values()) > memory_bytes)


def about(held: dict[str, int]) -> str:
    """Describe the workspaces that the process holds beside every row."""
    before, product, backward = held.values()
    return (
        f"cuBLAS's workspaces, held by the process and in no row: {mib(product - before)} of the thread "
        f"that runs the forward, {mib(backward - product)} of the backward's."
    )


def _rows(batch: int, cells: list[tuple[int, int]], beyond: bool) -> Iterator[Row]:
    """Yield the rows of the cells, then for each d those of doubled lengths until one fails."""
    longest: dict[int, int] = {}
    for d, seq_len in progress(cells, unit="shape"):
        longest[d] = max(seq_len, longest.get(d, 0))
        yield _row(batch, seq_len, d)
    if not beyond or device_kind() == "cpu":
        return
    for d, last in longest.items():
        fits = True
        while fits and last < FARTHEST:
            last *= 2
            row = _row(batch, last, d)
            fits = row["status"] == "ok"
            yield row


def _row(batch: int, seq_len: int, d: int) -> dict[str, Any]:
    row: Row = {"seq_len": seq_len, "d": d, "predicted": predicted(batch, seq_len, d)}
    row |= {"status": "not_measured", "reason": "predicted alone"}
    return row | measured_bytes(batch, seq_len, d) if device_kind() == "cuda" else row


def measured_bytes(batch: int, seq_len: int, d: int) -> dict[str, Any]:
    """Return `measured`, with the fields of `predicted` that fit, and a status."""
    import torch

    from perf.harness.memory import Leftovers, peak_memory
    from perf.workloads import build

    measured: dict[str, int] = {}
    outcome: dict[str, Any] = {"status": "ok", "reason": ""}
    params = {"batch": batch, "seq_len": seq_len, "d": d, "is_causal": False, "dtype": "float32", "impl": "reference"}
    try:
        for name, mode in {"saved": "before_backward", "forward": "forward", "backward": "backward"}.items():
            cell = params | {"mode": mode}
            measured[name] = peak_memory(lambda cell=cell: build("attention", cell, "cuda"), Leftovers())["peak_bytes"]  # type: ignore[misc]
    except torch.OutOfMemoryError as error:
        outcome = refusal(error)
    Leftovers().release()
    return {"measured": measured} | outcome


def shown(rows: list[Row]) -> Iterator[Row]:
    """Yield the cells of each row by column title."""
    for row in rows:
        cells: Row = {"seq_len": row["seq_len"], "d": row["d"]}
        for name, expected in row["predicted"].items():
            measured = row.get("measured", {}).get(name)
            cells[name] = f"{expected / GIB:.3f}" + ("" if measured is None else f" / {measured / GIB:.3f}")
        yield cells | {"status": describe(row)}


def answers(rows: list[Row], batch: int) -> Iterator[str]:
    """Say where memory ends and what fills it."""
    d = max(row["d"] for row in rows)
    for card in CARDS_GB:
        yield f"{card} GB: predicted to fail first at seq_len {first_that_fails(batch, d, card * 1e9)} (d = {d})."
    longest = max(rows, key=lambda row: row["seq_len"])
    n = longest["seq_len"]
    square = 4 * batch * n**2
    share = square / longest["predicted"]["saved"]
    yield (
        f"At seq_len {n} one {n} x {n} matrix for each of {batch} sequences takes {memory(square)}: "
        f"{share:.1%} of what waits for the backward; q, k, v, out and its gradient are the rest. Doubling seq_len "
        f"quadruples it{'; d hardly counts' if share > 0.9 else ''}. A flash kernel keeps no such matrix."
    )
    yield from _first_failures(rows)


def _first_failures(rows: list[Row]) -> Iterator[str]:
    """Yield a sentence for each length that is the first to fail; it is usually the same for every d."""
    failed = sorted((row for row in rows if _failed(row)), key=lambda row: row["seq_len"])
    first = {row["d"]: row for row in reversed(failed)}  # the shortest comes last, and stays
    dims = {row["d"] for row in rows}
    for seq_len in sorted({row["seq_len"] for row in first.values()}):
        here = [row for _, row in sorted(first.items()) if row["seq_len"] == seq_len]
        which = "every d" if len(here) == len(dims) > 1 else "d " + ", ".join(str(row["d"]) for row in here)
        reasons = " or ".join(dict.fromkeys(describe(row) for row in here))
        yield f"seq_len {seq_len}, {which}: the first to fail here ({reasons})."


def _failed(row: Row) -> bool:
    return row["status"] == "out_of_memory"


def draw(rows: list[Row], batch: int, path: Path) -> None:
    """Plot the peak over seq_len: predictions and cards as lines, measurements as dots, failures as crosses."""
    figure, axes = figures.subplots(figsize=(5.5, 3.6))
    lengths = sorted({row["seq_len"] for row in rows})
    for d in sorted({row["d"] for row in rows}):
        curve = [predicted(batch, n, d)["backward"] / GIB for n in lengths]
        (line,) = axes.plot(lengths, curve, label=f"d = {d}, predicted", lw=1, marker=".", ms=3)
        dots = {row["seq_len"]: row.get("measured", {}).get("backward") for row in rows if row["d"] == d}
        measured = {n: size / GIB for n, size in dots.items() if size is not None}
        axes.scatter(list(measured), list(measured.values()), color=line.get_color(), s=14)
        full = [row["seq_len"] for row in rows if row["d"] == d and _failed(row)]
        axes.scatter(full, [predicted(batch, n, d)["backward"] / GIB for n in full], marker="x", color="black", s=30)
    for card in CARDS_GB:
        axes.axhline(card * 1e9 / GIB, color="gray", ls=":", lw=1)
        axes.text(lengths[0], card * 1e9 / GIB, f"{card} GB", fontsize=7, va="bottom")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="seq_len", ylabel="peak of forward and backward, GiB")
    if any(_failed(row) for row in rows):
        axes.scatter([], [], marker="x", color="black", s=30, label="out of memory, at its prediction")
    if any("measured" in row for row in rows):
        axes.scatter([], [], color="gray", s=14, label="measured")
    axes.legend(fontsize=7)
    figures.save(figure, path)
