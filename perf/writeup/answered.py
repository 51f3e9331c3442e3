"""Chapters whose answers stand in the README beside a machine's rows; its tables are made anew from the rows."""

import contextlib
import re
from pathlib import Path

from perf.studies.on_file import NotOnFile
from perf.writeup.markdown import IMAGE, section, unmarked
from perf.writeup.source import STUDIES, Source

STUDY_DPI = 110
"""At which studies draw; a picture that was given fewer colours has lost it."""


STALE = "*The rows are newer than the sentences: the tables show the rows, the sentences what was measured before.*\n\n"
UNWRITTEN = "*Nobody has written sentences about these rows yet: tables and figures alone.*\n"


def chapter(source: Source, heading: str, figures: Path) -> str:
    """The README's section of that heading; its tables and figures alone where nobody has written a README.

    Raises `NotOnFile` where the section, or what it was written from, is missing.
    """
    from perf.studies.answers.page import rewritten

    if not source.readme:
        return _tables_alone(source, heading, figures)
    try:
        written = section(source.readme, heading)
    except KeyError:
        raise NotOnFile("its README has no such section") from None
    made = rewritten(written, source.documents())
    return (STALE if made != written else "") + with_figures(unmarked(made), source, figures)


def _tables_alone(source: Source, heading: str, figures: Path) -> str:
    """The tables and figures that the committed answers have under this heading, of another machine's rows."""
    from perf.studies.answers.page import FOLDER, MARK, rewritten

    parts, found = [], source.documents()
    answers = section((FOLDER / "README.md").read_text(encoding="utf-8"), heading)
    for match in re.finditer(f"{MARK.pattern}|{IMAGE.pattern}", answers):
        with contextlib.suppress(NotOnFile):  # what its rows do not give is not shown
            if match[1] is None:
                parts.append(with_figures(match[0] + "\n", source, figures))
            else:
                parts.append(unmarked(rewritten(f"<!-- {match[1]}: {match[2]} -->\n", found)))
    if not any(part.startswith("|") for part in parts):
        raise NotOnFile("no table can be made of its rows")
    return "\n".join([UNWRITTEN, *parts])


def with_figures(text: str, source: Source, figures: Path) -> str:
    """The same with its pictures copied to `figures`, which is beside the document."""
    from PIL import Image

    def copied(match: re.Match[str]) -> str:
        words, name = match.groups()
        picture = source.folder / STUDIES / source.machine / name
        if not picture.is_file():
            return f"*{words}: the picture is not on file.*"
        figures.mkdir(parents=True, exist_ok=True)
        with Image.open(picture) as image:  # without a resolution a page takes it for 72 dots an inch
            image.save(figures / picture.name, dpi=image.info.get("dpi", (STUDY_DPI, STUDY_DPI)))
        return f"![{words}]({figures.name}/{picture.name})"

    return IMAGE.sub(copied, text)


def conditions(source: Source) -> str:
    """What holds for all of these chapters, in the README's own words."""
    found = re.search(r"^\*\*What holds unless.*?(?=\n\n)", source.readme, re.M | re.S)
    return found[0] + "\n" if found else ""
