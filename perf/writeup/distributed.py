"""Chapters that a study's own table and figure are in, most about several GPUs: its template, for its rows."""

import importlib
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from perf.studies import STUDIES
from perf.studies.document import heading
from perf.studies.on_file import NotOnFile
from perf.studies.parallel import all_reduce, ddp, ddp_equivalence, overlap, sharding
from perf.studies.parallel import step as parallel_step
from perf.studies.rows import Row
from perf.studies.speedups import NARROW
from perf.workloads.data_parallel import STRATEGIES
from perf.writeup.answers.data_parallel import DataParallel, growth, shardings
from perf.writeup.markdown import Markup, code, plain, table
from perf.writeup.problems import PLACE
from perf.writeup.source import Source, Study
from perf.writeup.templating import render

Part = Callable[[Source, Path], str]
Keep = Callable[[Row], bool]
Draw = Callable[[list[Any], Path, str], None]
Figures = Callable[[list[Row]], dict[str, Any]]
"""From measured rows to what a template shows."""

Measured = list[tuple[Study, list[Row]]]
"""Documents of a study, each with the rows that a chapter is about."""


def communication(source: Source, figures: Path) -> str:
    """distributed_communication_single_node: every number of ranks in one table and one figure."""
    found = _documents(source, "all-reduce")
    return _chapter("all-reduce", found, all_reduce, figures, lambda rows: {"growth": growth(rows)}, all_reduce.draw)


def equivalence(source: Source, figures: Path) -> str:
    """naive_ddp: the weights of training on several ranks beside those of one process."""
    found = _documents(source, "ddp-equivalence")
    return _each("ddp-equivalence", found, ddp_equivalence, figures, lambda rows: {"rows": rows})


def data_parallel(template: str, *strategies: str, size: str) -> Part:
    """A chapter of `study ddp` on a model size: its template, and a table of these strategies, or of all of them."""

    def chapter(source: Source, figures: Path) -> str:
        reduced, lanes = _measured(source, "all-reduce", size), _measured(source, "overlap", size)
        lanes = [row for row in lanes if row["strategy"] in STRATEGIES]

        def shown(rows: list[Row]) -> dict[str, Any]:
            return {"ddp": DataParallel(rows, reduced, lanes)}

        found = _documents(source, "ddp", lambda row: row["size"] == size)
        for _, rows in found:
            rows.sort(key=lambda row: (STRATEGIES.index(row["strategy"]), row["bucket_size_mb"]))
        if not strategies:
            return _each(template, found, ddp, figures, shown, ddp.draw)
        return _each(template, found, ddp, figures, shown, keep=lambda row: row["strategy"] in strategies)

    return chapter


def traces(size: str, *, is_fully_sharded: bool = False) -> Part:
    """The pictures of steps, overlapped and not: of data parallel ones or of fully sharded ones."""

    def chapter(source: Source, figures: Path) -> str:
        def keep(row: Row) -> bool:
            return row["size"] == size and (row["strategy"] not in STRATEGIES) == is_fully_sharded

        found = _documents(source, "overlap", keep)
        return _each("overlap", found, overlap, figures, lambda rows: {"ddp": DataParallel([], (), rows)}, overlap.draw)

    return chapter


def state_sharding(size: str) -> Part:
    """Memory and time with the optimizer's state sharded."""

    def chapter(source: Source, figures: Path) -> str:
        found = _documents(source, "sharding", lambda row: row["size"] == size)
        return _each("sharding", found, sharding, figures, lambda rows: {"by": shardings(rows)}, sharding.draw)

    return chapter


def beside_torch(kind: str, size: str) -> Part:
    """Our steps of that kind, "ddp" or "sharding", beside torch's and beside themselves without communication."""

    def chapter(source: Source, figures: Path) -> str:
        def of(alone: bool) -> Keep:
            return lambda row: (
                row["size"] == size and row["ours"].startswith(f"{kind}/") and (row["against"] == "alone") == alone
            )

        parts = []
        for alone in (False, True):
            found = _documents(source, "parallel-step", of(alone))
            if found:
                name = f"parallel-step-{kind}{'-alone' * alone}"
                draw = None if alone else parallel_step.draw
                parts.append(_chapter("parallel-step", found, parallel_step, figures, _verdicts, draw, name))
        if not parts:
            raise NotOnFile("no rows of study parallel-step")
        return "\n".join(parts)

    return chapter


def _verdicts(rows: list[Row]) -> dict[str, Any]:
    said = parallel_step.answers(rows, NARROW)
    return {"said": _spaced(said), "alone": rows[0]["against"] == "alone" if rows else False}


