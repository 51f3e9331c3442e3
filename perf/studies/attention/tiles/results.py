"""Results of the study of tiles: the fastest of each cell beside the present choice, and a verdict on each entry."""

from collections.abc import Iterable, Iterator

from perf.harness.status import describe
from perf.studies.attention.cells import MASKS
from perf.studies.attention.results import Pair, shape, timed, within_mode
from perf.studies.rows import Row, grouped
from perf.studies.speedups import geometric_mean, milliseconds, speedup_of, with_interval
from perf.tables import text_table
from perf.units import digits
from perf.workloads.attention_launches import WAYS

SHOWN = 5
MAX_LOSS = 0.05
CLOSE = 0.02
"""A gain that is not worth changing an entry."""

Cells = dict[str, dict[str, Pair]]
"""Shape, dtype and mask of a cell -> candidate -> its pair with the present choice, which is paired with itself."""


def shown(rows: list[Row]) -> Iterator[str]:
    """Yield a table of the fastest candidates for every kernel, d and dtype, and the failures.

    The choice of kernels gets one table: the cells where another of our kernels is the fastest.
    """
    for (kernel, d, dtype), mine in grouped((row for row in rows if row["group"] not in WAYS), "group", "d", "dtype"):
        yield f"\n{kernel}, d {d}, {dtype}: the fastest, with their speed-up over the present choice"
        cells = grouped(mine, "batch", "num_heads", "kv_heads", "seq_len", "is_causal")
        yield text_table(line for _, rows in cells for line in _fastest(rows))
        yield from _untimed(mine)
    for (kernel,), mine in grouped((row for row in rows if row["group"] in WAYS), "group"):
        if slower := [pair for pair in _best(mine) if speedup_of(pair)[0] > 1]:
            yield f"\n{kernel}, where another of our kernels is faster than the choice"
            yield text_table(map(_lost, sorted(slower, key=lambda pair: -speedup_of(pair)[0])))
        yield from _untimed(mine)


def _untimed(rows: list[Row]) -> Iterator[str]:
    for (status,), same in grouped((row for row in rows if row["status"] != "ok"), "status"):
        first, words = same[0], describe({"status": status})
        yield f"{words}: {len(same)}, as {_name(first, 'impl')} in {within_mode(first)}: {first.get('reason', '')}"


def _name(row: Row, arm: str) -> str:
    """Return a candidate, by its name if it is one of `WAYS`."""
    return WAYS[row["group"]][int(row[arm])] if row["group"] in WAYS else row[arm]


def _lost(pair: Pair) -> dict[str, str]:
    return {
        "B x H x n x d, dtype, mask": within_mode(pair),
        "choice": _name(pair, "against"),
        "ms": digits(milliseconds(pair, "against"), 4),
        "fastest": _name(pair, "ours"),
        "speed-up": with_interval(*speedup_of(pair)),
    }


def _fastest(rows: list[Row]) -> Iterator[dict[str, str]]:
    """Yield the table cells of the fastest candidates of a cell, and of the present choice."""
    pairs = next(iter(_cells(rows).values()), {})
    speedups = {impl: speedup_of(pair)[0] for impl, pair in pairs.items()}
    fastest = sorted(speedups, key=lambda impl: -speedups[impl])
    listed = {row["impl"]: row for row in rows}
    for impl in fastest:
        row, pair = listed[impl], pairs[impl]
        is_against = pair["against"] == impl
        if impl not in fastest[:SHOWN] and not is_against:
            continue
        yield {
            "B x H x n x d": _where(row),
            "tiles": impl + (" (present)" if row["is_present"] else ""),
            "ms": digits(milliseconds(pair, "ours"), 4),
            "speed-up": "1" if is_against else with_interval(*speedup_of(pair)),
            "registers": str(row.get("registers", "-")),
            "spills": str(row.get("spills", "-")),
            "shared KiB": f"{row['shared_bytes'] / 2**10:.0f}" if "shared_bytes" in row else "-",
        }


