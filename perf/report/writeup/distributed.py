"""Chapters about several GPUs, each from the rows of a study: its table, its figure, and what the numbers say."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from perf.report.writeup.answered import NotOnFile
from perf.report.writeup.markdown import code, plain, table
from perf.report.writeup.problems import PLACE
from perf.report.writeup.source import Row, Source, Study

Keep = Callable[[Row], bool]


def all_reduce(source: Source, figures: Path) -> str:
    """distributed_communication_single_node."""
    from perf.studies import all_reduce as study

    return _parts(source, "all-reduce", study, figures, _all_reduce_in_words)


def _all_reduce_in_words(rows: list[Row]) -> list[str]:
    from perf.studies.all_reduce import BACKENDS, bandwidths

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
                f"{bandwidths(least)[1] / 1e9:.2f} GB/s and {plain(most['megabytes'])} MB at "
                f"{bandwidths(most)[1] / 1e9:.2f} GB/s of bus bandwidth: {grown:g} times the bytes in {longer:.1f} "
                "times the time"
            )
    if not said:
        return []
    why = " What a call costs whatever its size weighs on the small ones." if sublinear else ""
    return ["; ".join(said) + f".{why}"]


def equivalence(source: Source, figures: Path) -> str:
    """naive_ddp: the weights of training on several ranks beside those of one process."""
    from perf.studies import ddp_equivalence as study

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
        from perf.studies import ddp as study

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
    said = []
    for row in rows:
        step, exposed = (statistics.median(row[name]) for name in ("step_s", "exposed_s"))
        bucket = f", buckets of {row['bucket_size_mb']:g} MiB" if row["strategy"] == "bucketed" else ""
        said.append(
            f"{plain(row['strategy'])} ({plain(row['size'])}, context {plain(row['context_length'])}, "
            f"{plain(row['world_size'])} ranks{bucket}): {step * 1e3:.2f} ms a step, of which communication adds "
            f"{exposed * 1e3:.2f} ms, {exposed / step:.1%}.".replace("%", " %")
        )
    return ["; ".join(one.rstrip(".") for one in said) + "."] if said else []


def overlap(source: Source, figures: Path) -> str:
    """The pictures of a step, overlapped and not."""
    from perf.studies import overlap as study

    return _parts(source, "overlap", study, figures, lambda rows: [])


def buckets(source: Source, figures: Path) -> str:
    """The sweep of bucket sizes beside the other strategies, and the model fitted to it."""
    from perf.studies import ddp as study

    return _parts(source, "ddp", study, figures, lambda rows: [plain(one) for one in study.answers(rows)])


def sharding(source: Source, figures: Path) -> str:
    """Memory and time with the optimizer's state divided."""
    from perf.studies import sharding as study

    return _parts(source, "sharding", study, figures, lambda rows: [plain(one) for one in study.answers(rows)])


def parallel_step(source: Source, figures: Path) -> str:
    """Our strategies beside torch's, step by step."""
    from perf.studies import parallel_step as study
    from perf.studies.ratio_figure import draw

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
        parts += [table(study.shown(rows))]
        if draws and measured:
            path = figures / f"{name}-{found.folder.name}.png"
            (draw or study.draw)(found.rows, path, _heading(found.document))
            if path.exists():
                parts += [f"![{name.replace('-', ' ').capitalize()}]({figures.name}/{path.name})"]
    if not parts:
        raise NotOnFile(f"no rows of study {name}")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _heading(document: dict[str, Any]) -> str:
    from perf.studies.document import heading

    return heading(document)


def _made_by(found: Study) -> str:
    path = f"{PLACE}/{found.folder.name}/{found.name}.json"
    return f"{plain(_heading(found.document))}. Measured with {code(found.document['command'])}; rows in {code(path)}."
