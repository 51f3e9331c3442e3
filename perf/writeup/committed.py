"""Documents under version control that are rendered from rows: the results' README and the front pages' results."""

from pathlib import Path

import click

from perf.files import write_aside
from perf.studies.attention.groups import document_of
from perf.studies.on_file import NotOnFile
from perf.writeup.answered import values
from perf.writeup.markdown import Markup
from perf.writeup.source import STUDIES, Source
from perf.writeup.templating import DoesNotHold, render

FRONT = {"README.md": ("## Results", "front.md"), "README.zh.md": ("## 结果", "front.zh.md")}
"""The heading of the results in each front page, and their template."""

FIRST_CALLS = "attention.FirstCallShapes"


def documents(source: Source) -> dict[Path, str]:
    """The whole text of each document. Raises `click.ClickException` where its rows or claims do not hold."""
    known = values(source, lambda words, name: Markup(f"![{words}]({name})"))
    root = source.folder.parent
    made = {}
    try:
        made[source.folder / STUDIES / source.machine / "README.md"] = render("answers.md", known)
        known |= {
            "first_calls_s": first_calls_s(source),
            "cudnn": _version(source.documents()[document_of("grid")]["software"]["cudnn"]),
        }
        for name, (heading, template) in FRONT.items():
            path = root / name
            made[path] = _with_section(path, heading, render(template, known))
    except (DoesNotHold, NotOnFile, OSError) as error:
        raise click.ClickException(str(error)) from None
    return made


def first_calls_s(source: Source) -> list[float]:
    """Seconds of the first forward and backward of a fresh process, every shape."""
    cells = source.newest_cells(FIRST_CALLS)
    if cells.empty:
        raise NotOnFile(FIRST_CALLS)
    return cells[cells["status"] == "ok"]["value"].tolist()


def _version(cudnn: str) -> str:
    """91900 is 9.19."""
    return f"{int(cudnn) // 10_000}.{int(cudnn) % 10_000 // 100}"


def _with_section(path: Path, heading: str, body: str) -> str:
    """A document with `body` under that heading, up to the next heading of its kind."""
    before, found, rest = path.read_text(encoding="utf-8").partition(f"\n{heading}\n")
    if not found:
        raise click.ClickException(f"{path.name} has no heading {heading!r}")
    _, following, after = rest.partition("\n## ")
    return f"{before}{found}\n{body.strip()}\n{following}{after}"


def update(source: Source) -> dict[Path, bool]:
    """Write the documents that changed; return for each whether it did."""
    made = documents(source)
    changed = {path: not path.exists() or path.read_text(encoding="utf-8") != text for path, text in made.items()}
    for path, differs in changed.items():
        if differs:
            write_aside(path, made[path])
    return changed
