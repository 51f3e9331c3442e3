"""Chapters about several GPUs, each from the rows of a study: its table, its figure, and what the numbers say."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from perf.studies.on_file import NotOnFile
from perf.writeup.markdown import code, plain, table
from perf.writeup.problems import PLACE
from perf.writeup.source import Row, Source, Study

Keep = Callable[[Row], bool]

ABOUT = {
    "all-reduce": "All-reduce of float32 in place, from a barrier until the slowest rank has it, median; 1 MB = 10⁶ "
    "bytes. busbw = algbw · 2 (n - 1)/n is what a ring moves over each link.",
    "ddp": "Medians of the slowest rank, ms; *exposed* is what the step takes more than the same step without "
    "communication, the two in turn.",
    "ddp-equivalence": "A small Transformer, SGD in float32, from weights of each rank's own.",
    "overlap": "One profiled step, ms; *both at once* is the communication during which the same rank computes.",
    "sharding": "Medians of the slowest rank, memory of one rank; by the formula 16P bytes whole, 8P + 8P/n divided, "
    "activations aside.",
    "parallel-step": "Single steps in turn on the same ranks, the slowest rank's; 95 % interval over processes.",
}
"""What a table's columns are."""


def all_reduce(source: Source, figures: Path) -> str:
    """distributed_communication_single_node."""
    from perf.studies.parallel import all_reduce as study

    return _parts(source, "all-reduce", study, figures, _all_reduce_in_words)


def _all_reduce_in_words(rows: list[Row]) -> list[str]:
    from perf.studies.parallel.all_reduce import BACKENDS, rates

    said, sublinear = [], True
    for device, ranks in dict.fromkeys((row["device"], row["world_size"]) for row in rows):
        mine = sorted(
            (row for row in rows if (row["device"], row["world_size"]) == (device, ranks)),
            key=lambda row: row["megabytes"],
        )
        (least, most), times = ((mine[0], mine[-1]), [statistics.median(row["samples_s"]) for row in mine])
        if least is not most:
            grown, longer = most["megabytes"] / least["megabytes"], times[-1] / times[0]
            sublinear = sublinear and longer < grown
            said.append(
                f"{BACKENDS[device]} over {ranks} ranks moves {plain(least['megabytes'])} MB at "
                f"{rates(least)[1] / 1e9:.2f} GB/s and {plain(most['megabytes'])} MB at "
                f"{rates(most)[1] / 1e9:.2f} GB/s of bus bandwidth: {grown:g} times the bytes in {longer:.1f} "
                "times the time"
            )
    if not said:
        return []
    why = " What a call costs whatever its size weighs on the small ones." if sublinear else ""
    return ["; ".join(said) + f".{why}"]


def equivalence(source: Source, figures: Path) -> str:
    """naive_ddp: the weights of training on several ranks beside those of one process."""
    from perf.studies.parallel import ddp_equivalence as study

    def in_words(rows: list[Row]) -> list[str]:
        same = sum(row["equal_on_ranks"] for row in rows)
        worst = max(row["difference"] for row in rows)
        return [
            f"The weights are equal on all ranks, bit by bit, in {same} of {len(rows)} rows; against one process with "
            f"the whole batch they differ by {worst:.1e} at most, relative to all weights: sums in another order."
        ]

    return _parts(source, "ddp-equivalence", study, figures, in_words, draws=False)


def data_parallel(*strategies: str) -> Callable[[Source, Path], str]:
    """The chapters of `study ddp`: the rows of these strategies."""

    def chapter(source: Source, figures: Path) -> str:
        from perf.studies.parallel import ddp as study

        return _parts(
            source,
            "ddp",
            study,
            figures,
            _data_parallel_in_words,
            keep=lambda row: row["strategy"] in strategies,
            draws=False,
        )

    return chapter


