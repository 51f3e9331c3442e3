"""Templates of the write-up: sentences in Markdown, whose numbers and tables are functions of rows.

A value that a template writes is text: it cannot become markup. Tables and pictures are `Markup`.
"""

import contextlib
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perf.studies.on_file import NotOnFile, OnFile
from perf.writeup.formats import FILTERS
from perf.writeup.markdown import Markup, code, plain

if TYPE_CHECKING:
    import jinja2

FOLDER = Path(__file__).parent / "templates"
_ALONE = re.compile(r"^\{\{ (?:table|picture|measured)\(.*\) \}\}$", re.M)


class DoesNotHold(ValueError):
    """A sentence of a template claims what the rows do not say; the message is the claim."""


def holds(claim: str, fact: bool) -> None:
    """Raise `DoesNotHold` unless the rows bear out what the next sentence claims."""
    if not fact:
        raise DoesNotHold(f"the rows do not say that {claim}")


@functools.cache
def _environment(folder: Path) -> "jinja2.Environment":
    import jinja2

    class Environment(jinja2.Environment):
        def getitem(self, obj: Any, argument: Any) -> Any:
            """Let `NotOnFile` through, which as a `LookupError` would be an undefined item."""
            return obj[argument] if isinstance(obj, OnFile) else super().getitem(obj, argument)

        def getattr(self, obj: Any, attribute: str) -> Any:
            """Let `NotOnFile` through here, too."""
            is_key = isinstance(obj, OnFile) and not hasattr(obj, attribute)
            return obj[attribute] if is_key else super().getattr(obj, attribute)

    environment = Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=False,  # of HTML: `finalize` escapes Markdown
        finalize=lambda value: value if isinstance(value, Markup) else plain(value),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        extensions=["jinja2.ext.do"],
    )
    environment.filters.update(FILTERS, code=code)
    environment.globals["holds"] = holds
    return environment


def render(name: str, values: dict[str, Any]) -> str:
    """The template of that name.

    Raises `NotOnFile` where a row is missing, `DoesNotHold` where a claim is wrong, and `click.ClickException` with one
    line where the template itself is.
    """
    import jinja2

    try:
        return _environment(FOLDER).get_template(name).render(values)
    except jinja2.TemplateError as error:
        line = f", line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise click.ClickException(f"template {name}{line}: {error.message}") from None


def without_sentences(name: str, values: dict[str, Any]) -> str:
    """The tables and pictures of that template, those of which there are rows. Raises `NotOnFile` without a table."""
    parts = []
    for expression in _ALONE.findall((FOLDER / name).read_text(encoding="utf-8")):
        with contextlib.suppress(NotOnFile):
            parts.append(_environment(FOLDER).from_string(expression).render(values))
    if not any(part.startswith("|") for part in parts):
        raise NotOnFile("no table can be made of its rows")
    return "\n\n".join(part.strip() for part in parts) + "\n"