def verdicts(rows: Iterable[Row]) -> Iterator[str]:
    """Yield a sentence for each table entry: whether another candidate is faster over all its cells.

    The choice of kernels gets one for all its cells: how much slower it is than the fastest of our own at worst.
    """
    rows = list(rows)
    for (entry,), mine in grouped((row for row in rows if row["group"] not in WAYS), "entry"):
        yield f"{entry}: {_verdict(mine)}."
    for (kernel,), mine in grouped((row for row in rows if row["group"] in WAYS), "group"):
        yield f"{kernel}: {_choice_verdict(mine)}."


def _choice_verdict(rows: list[Row]) -> str:
    """Compare the choice in each cell with the fastest way there."""
    best = _best(rows)
    if not best:
        return "nothing was compared with the choice"
    worst = max(best, key=lambda pair: speedup_of(pair)[0])
    speed, half = speedup_of(worst)
    if speed <= 1:
        return f"the choice is the fastest of our kernels in all {len(best)} cells"
    slower = sum(speedup_of(pair)[0] > 1 + MAX_LOSS for pair in best)
    faster, chosen = _name(worst, "ours"), _name(worst, "against")
    return (
        f"in {slower} of {len(best)} cells another of our kernels is more than {MAX_LOSS:.0%} faster than the choice; "
        f"at worst, in {within_mode(worst)}, {faster} is {with_interval(speed, half)} as fast as {chosen}"
    )


def _best(rows: list[Row]) -> list[Pair]:
    """Return for each cell the pair of the fastest candidate."""
    return [max(pairs.values(), key=lambda pair: speedup_of(pair)[0]) for pairs in _cells(rows).values()]


def _verdict(rows: list[Row]) -> str:
    cells = _cells(rows)
    present = "/".join(dict.fromkeys(row["impl"] for row in rows if row["is_present"]))
    failed = [row for row in rows if row["is_present"] and row["status"] != "ok"]
    if not cells:
        return f"nothing was compared with the present choice, {present}"
    everywhere = [impl for impl in next(iter(cells.values())) if all(impl in pairs for pairs in cells.values())]
    means = {impl: geometric_mean(pairs[impl] for pairs in cells.values()) for impl in everywhere}
    over = f"over all {len(cells)} cells (geometric mean)" if len(cells) > 1 else "in the one cell"
    best = max(means, key=lambda impl: means[impl][0], default="")
    if failed:
        instead = f"; the fastest of those that have one is {best}, {over}" if best else ""
        return f"the present choice, {present}, has no time in {_where(failed[0])}: {describe(failed[0])}{instead}"
    mean, half = means.get(best, (0.0, 0.0))
    if mean <= 1 or best == present:
        return f"the present choice, {present}, is the fastest {over}"
    speed = f"{best} is {with_interval(mean, half)} as fast"
    if mean <= 1 + CLOSE:
        return f"the present choice, {present}, is within {CLOSE:.0%} of the fastest: {speed} {over}"
    if mean <= 1 + half:
        return f"no candidate is known to be faster than the present choice, {present}: {speed} {over}"
    return f"{speed} as the present choice, {present}, {over}"


def _cells(rows: Iterable[Row]) -> Cells:
    """Return the cells in which something was compared with the candidate that all are compared with."""
    rows = list(rows)
    cells: Cells = {}
    for row in rows:
        if row["role"] == "against" and row["status"] == "ok":
            itself = {"ours": row["impl"], "against": row["impl"]}
            times = {"ours_s": row["samples_s"], "against_s": row["samples_s"]}
            cells[within_mode(row)] = {row["impl"]: row | itself | times}
    for pair in timed(rows):
        cells[within_mode(pair)][pair["ours"]] = pair
    return {where: pairs for where, pairs in cells.items() if len(pairs) > 1}


def _where(row: Row) -> str:
    return f"{shape(row)}, {MASKS[row['is_causal']]}"
