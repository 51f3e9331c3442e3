"""Chapters that a study's own table and figure are in, most about several GPUs: its template, for its rows."""

import contextlib
import importlib
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf.studies import STUDIES
from perf.studies.document import heading
from perf.studies.on_file import NotOnFile
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
Measured = list[tuple[Study, list[Row]]]
"""Documents of a study, each with the rows that a chapter is about."""


_DRAWN = {
    "all-reduce": "Bus bandwidth of an all-reduce over its size",
    "checkpointing": "Peak memory and time of a step over the layers between two checkpoints",
    "ddp": "Communication in a step of each strategy, and over the size of a bucket",
    "fsdp": "Our fully sharded step's speed-up over torch's",
    "overlap": "Computation and communication of a step over time, by strategy",
    "parallel-step": "Our step's speed-up over torch's",
    "sharding": "Memory of a rank by kind, with the optimizer's state sharded and not",
}
"""What the figure of a study shows."""


@dataclass(frozen=True, kw_only=True)
class StudyChapter:
    """A template with the table and the figure of a study: once for each document and each group of its rows.

    The study's module makes both of rows, and its `groups`, where it has them, divides the rows.
    """

    study: str
    template: str
    facts: Callable[[Source, list[Row]], dict[str, Any]]
    """What the template shows, of rows that may have failed."""

    keep: Keep = lambda row: True
    """The rows that the chapter is about."""

    in_table: Keep = lambda row: True
    """Those of them that are in the table."""

    order: Callable[[Row], Any] = lambda row: 0
    figure: str | None = ""
    """Name of the figure, if not the template's; None without a figure."""

    is_one: bool = False
    """Whether all documents are in one table."""

    def __call__(self, source: Source, figures: Path) -> str:
        """Return the text, and draw its figures. Raises `NotOnFile` without rows."""
        found = [(one, sorted(filter(self.keep, one.rows), key=self.order)) for one in source.named(self.study)]
        parts = self._parts([(one, rows) for one, rows in found if any(map(self.in_table, rows))])
        if not parts:
            raise NotOnFile(f"no rows of study {self.study} for {self.template}")
        said = [self._part(name, part, source, figures, part is parts[0][1]) for name, part in parts]
        ranks = ["/".join(map(str, sorted(_ranks(part)))) for _, part in parts]
        if len(set(ranks)) > 1:
            said = [f"*On {number} GPUs.*\n\n{text}" for number, text in zip(ranks, said, strict=True)]
        return "\n".join(said)

    def _parts(self, found: Measured) -> list[tuple[str, Measured]]:
        """Return what has a table of its own, with the name of its figure."""
        name = self.figure or self.template
        if self.is_one:
            return [(name, found)] if found else []
        divided = getattr(self._module, "groups", lambda rows: [rows])
        return [
            ("-".join([name, *one.folder.parts, *[str(number)] * (number > 1)]), [(one, rows)])
            for one, every in found
            for number, rows in enumerate(divided(every), 1)
        ]

    @property
    def _module(self) -> Any:
        return importlib.import_module(f"perf.studies.{STUDIES[self.study]}")

    def _part(self, name: str, part: Measured, source: Source, figures: Path, is_first: bool) -> str:
        rows = list(itertools.chain.from_iterable(rows for _, rows in part))
        shown = [row for row in rows if self.in_table(row)]
        known = self.facts(source, rows) | {
            "made_by": Markup("; ".join(_made_by(one) for one, _ in part) + "."),
            "setting": Markup(_setting(shown)),
            "table": Markup(table(self._module.shown(shown))),
            "figure": Markup(),
            "is_first": is_first,
        }
        path = figures / f"{name}.png"
        if self.figure is not None and hasattr(self._module, "draw") and _ok(rows):
            self._module.draw(rows, path, heading(part[0][0].document))
            if path.exists():
                known["figure"] = Markup(f"![{_DRAWN[self.study]}]({figures.name}/{path.name})")
        return render(f"parallel/{self.template}.md", known).strip() + "\n"


communication = StudyChapter(
    study="all-reduce", template="all-reduce", is_one=True, facts=lambda source, rows: {"growth": growth(_ok(rows))}
)
"""distributed_communication_single_node: every number of ranks in one table and one figure."""

equivalence = StudyChapter(
    study="ddp-equivalence", template="ddp-equivalence", facts=lambda source, rows: {"rows": _ok(rows)}
)
"""naive_ddp: the weights of training on several ranks beside those of one process."""


