"""Attention beside every other implementation in PyTorch: a table for each group, and the short one of README.md."""

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

from perf.labels import label
from perf.site.estimate import Ratio
from perf.studies.attention.cells import AXES, MASKS
from perf.studies.attention.groups import document_of
from perf.studies.attention.results import Pair, by_d, nearest, shape, tflops, timed, worst_of
from perf.studies.on_file import some
from perf.studies.rows import grouped
from perf.studies.speedups import best, factor, geometric_mean, milliseconds, speedup_of, with_interval
from perf.units import digits
from perf.writeup.answers.rows import Answer, Documents, Row
from perf.writeup.markdown import Markup, code, plain
from perf.writeup.problems import PLACE, Need
from perf.writeup.source import Source

TOGETHER = "forward_backward"
FRONT: tuple[dict[str, Any], ...] = (
    {"group": "leaderboard"},
    *({"group": "grid", "seq_len": n, "d": d, "mode": TOGETHER} for n, d in ((16384, 64), (16384, 128), (1024, 128))),
    *({"group": "long", "d": d, "mode": mode} for d in (16, 64, 128) for mode in ("forward", "backward")),
    {"group": "float32", "d": 64, "ours": "triton"},
    {"group": "float32", "d": 128, "ours": "triton"},
    {"group": "short", "seq_len": 1024, "d": 64},
)
"""The causal cells of README.md: a line each. None of ours with TF32, with which none of the others was measured."""

TUNED = ("grid", "leaderboard", "long", "short", "float32")
"""The groups of the study whose figures stand together: those of README.md."""

SHOWN = (*TUNED, "gqa", "aside")
"""The groups that have a table with a line for each cell."""

FRONT_COLUMNS = ("sdpa_cudnn", "sdpa_flash", "sdpa_efficient", "flex")
"""The other implementations that have a column there."""

HEADS = {
    "en": ("group: batch x heads x seq_len x d", "ours, ms", "speed-up over the best of the others", "on an H100"),
    "zh": ("组: batch x heads x seq_len x d", "本仓库, ms", "相对其余中最快者的加速比", "在 H100 上"),
}
WORDS = {
    "en": {"forward": "forward", "backward": "backward", "gpu_wall": "wall clock"},
    "zh": {"forward": "前向", "backward": "反向", "gpu_wall": "墙钟时间"},
}
"""Labels of a cell that is not forward and backward together, by CUDA events."""


class Beside(Answer):
    """Figures of `study attention`. A speed-up is the other's time over ours, with its relative half-width."""

    @functools.cached_property
    def measured(self) -> Documents:
        """The documents of the groups `TUNED` that are on file, by group."""
        return {group: self.documents[name] for group in TUNED if (name := document_of(group)) in self.documents}

    @functools.cached_property
    def pairs(self) -> list[Pair]:
        """Ours with each of the others in every cell of these groups that was measured."""
        return [pair for document in self.measured.values() for pair in timed(document["rows"])]

    @functools.cached_property
    def sample(self) -> list[Pair]:
        """Ours with the fastest of the others in every cell of the random sample."""
        return nearest(timed(self.documents[document_of("random")]["rows"]))

    def select(self, **axes: Any) -> list[Pair]:
        """The pairs with these values. Raises `NotOnFile` if there are none."""
        chosen = [pair for pair in self.pairs if all(pair[axis] == value for axis, value in axes.items())]
        return some(chosen, f"study attention with {axes}")

    def cells(self, **axes: Any) -> list[list[Pair]]:
        """The same by cell: the pairs of ours with each of the others."""
        return [cell for _, cell in grouped(self.select(**axes), *AXES, "ours")]

    def mean(self, **axes: Any) -> tuple[float, float]:
        """The geometric mean of these speed-ups."""
        return geometric_mean(self.select(**axes))

    def speedups(self, **axes: Any) -> list[float]:
        """Each of these speed-ups, without its interval."""
        return [speedup_of(pair)[0] for pair in self.select(**axes)]

    def worst(self, **axes: Any) -> Pair:
        """The pair with the smallest speed-up."""
        return min(self.select(**axes), key=lambda pair: speedup_of(pair)[0])

    def top(self, **axes: Any) -> Pair:
        """The pair with the largest speed-up."""
        return max(self.select(**axes), key=lambda pair: speedup_of(pair)[0])

    def of(self, pair: Pair) -> tuple[float, float]:
        """The speed-up of a pair."""
        return speedup_of(pair)

    def slower(self, **axes: Any) -> list[Pair]:
        """The pairs in which ours may be the slower: all but those whose interval lies above 1."""
        return [pair for pair in self.select(**axes) if _verdict(pair) != "better"]

    def below_1(self, **axes: Any) -> int:
        """The number of pairs in which ours takes the longer time, by more than the interval or not."""
        return sum(speedup < 1 for speedup in self.speedups(**axes))

    def to_the_best(self, **axes: Any) -> list[tuple[float, float, str]]:
        """The speed-up over the fastest of the others and its name, each cell."""
        return [best(cell, speedup_of) for cell in self.cells(**axes)]

    def ms(self, **axes: Any) -> list[float]:
        """Our milliseconds."""
        return [milliseconds(pair, "ours") for pair in self.select(**axes)]

    def over_eager(self) -> list[float]:
        """Our `error` over eager PyTorch's, every d."""
        dims = sorted({pair["d"] for pair in self.select(group="float32")})
        return [self.error("triton", d) / self.error("reference", d) for d in dims]

    def error(self, impl: str, d: int) -> float:
        """Relative error of the worst row of a gradient in the group float32."""
        rows = self.documents[document_of("float32")]["rows"]
        errors = (row["error"] for row in rows if (row["impl"], row["d"]) == (impl, d))
        (error,) = some(list(errors), f"the error of {impl}, d = {d}, in study attention --group float32")
        return error

    def gpus(self) -> int:
        """The number of GPUs behind the rows."""
        return len({document["device"]["uuid"] for document in self.measured.values()})

    def commits(self) -> list[str]:
        """The commits behind the rows, in the groups' order."""
        return list(dict.fromkeys(document["commit"] for document in self.measured.values()))

    def processes(self) -> list[int]:
        """The number of processes behind each time."""
        return [len(pair[f"{arm}_s"]) for pair in self.pairs for arm in ("ours", "against")]

    def clocks(self, *, short: bool) -> list[tuple[str, str]]:
        """The clocks and caches of the group short, or of all others."""
        return sorted({(pair["clock"], pair["cache"]) for pair in self.pairs if (pair["group"] == "short") == short})