OWN_ANSWERS = ("checkpointing", "fsdp", "leaderboard-2026")
"""Studies whose own answers are a chapter's sentences."""


def of_study(name: str, size: str = "") -> Part:
    """The chapter of a study of `OWN_ANSWERS`: its own sentences, table and figure, for each group of its rows.

    A group is a document, or what the study's `groups` makes of its rows. With `size`, of the rows on that model size.
    """

    def part(one: Study, rows: list[Row], figures: Path, figure: str) -> str:
        study = importlib.import_module(f"perf.studies.{STUDIES[name]}")

        def shown(_: list[Row]) -> dict[str, Any]:
            return {"said": _spaced(study.answers(rows))}  # rows that failed too

        return _chapter("study", [(one, rows)], study, figures, shown, getattr(study, "draw", None), figure)

    def chapter(source: Source, figures: Path) -> str:
        found = _documents(source, name, lambda row: not size or row["size"] == size)
        if not found:
            raise NotOnFile(f"no rows of study {name}")
        groups = getattr(importlib.import_module(f"perf.studies.{STUDIES[name]}"), "groups", lambda rows: [rows])
        return "\n".join(
            part(one, group, figures, "-".join([name, *one.folder.parts, *[str(number)] * (number > 1)]))
            for one, rows in found
            for number, group in enumerate(groups(rows), 1)
        )

    return chapter


def _spaced(sentences: Iterable[str]) -> list[str]:
    """Sentences of a study as the document writes a percentage."""
    return [sentence.replace("%", " %").replace("  %", " %") for sentence in sentences]


def _documents(source: Source, name: str, keep: Keep = lambda row: True) -> Measured:
    """The documents of a study that have such rows."""
    found = [(study, [row for row in study.rows if keep(row)]) for study in source.named(name)]
    return [(study, rows) for study, rows in found if rows]


def _measured(source: Source, name: str, size: str) -> list[Row]:
    """Measured rows of a study on that size, or on none."""
    return list(
        itertools.chain.from_iterable(
            _ok(rows) for _, rows in _documents(source, name, lambda row: row.get("size", size) == size)
        )
    )


def _ok(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.get("status", "ok") == "ok"]


def _each(
    template: str,
    found: Measured,
    study: ModuleType,
    figures: Path,
    shown: Figures,
    draw: Draw | None = None,
    keep: Keep = lambda row: True,
) -> str:
    """The template for each document, with the rows that it keeps in its table. Raises `NotOnFile` if there is none."""
    parts = []
    for one, rows in found:
        if any(map(keep, rows)):
            name = "-".join([template, *one.folder.parts])
            parts.append(_chapter(template, [(one, rows)], study, figures, shown, draw, name, keep))
    if not parts:
        raise NotOnFile(f"no rows for {template}")
    return "\n".join(parts)


def _chapter(
    template: str,
    found: Measured,
    study: ModuleType,
    figures: Path,
    shown: Figures,
    draw: Draw | None = None,
    figure: str = "",
    keep: Keep = lambda row: True,
) -> str:
    """The template once for all these documents. Raises `NotOnFile` if there is none."""
    rows = list(itertools.chain.from_iterable(rows for _, rows in found))
    if not rows:
        raise NotOnFile(f"no rows for {template}")
    kept = [row for row in rows if keep(row)]
    known = shown(_ok(rows)) | {
        "made_by": Markup("; ".join(_made_by(one) for one, _ in found) + "."),
        "setting": Markup(_setting(kept)),
        "table": Markup(table(study.shown(kept))),
        "figure": Markup(""),
    }
    if draw and _ok(rows):
        path = figures / f"{figure or template}.png"
        draw(rows, path, heading(found[0][0].document))
        if path.exists():
            known["figure"] = Markup(
                f"![{template.replace('_', ' ').replace('-', ' ').capitalize()}]({figures.name}/{path.name})"
            )
    return render(f"parallel/{template}.md", known).strip() + "\n"


def _setting(rows: list[Row]) -> str:
    """Values that all rows share and no column shows."""
    shared = {name: {str(row[name]) for row in rows if name in row} for name in ("batch", "precision", "variant")}
    said = ", ".join(f"{name} {one}" for name, found in shared.items() if len(found) == 1 for one in found)
    return plain(f"All with {said}.") if said else ""


def _made_by(found: Study) -> str:
    path = f"{PLACE}/{found.folder.as_posix()}/{found.name}.json"
    return f"{code(found.document['command'])} (rows in {code(path)})"
