"""Chapters about several GPUs, each from the rows of a study: its template, table and figure."""

import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from perf.studies.on_file import NotOnFile
from perf.studies.rows import Row
from perf.writeup.markdown import Markup, code, plain, table
from perf.writeup.problems import PLACE
from perf.writeup.source import Source, Study
from perf.writeup.templating import render

Keep = Callable[[Row], bool]
Draw = Callable[[list[Any], Path, str], None]
Figures = Callable[[list[Row]], dict[str, Any]]
"""From measured rows to what the template of their study shows."""


def all_reduce(source: Source, figures: Path) -> str:
    """distributed_communication_single_node."""
    from perf.studies.parallel import all_reduce as study

    return _parts(source, "all-reduce", study, figures, lambda rows: {"growth": growth(rows)}, draw=study.draw)


def growth(rows: list[Row]) -> list[dict[str, Any]]:
    """Smallest and largest all-reduce of each backend and number of ranks: bytes, bandwidth, time."""
    from perf.studies.parallel.all_reduce import BACKENDS, rates

    shown = []
    for device, ranks in dict.fromkeys((row["device"], row["world_size"]) for row in rows):
        mine = [row for row in rows if (row["device"], row["world_size"]) == (device, ranks)]
        least, most = (extreme(mine, key=lambda row: row["megabytes"]) for extreme in (min, max))
        if least is not most:
            grown = most["megabytes"] / least["megabytes"]
            longer = statistics.median(most["samples_s"]) / statistics.median(least["samples_s"])
            shown.append(
                {
                    "backend": BACKENDS[device],
                    "ranks": ranks,
                    "least": least["megabytes"],
                    "least_rate": rates(least)[1],
                    "most": most["megabytes"],
                    "most_rate": rates(most)[1],
                    "bytes": f"{grown:g}",
                    "time": longer,
                    "sublinear": longer < grown,
                }
            )
    return shown


def equivalence(source: Source, figures: Path) -> str:
    """naive_ddp: the weights of training on several ranks beside those of one process."""
    from perf.studies.parallel import ddp_equivalence as study

    return _parts(source, "ddp-equivalence", study, figures, lambda rows: {"rows": rows})


def data_parallel(*strategies: str) -> Callable[[Source, Path], str]:
    """The chapters of `study ddp`: the rows of these strategies."""

    def chapter(source: Source, figures: Path) -> str:
        from perf.studies.parallel import ddp as study

        keep: Keep = lambda row: row["strategy"] in strategies  # noqa: E731
        return _parts(source, "ddp", study, figures, lambda rows: {"steps": steps(rows), "said": []}, keep=keep)

    return chapter


def steps(rows: list[Row]) -> list[dict[str, Any]]:
    """Each row's step, the part of it that is communication, and its ratio to naive's step."""
    from perf.studies.parallel.ddp import share

    names = ("size", "context_length", "world_size")
    medians = [{name: statistics.median(row[name]) for name in ("step_s", "exposed_s")} for row in rows]
    cells = [tuple(row[name] for name in names) for row in rows]
    naive = {
        cell: median["step_s"]
        for cell, median, row in zip(cells, medians, rows, strict=True)
        if row["strategy"] == "naive"
    }
    return [
        {name: row[name] for name in ("strategy", *names)}
        | median
        | {
            "share": share(median["exposed_s"], median["step_s"]).replace("%", " %"),
            "of_naive": median["step_s"] / naive.get(cell, median["step_s"]),
        }
        for row, cell, median in zip(rows, cells, medians, strict=True)
    ]


def overlap(source: Source, figures: Path) -> str:
    """The pictures of a step, overlapped and not."""
    from perf.studies.parallel import overlap as study

    return _parts(source, "overlap", study, figures, lambda rows: {}, draw=study.draw)


def buckets(source: Source, figures: Path) -> str:
    """The sweep of bucket sizes beside the other strategies, and the model fitted to it."""
    from perf.studies.parallel import ddp as study

    return _parts(
        source, "ddp", study, figures, lambda rows: {"steps": [], "said": _spaced(study.answers(rows))}, draw=study.draw
    )


def sharding(source: Source, figures: Path) -> str:
    """Memory and time with the optimizer's state divided."""
    from perf.studies.parallel import sharding as study

    return _parts(
        source, "sharding", study, figures, lambda rows: {"said": _spaced(study.answers(rows))}, draw=study.draw
    )


def parallel_step(source: Source, figures: Path) -> str:
    """Our strategies beside torch's, step by step."""
    from perf.studies.parallel import step as study
    from perf.studies.speedup_figure import draw

    def drawn(rows: list[Row], path: Path, title: str) -> None:
        draw(rows, "{size}, {context_length}, {world_size} ranks: {ours}".format_map, path, title)

    return _parts(
        source, "parallel-step", study, figures, lambda rows: {"said": _spaced(study.answers(rows, 0.02))}, draw=drawn
    )


def _spaced(sentences: Iterable[str]) -> list[str]:
    """Sentences of a study as the document writes a percentage."""
    return [sentence.replace("%", " %").replace("  %", " %") for sentence in sentences]


def _parts(
    source: Source,
    name: str,
    study: ModuleType,
    figures: Path,
    shown: Figures,
    *,
    draw: Draw | None = None,
    keep: Keep = lambda row: True,
) -> str:
    """The template of a study for each of its documents. Raises `NotOnFile` if there is none."""
    parts = []
    for found in source.named(name):
        rows = [row for row in found.rows if keep(row)]
        if not rows:
            continue
        measured = [row for row in rows if row.get("status", "ok") == "ok"]
        known = shown(measured) | {
            "made_by": Markup(_made_by(found)),
            "setting": Markup(_setting(rows)),
            "table": Markup(table(study.shown(rows))),
            "figure": Markup(""),
        }
        if draw and measured:
            path = figures / f"{'-'.join([name, *found.folder.parts])}.png"
            draw(found.rows, path, _heading(found.document))
            if path.exists():
                known["figure"] = Markup(f"![{name.replace('-', ' ').capitalize()}]({figures.name}/{path.name})")
        parts.append(render(f"parallel/{name}.md", known).strip())
    if not parts:
        raise NotOnFile(f"no rows of study {name}")
    return "\n\n".join(parts) + "\n"


def _setting(rows: list[Row]) -> str:
    """Values that all rows share and no column shows."""
    shared = {name: {str(row[name]) for row in rows if name in row} for name in ("batch", "precision", "variant")}
    said = ", ".join(f"{name} {one}" for name, found in shared.items() if len(found) == 1 for one in found)
    return plain(f"All with {said}.") if said else ""


def _heading(document: dict[str, Any]) -> str:
    from perf.studies.document import heading

    return heading(document)


def _made_by(found: Study) -> str:
    path = f"{PLACE}/{found.folder.as_posix()}/{found.name}.json"
    return f"{plain(_heading(found.document))}. Measured with {code(found.document['command'])}; rows in {code(path)}."
