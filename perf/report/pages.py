"""What our pages share: where they link to each other, and how a template becomes HTML."""

import ast
import itertools
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

ROOMS = Path(__file__).parent
"""A page's code and templates lie in a folder of its name; what all pages share lies here and in `templates`."""

PAGES = (
    ("index.html", "Overview"),
    ("changes.html", "Changes"),
    ("compare.html", "Compare"),
    ("history.html", "History"),
    ("attention.html", "Attention"),
    ("step.html", "Training step"),
    ("roofline.html", "Roofline"),
    ("distributed.html", "Distributed"),
    ("trust.html", "Trust"),
    ("history.html#/regressions", "Regressions"),
)
"""File and label of each, in the order of the bar on top."""

INDEX = "overview"
"""The page that is the site's index."""


@dataclass(frozen=True)
class Commit:
    """A commit as a reader knows it."""

    hash: str
    subject: str
    date: str


def asv_cells(benchmark: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The parameters of each case of a benchmark (an entry of benchmarks.json), in the order of asv's values."""
    axes = [[ast.literal_eval(value) for value in axis] for axis in benchmark["params"]]
    return [dict(zip(benchmark["param_names"], cell, strict=True)) for cell in itertools.product(*axes)]


def permalink(benchmark: str, machine: str, params: dict[str, Any]) -> str:
    """asv's history graph of one series. asv knows a parameter's values by their repr."""
    query = {"machine": machine} | {f"p-{axis}": repr(value) for axis, value in params.items()}
    return f"history.html#{quote(benchmark)}?{urlencode(query, quote_via=quote)}"


def known_link(series: Container[str], benchmark: str, machine: str, params: dict[str, Any]) -> str:
    """The same where asv has a graph of the benchmark, which is in `series`; else ""."""
    return permalink(benchmark, machine, params) if benchmark in series else ""


def comparison(machine: str, base: str, head: str) -> str:
    """The page of two commits, by their hashes."""
    query = {"machine": machine, "base": base, "head": head}
    return f"compare.html?{urlencode(query, quote_via=quote)}"


def diff_url(show_commit_url: str) -> str:
    """The address that "BASE...HEAD" completes to a diff, as GitHub, GitLab and Gitea have it; "" if unknown."""
    known = re.fullmatch(r"(https?://.+/)commit/", show_commit_url)
    return f"{known[1]}compare/" if known else ""


def file(room: str) -> str:
    """Where the page of that name lies."""
    return "index.html" if room == INDEX else f"{room}.html"


def render(room: str, *, show_commit_url: str, **values: Any) -> str:
    """The page of that name, by its room's page.html. What is not in a template is text: it cannot become markup."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ROOMS),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(f"{room}/page.html").render(
        pages=PAGES,
        here=file(room),
        commit_url=show_commit_url if show_commit_url != "#" else "",  # asv's default
        diff_url=diff_url(show_commit_url),
        **values,
    )


def ident(text: str) -> str:
    """`text` as the id of an element."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())