def data_parallel(template: str, *strategies: str, size: str) -> Part:
    """A chapter of `study ddp` on a model size: its template, and a table of these strategies, or of all of them."""

    def facts(source: Source, rows: list[Row]) -> dict[str, Any]:
        traces = [row for row in _measured(source, "overlap", size) if row["strategy"] in STRATEGIES]
        return {"ddp": DataParallel(_ok(rows), _measured(source, "all-reduce", size), traces)}

    return StudyChapter(
        study="ddp",
        template=template,
        facts=facts,
        keep=lambda row: row["size"] == size,
        in_table=lambda row: not strategies or row["strategy"] in strategies,
        order=lambda row: (STRATEGIES.index(row["strategy"]), row["bucket_size_mb"]),
        figure=None if strategies else "",
    )


def traces(size: str, *, is_fully_sharded: bool = False) -> Part:
    """The pictures of steps, overlapped and not: of data parallel ones or of fully sharded ones."""
    return StudyChapter(
        study="overlap",
        template="overlap",
        facts=lambda source, rows: {"ddp": DataParallel([], (), _ok(rows))},
        keep=lambda row: row["size"] == size and (row["strategy"] not in STRATEGIES) == is_fully_sharded,
    )


def state_sharding(size: str) -> Part:
    """Memory and time with the optimizer's state sharded."""
    return StudyChapter(
        study="sharding",
        template="sharding",
        facts=lambda source, rows: {"by": shardings(_ok(rows))},
        keep=lambda row: row["size"] == size,
    )


def beside_torch(kind: str, size: str) -> Part:
    """Our steps of that kind, "ddp" or "sharding", beside torch's and beside themselves without communication."""

    def of(alone: bool) -> Part:
        return StudyChapter(
            study="parallel-step",
            template="parallel-step",
            facts=lambda source, rows: {"said": _spaced(parallel_step.answers(_ok(rows), NARROW)), "alone": alone},
            keep=lambda row: (
                row["size"] == size
                and row["ours"].startswith(f"{kind}/")
                and (row["against"] == parallel_step.ALONE) == alone
            ),
            figure=None if alone else f"parallel-step-{kind}",
            is_one=True,
        )

    def chapter(source: Source, figures: Path) -> str:
        parts = []
        for alone in (False, True):
            with contextlib.suppress(NotOnFile):
                parts.append(of(alone)(source, figures))
        if not parts:
            raise NotOnFile("no rows of study parallel-step")
        return "\n".join(parts)

    return chapter


OWN_ANSWERS = ("checkpointing", "fsdp", "leaderboard-2026")
"""Studies whose own answers are a chapter's sentences."""


def of_study(name: str, size: str = "") -> Part:
    """The chapter of a study of `OWN_ANSWERS`, with its own sentences. With `size`, of the rows on that model size."""
    answers = importlib.import_module(f"perf.studies.{STUDIES[name]}").answers
    return StudyChapter(
        study=name,
        template="study",
        facts=lambda source, rows: {"said": _spaced(answers(rows))},
        keep=lambda row: not size or row["size"] == size,
        figure=name,
    )


def _spaced(sentences: Iterable[str]) -> list[str]:
    """Sentences of a study as the document writes a percentage."""
    return [sentence.replace("%", " %").replace("  %", " %") for sentence in sentences]


def _measured(source: Source, name: str, size: str) -> list[Row]:
    """Measured rows of a study on that size, or on none."""
    return [row for one in source.named(name) for row in _ok(one.rows) if row.get("size", size) == size]


def _ok(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.get("status", "ok") == "ok"]


def _ranks(part: Measured) -> set[int]:
    return {row["world_size"] for _, rows in part for row in rows if "world_size" in row}


def _setting(rows: list[Row]) -> str:
    """Values that all rows share and no column shows."""
    shared = {name: {str(row[name]) for row in rows if name in row} for name in ("batch", "precision", "variant")}
    said = ", ".join(f"{name} {one}" for name, found in shared.items() if len(found) == 1 for one in found)
    return plain(f"All with {said}.") if said else ""


def _made_by(found: Study) -> str:
    path = f"{PLACE}/{found.folder.as_posix()}/{found.name}.json"
    return f"{code(found.document['command'])} (rows in {code(path)})"
