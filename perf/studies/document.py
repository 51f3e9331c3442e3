"""The document that a study writes: device, software, command, commit and rows."""

import errno
import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from perf.files import write_measured
from perf.git import output
from perf.harness import device
from perf.harness.status import ANSWERED, describe
from perf.harness.working_tree import ROOT
from perf.options import command_line
from perf.studies import row_forms
from perf.studies.device import ON_A_CPU, device_kind
from perf.studies.rows import Row
from perf.tables import prose, text_table

PART = ".part"
"""Suffix of a document that is not whole yet."""

MAX_REASONS = 3
"""How many reasons an error names."""

FOLDER = ROOT / ".asv" / "studies"

CODE = ("cs336_systems", "perf", *(f":!perf/{results}" for results in ("results", "records", "studies/results")))
"""Git's paths of what a study runs: not the results that other measurements write meanwhile."""


def _writable(context: click.Context, parameter: click.Parameter, folder: Path) -> Path:
    """Make the folder before anything is measured; name it at the end, however that comes, if a file was written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(f"{folder} cannot be written: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise click.ClickException(f"{folder} cannot be written: {os.strerror(errno.EACCES)}")
    before = _files(folder)

    def name_folder() -> None:
        if _files(folder) != before:
            click.echo(f"Rows and figures: {os.path.relpath(folder)}", err=True)

    context.call_on_close(name_folder)
    return folder


def _files(folder: Path) -> dict[Path, int]:
    """Return when each file was last written, without parts and those that another study is writing aside."""
    return {path: path.lstat().st_mtime_ns for path in folder.iterdir() if path.suffix not in (".tmp", PART)}


out_option = click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=lambda: FOLDER,
    callback=_writable,
    help="Folder for rows (NAME.json) and figures, which replace the last. Default: .asv/studies.",
)

tiny_option = click.option("--size", type=click.Choice(["tiny"]), help="Measure little, in seconds.")
"""Option of studies without a model: "tiny" or None."""


def heading(document: dict[str, Any]) -> str:
    """Return one line with the device and the software."""
    software = document["software"]
    versions = ", ".join(f"{name} {software[name]}" for name in ("torch", "triton") if name in software)
    driver = document["device"].get("driver")
    return ", ".join([document["device"]["name"], *([f"driver {driver}"] if driver else []), versions])


def present(document: dict[str, Any], title: str, cells: Iterable[Row], sentences: Iterable[str] = ()) -> None:
    """Print a document: its heading, a table (column title -> cell), sentences, and whether a CPU was measured."""
    click.echo(heading(document))
    click.echo(title)
    click.echo(text_table(cells))
    conclude(sentences)


def conclude(sentences: Iterable[str]) -> None:
    """Print the sentences that end a study, and whether a CPU was measured."""
    for sentence in (*sentences, *([ON_A_CPU] if device_kind() == "cpu" else [])):
        click.echo(prose(sentence))


def document(kind: str, rows: list[Row]) -> dict[str, Any]:
    """Return rows with the device ("cuda" or "cpu"), the software, the command and the commit that made them."""
    command = command_line(valued=["--out"])
    origin = {"device": device.identity(kind), "software": device.software()}
    return {"command": command, "commit": _commit(), **origin, "rows": rows}


@functools.cache
def _commit() -> str | None:
    """Return the commit of this checkout, "with changes" if its code has any; None where git does not know it."""
    try:
        commit = output(ROOT, "rev-parse", "--short=8", "HEAD").strip()
        return f"{commit} with changes" if output(ROOT, "status", "--porcelain", "--", *CODE) else commit
    except click.ClickException:
        return None


def any_result(rows: Iterable[Row]) -> bool:
    """Return whether any row says something of the code: a value, or that it needs more memory than there is."""
    return any(row.get("status", "ok") in ANSWERED for row in rows)


def kept(
    measured: Iterable[Row],
    kind: str,
    path: Path,
    on_file: Callable[[Row], Row] = lambda row: row,
    has_results: Callable[[list[Row]], Any] = any_result,
    **facts: Any,
) -> dict[str, Any]:
    """Return the document of all measured rows, and write it to `path` as `write_in_parts` does, row by row.

    `on_file` shortens a row for the file; `facts` stand beside the rows.
    """
    rows: list[Row] = []

    def documents() -> Iterator[dict[Path, dict[str, Any]]]:
        for row in measured:
            rows.append(row)
            yield {path: document(kind, [on_file(each) for each in rows]) | facts}

    write_in_parts(documents(), has_results)
    return document(kind, rows) | facts


def write_in_parts(
    states: Iterable[Mapping[Path, dict[str, Any]]], has_results: Callable[[list[Row]], Any] = any_result
) -> None:
    """Write each state of some documents beside their paths, as NAME.json.part, and rename them after the last.

    So no run that ends early, or finds nothing, replaces what an earlier one found. Whatever ends it, one line names
    the parts: that of `KeyboardInterrupt` itself, and one on stderr beside any other exception. A document without
    results is not written; if none has any, this raises `click.ClickException` with the rows' reasons.
    """
    last: dict[Path, dict[str, Any]] = {}
    try:
        for documents in states:
            for path, whole in documents.items():
                write(_part(path), whole)
                last[path] = whole
    except BaseException as ending:
        parts = ", ".join(map(str, map(_part, last)))
        if parts and isinstance(ending, KeyboardInterrupt):
            raise KeyboardInterrupt(f"what was measured is in {parts}") from None
        if parts:
            click.echo(f"What was measured is in {parts}", err=True)
        raise
    found = [path for path, whole in last.items() if has_results(whole["rows"])]
    for path in last:
        if path not in found:
            _part(path).unlink()
            continue
        try:
            _part(path).replace(path)
        except OSError as error:
            raise click.ClickException(
                f"{path} cannot be written: {error.strerror}; what was measured is in {_part(path)}"
            ) from None
    if last and not found:
        reasons = {describe(row): None for whole in last.values() for row in whole["rows"] if row["status"] != "ok"}
        shown, more = list(reasons)[:MAX_REASONS], len(reasons) - MAX_REASONS
        words = "; ".join([*shown, *([f"{more} more"] if more > 0 else [])])
        raise click.ClickException(f"nothing was measured, so no file was written{words and ': '}{words}")


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}{PART}")


_NUMBERS = re.compile(r"\[\n\s*([^\[\]{}\"]+?)\n\s*\]")


def write(path: Path, document: dict[str, Any]) -> None:
    """Write aside and rename, a list of numbers on one line. Raises `click.ClickException` if that fails."""
    wrong = next(row_forms.faults(path.name.partition(".")[0], document["rows"], whole=True), None)
    assert wrong is None, wrong
    text = json.dumps(document, indent=1)
    write_measured({path: _NUMBERS.sub(lambda match: f"[{' '.join(match[1].split())}]", text) + "\n"})
