"""flash_benchmarking and the leaderboard, from asv's table: latencies as pandas tables, and their figure."""

import math
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perf import units
from perf.harness.status import abbreviation
from perf.labels import label
from perf.site import newest
from perf.site.estimate import Estimate, geometric_mean, ratio
from perf.studies import figures as pictures
from perf.studies.on_file import NotOnFile
from perf.writeup.markdown import Markup, code, plain, table
from perf.writeup.source import Source
from perf.writeup.templating import render

if TYPE_CHECKING:
    import pandas

MODES = {"forward": "forward", "backward": "backward", "forward_backward": "both"}
OURS, EAGER = "triton", "reference"
SHORT = 4096
FLOPS_PER_SCORE = 14
"""By d, of forward and backward."""


def benchmarking(source: Source, figures: Path) -> str:
    """Every shape of the grid: ours beside eager PyTorch. Raises `NotOnFile` if none was measured."""
    cells = source.newest_cells("attention.FlashAttention")
    if cells.empty:
        raise NotOnFile("no cell of attention.FlashAttention")
    path = figures / "flash-benchmarking.png"
    drawn = draw(cells, path)
    words = "Latency over sequence length, ours and eager PyTorch"
    eager = compared(cells, EAGER)
    known = {
        "measured": Markup(_measured_with(source, cells)),
        "eager": eager,
        "SHORT": SHORT,
        "sdpa": compared(cells, "sdpa"),
        "figure": Markup(f"![{words}]({figures.name}/{path.name})") if drawn else "",
        "tables": [
            (f"{dtype}, d = {d}", Markup(table(latencies(mine).to_dict("records"))))
            for (dtype, d), mine in cells.groupby(["dtype", "d"])
        ],
    }
    if eager:
        known |= {"longest": longest(cells), "grows": grows(cells), "slower": slower(cells)}
    return render("flash_benchmarking.md", known)


def latencies(cells: "pandas.DataFrame") -> "pandas.DataFrame":
    """A row for each length; of each mode our time, eager's, and the speed-up. What failed says how."""
    import pandas

    cells = cells.assign(text=cells.apply(_text, axis=1))
    texts = cells.pivot_table("text", "seq_len", ["mode", "impl"], aggfunc="first")
    values = cells.pivot_table("value", "seq_len", ["mode", "impl"])
    shown: dict[str, Any] = {"seq_len": list(texts.index)}
    for mode, title in MODES.items():
        for impl, name in ((OURS, "ours"), (EAGER, "eager")):
            if (mode, impl) in texts:
                shown[f"{title}: {name}"] = texts[mode, impl].fillna("").tolist()
        if (mode, OURS) in values and (mode, EAGER) in values:
            gains = (values[mode, EAGER] / values[mode, OURS]).reindex(texts.index)
            shown[f"{title}: speed-up"] = ["" if gain != gain else units.times(gain) for gain in gains]
    return pandas.DataFrame(shown, dtype=object)


def _text(cell: "pandas.Series") -> str:
    return units.digits(cell["value"] * 1e3, 4) if cell["status"] == "ok" else abbreviation(cell["status"])


def gains(cells: "pandas.DataFrame", other: str = EAGER) -> "pandas.DataFrame":
    """A row for each shape that both have a time of, with the `ratio` of the other's to ours, and `gain`, its value."""
    axes = ["dtype", "d", "mode", "seq_len"]
    done = cells[cells["status"] == "ok"]
    ours, others = (done[done["impl"] == impl][[*axes, "value", "low", "high"]] for impl in (OURS, other))
    both = ours.merge(others, on=axes).sort_values(axes)
    if both.empty:
        raise NotOnFile(f"no shape with {OURS} and {other}")
    times = both.drop(columns=axes).itertuples(index=False)
    ratios = [ratio(Estimate(*row[:3]), Estimate(*row[3:])) for row in times]
    return both[axes].assign(ratio=ratios, gain=[one.value for one in ratios])


def compared(cells: "pandas.DataFrame", other: str) -> dict[str, Any]:
    """Cells that both have a time of: how many, in how many ours is clearly faster, and the mean; empty without any."""
    try:
        found = gains(cells, other)
    except NotOnFile:
        return {}
    mean = geometric_mean(found["ratio"])
    return {
        "cells": len(found),
        "faster": sum(one.verdict == "better" for one in found["ratio"]),
        "mean": units.times(mean.value) if math.isnan(mean.half) else mean.words,
    }


def longest(cells: "pandas.DataFrame") -> dict[str, Any]:
    """The longest sequences: their length, and the speed-ups over eager by dtype."""
    found = gains(cells)
    found = found[found["seq_len"] == found["seq_len"].max()]
    return {
        "seq_len": found["seq_len"].max(),
        "gains": {dtype: mine["gain"].tolist() for dtype, mine in found.groupby("dtype", sort=False)},
    }


