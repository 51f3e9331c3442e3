"""`python -m perf report`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from perf.files import scratch_folder

if TYPE_CHECKING:
    from perf.writeup.document import Document
    from perf.writeup.source import Source

PERF = Path(__file__).resolve().parents[1]
YEARS = ("2025", "2026")
"""The spring of each handout, as in `perf.writeup.editions`."""


@click.command()
@click.option("--machine", metavar="NAME", help="Whose measurements. Default: that of which most is on file.")
@click.option(
    "--results",
    "perf",
    default=PERF,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A perf folder with results, records and studies/results. Default: this checkout's.",
)
@click.option("--edition", default="2025", show_default=True, type=click.Choice(YEARS), help="Whose problems.")
@click.option(
    "--out",
    default=PERF.parent / ".asv" / "report",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to write. Default: .asv/report.",
)
@click.option("--bundle", is_flag=True, help="Write code.zip too, if the tests pass.")
@click.option(
    "--answers", is_flag=True, help="Write the results' README.md and the front pages' results instead, from the rows."
)
def command(machine: str | None, perf: Path, edition: str, out: Path, bundle: bool, answers: bool) -> None:
    """Write the course's write-up from what was measured: HTML, PDF, Markdown, and its tables in LaTeX.

    \b
    python -m perf report
    python -m perf report --machine nvidia-h200 --out /tmp/report
    python -m perf report --edition 2026
    python -m perf report --bundle         # code.zip, its tests, then writeup.pdf
    python -m perf report --answers        # after a new measurement: the documents in this checkout that quote it

    Every problem of a handout with its points, its tests and its answer. Numbers come from rows: asv's results
    and records, and what `python -m perf study NAME --out FOLDER` left in perf/studies/results/MACHINE, for two GPUs
    in MACHINE-x2. What was not measured is named with the command that measures it. Takes half a minute, needs no GPU,
    and measures nothing. Needs pandoc and typst: pip install -e '.[report]'
    """
    from perf.writeup import committed, source
    from perf.writeup.bundle import run_tests

    given = click.get_current_context().get_parameter_source
    for option in ("bundle", "out", "edition"):
        if answers and given(option) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--answers and --{option} were given; allowed: one of them")
    if answers:
        for path, changed in committed.update(source.read(perf, machine)).items():
            click.echo(f"{path.relative_to(perf.parent)}: {'rewritten' if changed else 'unchanged'}")
        return
    report(machine, perf, out, run_tests if bundle else None, edition)


def report(
    machine: str | None, perf: Path, out: Path, tests: Callable[[], int] | None, edition: str = YEARS[0]
) -> None:
    """Write it all aside, then rename it into `out`.

    With `tests`, which give an exit status, first pack and check code.zip, then run them; an older code.zip is removed.
    Raises `click.ClickException` with one line for what the user can mend.
    """
    from perf.writeup import bundle, convert, source

    convert.libraries()
    found = source.read(perf, machine)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with scratch_folder(".part-", out) as aside:
            if tests:
                (out / bundle.ARCHIVE).unlink(missing_ok=True)
                count = bundle.zip_code(bundle.ROOT, aside / bundle.ARCHIVE, out)
                click.echo(f"code.zip: {count} files; collecting its tests, then running this folder's", err=True)
                bundle.require_complete(aside / bundle.ARCHIVE)
                bundle.require_green(tests)
            made = _write(found, aside, edition)
            files = sorted(path.relative_to(aside) for path in aside.rglob("*") if path.is_file())
            for path in files:
                (out / path).parent.mkdir(exist_ok=True)
                (aside / path).replace(out / path)
    except OSError as error:
        raise click.ClickException(f"{error.filename or out} cannot be written: {error.strerror}") from None
    _say(made, out, files)


def _write(found: "Source", aside: Path, edition: str) -> "Document":
    """All forms of the document, into a folder where nobody looks."""
    from tqdm import tqdm

    from perf.writeup import convert, document
    from perf.writeup.editions import EDITIONS

    with tqdm(total=4, desc="figures and text", leave=False, disable=None) as bar:
        made = document.write(found, aside, EDITIONS[edition])
        forms: dict[str, Callable[[], str | bytes]] = {
            "writeup.md": lambda: made.text,
            "writeup.html": lambda: convert.html(made.text, aside),
            "tables.tex": lambda: convert.latex_tables(made.text),
            "writeup.pdf": lambda: convert.pdf(made.text, aside),
        }
        for name, form in forms.items():
            bar.set_description(name)
            content = form()
            (aside / name).write_bytes(content if isinstance(content, bytes) else content.encode())
            bar.update()
    return made


def _say(made: "Document", out: Path, files: list[Path]) -> None:
    for warning in made.warnings:
        click.echo(f"warning: {warning}", err=True)
    pictures = [path for path in files if path.suffix == ".png"]
    others = ", ".join(path.name for path in files if path not in pictures)
    click.echo(f"{out}: {others} and {len(pictures)} figures")
    count = len(made.edition.problems)
    click.echo(f"{count - len(made.missing)} of {count} problems of {made.edition.year} have all that they ask for")
    for one in made.commands:
        names = ", ".join(name for name, commands in made.missing.items() if one in commands)
        click.echo(f"not measured: {one}\n    for {names}")
