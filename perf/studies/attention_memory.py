"""How much memory does eager attention take, which part of it is what, and where does it stop to fit?"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from perf.studies.document import document, heading, out_option, write
from perf.studies.lm import asked_for, device_kind

CARDS_GB = (24, 80, 141)
GIB = 2**30
SEQ_LENS = (256, 1024, 4096, 8192, 16384)
FARTHEST = 2**20


@click.command(name="attention-memory")
@click.option("--batch", default=8, show_default=True, type=click.IntRange(1), help="Sequences; there are no heads.")
@click.option("--d", "dims", multiple=True, type=click.IntRange(1), help="Default: 16, 32, 64, 128.")
@click.option("--seq-len", "seq_lens", multiple=True, type=click.IntRange(1), help="Default: 256 to 16384.")
@click.option("--beyond/--no-beyond", default=True, show_default=True, help="Go on, doubling, to the first that fails.")
@out_option
def command(batch: int, dims: tuple[int, ...], seq_lens: tuple[int, ...], beyond: bool, out: Path | None) -> None:
    """Eager attention's memory, predicted and measured, up to the first real out-of-memory. A minute on a GPU.

    Full attention in float32, batch 8, no heads, as the course has it. Predicted beforehand: what a forward keeps for
    its backward, the peaks of both, and the first length that does not fit 24, 80 and 141 GB. Without a GPU the
    prediction alone.
    """
    cells = list(itertools.product(dims or (16, 32, 64, 128), sorted(seq_lens or SEQ_LENS)))
    workspace = workspace_bytes()
    rows = list(_rows(batch, cells, beyond))
    whole = document(device_kind(), rows) | {"workspace_bytes": workspace}
    click.echo(heading(whole))
    click.echo(f"Eager attention, float32, batch {batch}, no heads; predicted / measured, GiB")
    click.echo(table(rows))
    click.echo(f"cuBLAS workspace, held by the process and in no row: {workspace / 2**20:.0f} MiB")
    for sentence in answers(rows, batch):
        click.echo(sentence)
    if device_kind() == "cpu":
        click.echo("There is no GPU here: these are predictions, measured exact to the byte on an H200.")
    if out:
        write(out / "attention-memory.json", whole)
        draw(rows, batch, out / "attention-memory.png")


def predicted(batch: int, seq_len: int, d: int) -> dict[str, int]:
    """Bytes of `cs336_systems.attention.reference` in float32, the (batch, n, n) tensors alive together at each time.

    saved      the probabilities, and q, k, v, out and out's gradient: what is there when the backward begins
    forward    scores and probabilities, and q, k, v and out's gradient, which a caller holds
    backward   probabilities, their gradient, that of the scores and the scaled one; and all but the last of the six
               (batch, n, d) tensors, on a graph that is kept
    """
    square, thin = 4 * batch * seq_len**2, 4 * batch * seq_len * d
    return {"saved": square + 5 * thin, "forward": 2 * square + 4 * thin, "backward": 4 * square + 6 * thin}


def first_that_fails(batch: int, d: int, memory_bytes: float) -> int:
    """The shortest power of two whose forward and backward need more than this."""
    return next(n for n in (2**k for k in range(4, 40)) if max(predicted(batch, n, d).values()) > memory_bytes)


def workspace_bytes() -> int:
    """What torch allocates for cuBLAS at the first product; 0 without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return 0
    before = torch.cuda.memory_allocated()
    a = torch.ones(64, 64, device="cuda")
    del a
    torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
    return torch.cuda.memory_allocated() - before


def _rows(batch: int, cells: list[tuple[int, int]], beyond: bool) -> Iterator[dict[str, Any]]:
    """The cells, then for each d one length after another until one fails."""
    from tqdm import tqdm

    longest: dict[int, int] = {}
    for d, seq_len in tqdm(cells, unit="shape", leave=False, disable=None):
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
    row: dict[str, Any] = {"seq_len": seq_len, "d": d, "predicted": predicted(batch, seq_len, d), "status": "predicted"}
    return row | measured_bytes(batch, seq_len, d) if device_kind() == "cuda" else row