def grows(cells: "pandas.DataFrame") -> bool:
    """Whether the geometric mean of the speed-ups over eager grows from the shortest to the longest sequences."""
    means = gains(cells).groupby("seq_len")["gain"].apply(statistics.geometric_mean)
    return bool(means.iloc[-1] > means.iloc[0])


def slower(cells: "pandas.DataFrame") -> dict[str, Any]:
    """Cells where eager is clearly faster: how many, by dtype, how many are short, and the worst."""
    found = gains(cells)
    found = found[[one.verdict == "worse" for one in found["ratio"]]]
    if found.empty:
        return {"cells": 0}
    return {
        "cells": len(found),
        "by_dtype": found["dtype"].value_counts().to_dict(),
        "short": int((found["seq_len"] <= SHORT).sum()),
        "worst": found.loc[found["gain"].idxmin()].to_dict(),
    }


def _measured_with(source: Source, cells: "pandas.DataFrame") -> str:
    """The sentence with the commit, and with GPU and software from the records."""
    commit = str(cells["commit"].iloc[0])
    cases = newest.read_commit(source.folder / "records", source.machine, commit)
    sessions = {
        (
            one.session.device.get("name", ""),
            one.session.device.get("driver", ""),
            *sorted(one.session.software.items()),
        )
        for one in cases
        if one.benchmark == cells["benchmark"].iloc[0]
    }
    said = "; ".join(
        f"{plain(name)}, driver {plain(driver)}, "
        + ", ".join(f"{plain(key)} {plain(value)}" for key, value in software if key in ("torch", "triton", "cudnn"))
        for name, driver, *software in sorted(sessions)
    )
    return f"Measured at commit {code(commit[:8])} on {said or plain(source.machine)}."


def leaderboard(source: Source, figures: Path) -> str:
    """The leaderboard's call. Raises `NotOnFile` if it was not measured."""
    cells = source.newest_cells("attention.Leaderboard")
    if cells.empty or not (cells["status"] == "ok").any():
        raise NotOnFile("no cell of attention.Leaderboard")
    memory = source.newest_cells("attention.Leaderboard", "peak_memory").set_index("impl")["value"]
    heads, seq_len, d = (int(cells[axis].iloc[0]) for axis in ("num_heads", "seq_len", "d"))
    flops = heads * seq_len**2 / 2 * d * FLOPS_PER_SCORE
    rows = [
        {
            "implementation": label(cell["impl"]),
            "ms": _text(cell),
            "95 % interval": " to ".join(units.digits(cell[end] * 1e3, 4) for end in ("low", "high"))
            if cell["low"] == cell["low"]  # no record, no samples: not a number
            else "",
            "TFLOP/s": units.digits(flops / cell["value"] / 1e12),
            "peak memory, MiB": f"{memory[cell['impl']] / 2**20:.0f}" if cell["impl"] in memory else "",
        }
        for cell in cells[cells["status"] == "ok"].sort_values("value").to_dict("records")
    ]
    known = {
        "measured": Markup(_measured_with(source, cells)),
        "heads": heads,
        "seq_len": seq_len,
        "d": d,
        "flops_per_score": FLOPS_PER_SCORE,
        "flops": flops,
        "table": Markup(table(rows)),
    }
    return render("leaderboard.md", known)


def draw(cells: "pandas.DataFrame", path: Path) -> bool:
    """Latency over length: a panel for each dtype and mode, a colour for each d; False without a time."""
    from matplotlib.lines import Line2D

    timed = cells[(cells["status"] == "ok") & cells["impl"].isin([OURS, EAGER])]
    if timed.empty:
        return False
    dtypes = sorted(timed["dtype"].unique())
    sizes = sorted(timed["d"].unique())
    figure, panels = pictures.subplots(
        len(dtypes), len(MODES), figsize=(9, 2.9 * len(dtypes)), sharex=True, sharey="row", squeeze=False
    )
    for line, dtype in zip(panels, dtypes, strict=True):
        for axes, (mode, title) in zip(line, MODES.items(), strict=True):
            mine = timed[(timed["dtype"] == dtype) & (timed["mode"] == mode)]
            for color, d in enumerate(sizes):
                for impl, style in ((OURS, "-"), (EAGER, ":")):
                    one = mine[(mine["d"] == d) & (mine["impl"] == impl)].sort_values("seq_len")
                    axes.plot(one["seq_len"], one["value"] * 1e3, style, color=f"C{color}", marker="o", markersize=2.5)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.grid(alpha=0.3)
            axes.set_title(f"{title}, {dtype}", fontsize=10)
        line[0].set_ylabel("ms")
    for axes in panels[-1]:
        axes.set_xlabel("seq_len")
    lines = [Line2D([], [], color=f"C{color}", label=f"d = {d}") for color, d in enumerate(sizes)]
    lines += [Line2D([], [], color="grey", linestyle="-", label="ours")]
    lines += [Line2D([], [], color="grey", linestyle=":", label="eager")]
    figure.legend(handles=lines, loc="outside lower center", ncols=len(lines), fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures.save(figure, path)
    return True