def _data_parallel_in_words(rows: list[Row]) -> list[str]:
    """A part of the sentence for each row: its step, what of it is communication, and how that is beside naive's."""

    from perf.studies.parallel.ddp import share

    def cell(row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in ("size", "context_length", "world_size"))

    naive = {cell(row): statistics.median(row["step_s"]) for row in rows if row["strategy"] == "naive"}
    said = []
    for row in rows:
        step, exposed = (statistics.median(row[name]) for name in ("step_s", "exposed_s"))
        size, context, ranks = cell(row)
        beside = f"; {step / naive[cell(row)]:.3f} of naive's step" if naive.get(cell(row), step) != step else ""
        said.append(
            f"{plain(row['strategy'])} ({plain(size)}, context {plain(context)}, {plain(ranks)} ranks): "
            f"{step * 1e3:.2f} ms a step, of which communication adds {exposed * 1e3:.2f} ms, "
            f"{share(exposed, step)}{beside}."
        )
    return [" ".join(said).replace("%", " %")] if said else []


def overlap(source: Source, figures: Path) -> str:
    """The pictures of a step, overlapped and not."""
    from perf.studies.parallel import overlap as study

    return _parts(source, "overlap", study, figures, lambda rows: [])


def buckets(source: Source, figures: Path) -> str:
    """The sweep of bucket sizes beside the other strategies, and the model fitted to it."""
    from perf.studies.parallel import ddp as study

    return _parts(source, "ddp", study, figures, lambda rows: [plain(one) for one in study.answers(rows)])


def sharding(source: Source, figures: Path) -> str:
    """Memory and time with the optimizer's state divided."""
    from perf.studies.parallel import sharding as study

    return _parts(source, "sharding", study, figures, lambda rows: [plain(one) for one in study.answers(rows)])


def parallel_step(source: Source, figures: Path) -> str:
    """Our strategies beside torch's, step by step."""
    from perf.studies.parallel import step as study
    from perf.studies.speedup_figure import draw

    def drawn(rows: list[Row], path: Path, title: str) -> None:
        draw(rows, "{size}, {context_length}, {world_size} ranks: {ours}".format_map, path, title)

    return _parts(
        source, "parallel-step", study, figures, lambda rows: [plain(one) for one in study.answers(rows, 0.02)], drawn
    )


def _parts(
    source: Source,
    name: str,
    study: ModuleType,
    figures: Path,
    in_words: Callable[[list[Row]], Sequence[str]],
    draw: Callable[[list[Row], Path, str], None] | None = None,
    *,
    keep: Keep = lambda row: True,
    draws: bool = True,
) -> str:
    """Of every document of a study: who measured, sentences, table, figure. Raises `NotOnFile` if there is none."""
    parts = []
    for found in source.named(name):
        rows = [row for row in found.rows if keep(row)]
        if not rows:
            continue
        measured = [row for row in rows if row.get("status", "ok") == "ok"]
        parts += [_made_by(found)]
        parts += in_words(measured) if measured else []
        parts += [" ".join([ABOUT[name], _setting(rows)]).strip(), table(study.shown(rows))]
        if draws and measured:
            path = figures / f"{'-'.join([name, *found.folder.parts])}.png"
            (draw or study.draw)(found.rows, path, _heading(found.document))
            if path.exists():
                parts += [f"![{name.replace('-', ' ').capitalize()}]({figures.name}/{path.name})"]
    if not parts:
        raise NotOnFile(f"no rows of study {name}")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _setting(rows: list[Row]) -> str:
    """What all rows have in common and no column says."""
    shared = {name: {str(row[name]) for row in rows if name in row} for name in ("batch", "precision", "variant")}
    said = ", ".join(f"{name} {one}" for name, found in shared.items() if len(found) == 1 for one in found)
    return plain(f"All with {said}.") if said else ""


def _heading(document: dict[str, Any]) -> str:
    from perf.studies.document import heading

    return heading(document)


def _made_by(found: Study) -> str:
    path = f"{PLACE}/{found.folder.as_posix()}/{found.name}.json"
    return f"{plain(_heading(found.document))}. Measured with {code(found.document['command'])}; rows in {code(path)}."