def measured_bytes(batch: int, seq_len: int, d: int) -> dict[str, Any]:
    """`measured`, like `predicted`, up to what did not fit, and a status that says so."""
    import torch

    from perf.harness.memory import Leftovers, peak_memory
    from perf.workloads import build

    found: dict[str, int] = {}
    status = "ok"
    params = {"batch": batch, "seq_len": seq_len, "d": d, "is_causal": False, "dtype": "float32", "impl": "reference"}
    try:
        for name, mode in {"saved": "before_backward", "forward": "forward", "backward": "backward"}.items():
            cell = params | {"mode": mode}
            found[name] = peak_memory(lambda cell=cell: build("attention", cell, "cuda"), Leftovers())["peak_bytes"]  # type: ignore[misc]
    except torch.OutOfMemoryError as error:
        error.__traceback__ = None  # it holds the frames, and they the tensors
        status = f"out of memory: {asked_for(error)}"
    Leftovers().release()
    return {"measured": found, "status": status}


def table(rows: list[dict[str, Any]]) -> str:
    """For a terminal."""
    from tabulate import tabulate

    shown = []
    for row in rows:
        cells = {"seq_len": row["seq_len"], "d": row["d"]}
        for name, expected in row["predicted"].items():
            found = row.get("measured", {}).get(name)
            cells[name] = f"{expected / GIB:.3f} / {found / GIB:.3f}" if found is not None else f"{expected / GIB:.3f}"
        shown.append(cells | {"status": row["status"]})
    return tabulate(shown, headers="keys", disable_numparse=True)


def answers(rows: list[dict[str, Any]], batch: int) -> Iterator[str]:
    """Where it ends, and what the memory is made of."""
    d = max(row["d"] for row in rows)
    for card in CARDS_GB:
        yield f"{card} GB: predicted to fail first at seq_len {first_that_fails(batch, d, card * 1e9)} (d = {d})."
    longest = max(rows, key=lambda row: row["seq_len"])
    n = longest["seq_len"]
    square = 4 * batch * n**2
    share = square / longest["predicted"]["saved"]
    yield (
        f"At seq_len {n} one {n} x {n} matrix for each of {batch} sequences takes {square / GIB:.1f} GiB: "
        f"{share:.1%} of what waits for the backward; q, k, v, out and its gradient are the rest. Doubling seq_len "
        "quadruples it; d hardly counts. A flash kernel keeps no such matrix."
    )
    for row in rows:
        if row["status"].startswith("out of memory"):
            yield f"seq_len {row['seq_len']}, d {row['d']} is the first to fail here ({row['status']})."


def draw(rows: list[dict[str, Any]], batch: int, path: Path) -> None:
    """Peak of the backward over seq_len, measured as dots on the prediction, with the cards as lines."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
    lengths = sorted({row["seq_len"] for row in rows})
    for d in sorted({row["d"] for row in rows}):
        curve = [predicted(batch, n, d)["backward"] / GIB for n in lengths]
        (line,) = axes.plot(lengths, curve, label=f"d = {d}, predicted", lw=1)
        dots = {row["seq_len"]: row.get("measured", {}).get("backward") for row in rows if row["d"] == d}
        found = {n: size / GIB for n, size in dots.items() if size is not None}
        axes.scatter(list(found), list(found.values()), color=line.get_color(), s=14)
    for card in CARDS_GB:
        axes.axhline(card * 1e9 / GIB, color="gray", ls=":", lw=1)
        axes.text(lengths[0], card * 1e9 / GIB, f"{card} GB", fontsize=7, va="bottom")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("seq_len")
    axes.set_ylabel("peak of forward and backward, GiB")
    axes.legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