def beside(group: str, documents: Documents) -> list[Row]:
    """Our time in each cell of a group, and the speed-up over each of the others."""
    mine = timed(documents[document_of(group)]["rows"])
    axes = [axis for axis in ("dtype", "is_causal", "mode", "ours") if len({pair[axis] for pair in mine}) > 1]
    shown = []
    for _, cell in grouped(mine, *AXES, "ours"):
        first, ms = cell[0], milliseconds(cell[0], "ours")
        cells: Row = {"batch x heads x seq_len x d": _spaced(first)}
        for axis in axes:
            cells |= {"mask": MASKS[first["is_causal"]]} if axis == "is_causal" else {axis: first[axis]}
        cells |= {"ours, ms": digits(ms, 4), "TFLOP/s": digits(tflops(first, ms))}
        cells |= {label(pair["against"]): with_interval(*speedup_of(pair)) for pair in cell}
        shown.append(cells)
    return shown


def sample(documents: Documents) -> list[Row]:
    """The random sample by mode and head dimensions: our speed-up over the fastest of the others."""
    shown = []
    for mode, name, mine in by_d(Beside(documents).sample):
        speedup, half, worst = worst_of(mine)
        shown.append(
            {"mode": mode, "head dimensions": name, "cells": len(mine)}
            | {"geometric mean": with_interval(*geometric_mean(mine))}
            | {"below 1": sum(speedup_of(pair)[0] < 1 for pair in mine)}
            | {"worst": f"{with_interval(speedup, half)}, {label(worst['against'])}"}
            | {"in": f"{_spaced(worst)} {worst['dtype']}, {MASKS[worst['is_causal']]}"}
        )
    return shown


NEEDS = {
    group: Need("attention", f"--group {group}{options}", document=document_of(group))
    for group, options in (("gqa", ""), ("aside", ""), ("random", " --seed 1 --rounds 6 --processes 2"))
}


def unmeasured(source: Source, group: str) -> Markup:
    """The command for a group that was not measured, and where else it was; nothing if it was measured."""
    need = NEEDS[group]
    if not need.missing(source):
        return Markup()
    places = ", ".join(code(f"{PLACE}/{machine}") for machine in source.elsewhere(need.document))
    others = f" Results of other machines: {places}." if places else ""
    return Markup(f"*Not measured on this machine: {code(need.command(source.machine))}.{others}*")


def front(language: str, documents: Documents, elsewhere: Documents) -> list[Row]:
    """Ours beside the best of the others, on another machine too, and each of them.

    Bold is the fastest, where the intervals leave no doubt.
    """
    shown = []
    for line in FRONT:
        cell, there = _causal(documents, line), _causal(elsewhere, line)
        speedup, half, _ = best(cell, speedup_of)
        ms, over = digits(milliseconds(cell[0], "ours"), 4), _over_best(cell)
        if all(_verdict(pair) == "better" for pair in cell):
            ms = Markup(f"**{plain(ms)}**")
        elif Ratio(speedup, half).verdict == "worse":
            over = Markup(f"**{plain(over)}**")
        others = {pair["against"]: factor(speedup_of(pair)[0]) for pair in cell}
        shown.append(
            dict(zip(HEADS[language], (_named(cell[0], WORDS[language]), ms, over, _over_best(there)), strict=True))
            | {label(name): others.get(name, "-") for name in FRONT_COLUMNS}
        )
    return shown


def _causal(documents: Documents, line: dict[str, Any]) -> list[Pair]:
    """The pairs of the one causal cell with these values."""
    pairs = [pair for pair in timed(documents[document_of(line["group"])]["rows"]) if pair["is_causal"]]
    mine = [pair for pair in pairs if all(pair[axis] == value for axis, value in line.items())]
    ((_, cell),) = some(list(grouped(mine, *AXES, "ours")), f"study attention with {line}")
    return cell


def _verdict(pair: Pair) -> str:
    return Ratio(*speedup_of(pair)).verdict


def _over_best(cell: list[Pair]) -> str:
    speedup, half, name = best(cell, speedup_of)
    return f"{with_interval(speedup, half)}, {label(name)}"


def _named(pair: Pair, words: dict[str, str]) -> str:
    """The group and the shape, and what is not as in most lines."""
    unlike = [words[pair[axis]] for axis in ("mode", "clock") if pair[axis] in words]
    return ", ".join([f"{pair['group']}: {_spaced(pair)}", *unlike])


def _spaced(pair: Pair) -> str:
    return shape(pair).replace("x", " x ")


TABLES: dict[str, Callable[[Documents], list[Row]]] = {
    **{f"attention-{group}": partial(beside, group) for group in SHOWN},
    "attention-random": sample,
}
