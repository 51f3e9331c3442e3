"""Chapters whose answers stand in the README beside a machine's rows; its tables are made anew from the rows."""

import re
from pathlib import Path

from perf.report.writeup.markdown import IMAGE, section, unmarked
from perf.report.writeup.source import STUDIES, Source

STUDY_DPI = 110
"""At which studies draw; a picture that was given fewer colours has lost it."""


class NotOnFile(LookupError):
    """Nothing to write this chapter from; the text says what."""


def chapter(source: Source, heading: str, figures: Path) -> str:
    """The README's section of that heading. Raises `NotOnFile` where it, or what it was written from, is missing."""
    from perf.studies.answers.page import rewritten

    try:
        written = section(source.readme, heading)
    except KeyError:
        raise NotOnFile("nobody has written an answer for this machine") from None
    found = source.documents()
    try:
        made = rewritten(written, found)
    except (KeyError, ValueError, TypeError, ZeroDivisionError, StopIteration) as error:
        raise NotOnFile(f"the rows do not have what its tables need ({type(error).__name__}: {error})") from None
    stale = (
        "*The rows are newer than the sentences: the tables show the rows, the sentences what was measured before.*\n\n"
    )
    return (stale if made != written else "") + with_figures(unmarked(made), source, figures)


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
