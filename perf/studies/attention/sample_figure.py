"""Figure of a random sample: the speed-up over the best of the others by head dimension, length and precision."""

from pathlib import Path

from perf.labels import label as name_of
from perf.studies import figures
from perf.studies.attention.groups import EVERY_D
from perf.studies.rows import Row
from perf.studies.speedups import speedup_of

PANELS = {"16-bit": ("bfloat16", "float16"), "float32": ("float32",)}
SPREAD = 5.0
"""Width on the axis of d over which the cells of one d are spread, shortest first."""


def draw(pairs: list[Row], path: Path, title: str) -> None:
    """Plot a mark for each pair, coloured by seq_len, in a panel for each precision; triangles are causal."""
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import AutoLocator, LogLocator, NullLocator

    figure, panels = figures.subplots(1, len(PANELS), figsize=(9.5, 3.9), sharex=True, sharey=True)
    lengths = [pair["seq_len"] for pair in pairs]
    norm = LogNorm(min(lengths), max(*lengths, min(lengths) + 1))
    for axes, (name, dtypes) in zip(panels, PANELS.items(), strict=True):
        mine = [pair for pair in pairs if pair["dtype"] in dtypes]
        places = _places(mine)
        for is_causal, marker in ((True, "^"), (False, "o")):
            shown = [number for number, pair in enumerate(mine) if pair["is_causal"] == is_causal]
            marks = axes.scatter(
                [places[number] for number in shown],
                [speedup_of(mine[number])[0] for number in shown],
                c=[mine[number]["seq_len"] for number in shown],
                **{
                    "norm": norm,
                    "marker": marker,
                    "s": 20,
                    "cmap": "viridis",
                    "edgecolors": "black",
                    "linewidths": 0.3,
                },
                label="causal" if is_causal else "full",
            )
        slower = sum(speedup_of(pair)[0] < 1 for pair in mine)
        axes.set_title(f"{name}: {slower} of {len(mine)} cells below 1\u00d7", fontsize=8)
        axes.axhline(1.0, color="C3", linewidth=1, zorder=0)
        axes.set_xticks(EVERY_D, EVERY_D, fontsize=7)
        axes.set_xlabel("d", fontsize=8)
        axes.grid(axis="x", linewidth=0.3, alpha=0.5)
    first = panels[0]
    first.set_yscale("log")
    low, high = first.get_ylim()
    first.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)) if high > 3 * low else AutoLocator())
    first.yaxis.set_minor_locator(NullLocator())
    first.yaxis.set_major_formatter("{x:g}\u00d7")
    ours = ", ".join(dict.fromkeys(name_of(pair["ours"]) for pair in pairs))
    first.set_ylabel(f"speed-up of {ours} over the best of the others", fontsize=8)
    first.legend(fontsize=7)
    bar = figure.colorbar(marks, ax=panels, pad=0.01)
    bar.ax.yaxis.set_major_formatter("{x:g}")
    bar.set_label("seq_len", fontsize=8)
    figures.save(figure, path, title)


def _places(pairs: list[Row]) -> list[float]:
    """Return the place of each pair on the axis of d: those of one d side by side, in the order of their lengths."""
    places = []
    for pair in pairs:
        beside = sorted(other["seq_len"] for other in pairs if other["d"] == pair["d"])
        share = (beside.index(pair["seq_len"]) + 0.5) / len(beside)
        places.append(pair["d"] + SPREAD * (share - 0.5))
    return places
