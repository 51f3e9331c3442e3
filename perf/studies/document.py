"""The document that a study writes: device, software, command, commit and rows."""

import errno
import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from perf.files import write_measured
from perf.harness import device
from perf.studies import rows
from perf.studies.rows import Row

FOLDER = Path(__file__).resolve().parents[2] / ".asv" / "studies"


def _writable(context: click.Context, parameter: click.Parameter, folder: Path) -> Path:
    """The folder, made before anything is measured; said at the end, where something was written, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(f"{folder} cannot be written: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise click.ClickException(f"{folder} cannot be written: {os.strerror(errno.EACCES)}")
    before = _files(folder)

    def say_where() -> None:
        if _files(folder) != before:
            click.echo(f"Rows and figures: {os.path.relpath(folder)}", err=True)

    context.call_on_close(say_where)
    return folder


def _files(folder: Path) -> dict[Path, int]:
    """And when each was last written; without what another study is just writing aside."""
    return {path: path.stat().st_mtime_ns for path in folder.iterdir() if path.suffix != ".tmp"}


out_option = click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=lambda: FOLDER,
    callback=_writable,
    help="A folder for the rows (NAME.json) and figures; they replace the last. Default: .asv/studies.",
)


def heading(document: dict[str, Any]) -> str:
    """One line: device and software."""
    software = document["software"]
    versions = ", ".join(f"{name} {software[name]}" for name in ("torch", "triton") if name in software)
    driver = document["device"].get("driver")
    return ", ".join([document["device"]["name"], *([f"driver {driver}"] if driver else []), versions])


def tell(whole: dict[str, Any], title: str, cells: Sequence[dict[str, Any]], sentences: Iterable[str] = ()) -> None:
    """Print a document for the terminal: who measured, a table (title of a column -> cell) and what follows from it."""
    click.echo(heading(whole))
    click.echo(title)
    click.echo(text_table(cells))
    for sentence in sentences:
        click.echo(sentence)


def text_table(cells: Sequence[dict[str, Any]]) -> str:
    """Return a table for the terminal, of rows of cells by the title of their column."""
    from tabulate import tabulate

    return tabulate(cells, headers="keys", disable_numparse=True)


def document(kind: str, found: list[Row]) -> dict[str, Any]:
    """Return rows with the device ("cuda" or "cpu"), the software, the command and the commit that made them."""
    arguments = sys.argv[1:]
    if "--out" in arguments:  # a path of one machine says nothing on another
        at = arguments.index("--out")
        del arguments[at : at + 2]
    command = " ".join(["python -m perf", *arguments])
    who = {"device": device.identity(kind), "software": device.software()}
    return {"command": command, "commit": _commit(), **who, "rows": found}


@functools.cache
def _commit() -> str | None:
    """Return the commit of this checkout, "with changes" if it has any; None where git does not know it."""
    describe = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=8", "--exclude=*"]
    try:
        done = subprocess.run([*describe, "--dirty= with changes"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def kept(measured: Iterable[Row], kind: str, path: Path, written: Callable[[Row], Row] = lambda row: row) -> list[Row]:
    """Return all rows that are measured. An interruption loses none: with each, those until then go to `path`.

    `written` makes of a row what is on file.
    """
    found: list[Row] = []
    for row in measured:
        found.append(row)
        write(path, document(kind, [written(one) for one in found]))
    return found


_NUMBERS = re.compile(r"\[\n\s*([^\[\]{}\"]+?)\n\s*\]")


def write(path: Path, document: dict[str, Any]) -> None:
    """Write aside and rename; a list of numbers takes one line. Raises `click.ClickException` if that fails."""
    wrong = next(rows.faults(path.stem, document["rows"], whole=True), None)
    assert wrong is None, wrong
    text = json.dumps(document, indent=1)
    write_measured({path: _NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"})
