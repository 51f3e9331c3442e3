"""What our pages share: where they link to each other, and how a template becomes HTML."""

import re
from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).parent / "templates"
PAGES = (
    ("index.html", "History"),
    ("attention.html", "Attention"),
    ("trust.html", "Trust"),
    ("index.html#/regressions", "Regressions"),
)
"""File and label of each, in the order of the bar on top."""


def render(template: str, *, show_commit_url: str, **values: Any) -> str:
    """The page of that name. What is not in the template is text: nothing of it can become markup."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(
        pages=PAGES,
        here=template,
        commit_url=show_commit_url if show_commit_url != "#" else "",  # asv's word for none
        **values,
    )


def ident(text: str) -> str:
    """`text` as the id of an element."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())
