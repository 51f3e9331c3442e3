"""Navigation, links and template rendering shared by our pages."""

import ast
import functools
import itertools
import re
import zlib
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from perf import units
from perf.harness.records import CaseResult

FOLDER = Path(__file__).parent
"""Folder with one subfolder per page. Code and templates of all pages are here and in `templates`."""


@dataclass(frozen=True)
class Page:
    """An entry of the navigation bar."""

    file: str
    label: str
    of_newest: bool = False
    """Whether its page.py has `collect` of a machine's newest measurements and `render`, which need no more."""


PAGES = (
    Page("index.html", "Overview"),
    Page("changes.html", "Changes"),
    Page("compare.html", "Compare"),
    Page("history.html", "History"),
    Page("attention.html", "Attention", of_newest=True),
    Page("step.html", "Training step", of_newest=True),
    Page("roofline.html", "Roofline", of_newest=True),
    Page("distributed.html", "Distributed", of_newest=True),
    Page("trust.html", "Trust"),
    Page("history.html#/regressions", "asv's regressions"),
)
"""Pages in the order of the navigation bar."""

INDEX = "overview"
"""Name of the site's index page."""


@dataclass(frozen=True)
class Commit:
    """Hash, subject and date of a commit."""

    hash: str
    subject: str
    date: str


def asv_cells(benchmark: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parameters of each case of a benchmark (an entry of benchmarks.json), in the order of asv's values."""
    axes = [[ast.literal_eval(value) for value in axis] for axis in benchmark["params"]]
    return [dict(zip(benchmark["param_names"], cell, strict=True)) for cell in itertools.product(*axes)]


def permalink(benchmark: str, machine: str, params: dict[str, Any]) -> str:
    """Return the URL of asv's graph of one series. asv identifies a parameter's values by their repr."""
    query = {"machine": machine} | {f"p-{axis}": repr(value) for axis, value in params.items()}
    return f"history.html#{quote(benchmark)}?{urlencode(query, quote_via=quote)}"


@dataclass(frozen=True)
class Machine:
    """A machine and asv's graphs of it."""

    name: str
    series: Container[str]
    """Names of asv's benchmarks with a graph of this machine."""

    def link(self, result: CaseResult | None, method: str = "track_time") -> str:
        """Return asv's graph of a case; "" if there is none."""
        return self.graph(f"{result.benchmark}.{method}", result.params) if result else ""

    def graph(self, benchmark: str, params: dict[str, Any]) -> str:
        """Return `permalink` if there is a graph of the benchmark, else ""."""
        return permalink(benchmark, self.name, params) if benchmark in self.series else ""


def comparison(machine: str, base: str, head: str) -> str:
    """Return the URL of the comparison of two commits, by their hashes."""
    query = {"machine": machine, "base": base, "head": head}
    return f"compare.html?{urlencode(query, quote_via=quote)}"


def diff_url(show_commit_url: str) -> str:
    """Return the URL prefix of "BASE...HEAD" diffs on GitHub, GitLab and Gitea; "" if unknown."""
    known = re.fullmatch(r"(https?://.+/)commit/", show_commit_url)
    return f"{known[1]}compare/" if known else ""


def file(page: str) -> str:
    """Return the file name of a page."""
    return "index.html" if page == INDEX else f"{page}.html"


def render(
    page: str, project: str, show_commit_url: str, machines: Mapping[str, dict[str, Any] | None], **values: Any
) -> str:
    """Render a page from its page.html. All values are escaped.

    `machines` has what the page shows of each, None for one that has nothing on it.
    """
    template = _environment().get_template(f"{page}/page.html")
    return template.render(
        project=project,
        pages=[(one.file, one.label) for one in PAGES],
        here=file(page),
        commit_url=show_commit_url if show_commit_url != "#" else "",  # asv's default
        diff_url=diff_url(show_commit_url),
        machines=[{"id": ident(name), "name": name} | shown for name, shown in machines.items() if shown],
        silent=[name for name, shown in machines.items() if not shown],
        **values,
    )


@functools.cache  # it keeps what the pages have in common compiled
def _environment() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"percent": units.percent, "counted": units.counted}
    return environment


def ident(machine: str, part: str = "") -> str:
    """Return the id of a machine's element, or of a part of it; a checksum tells apart names of the same words."""
    plain, *rest = (re.sub(r"[^a-z0-9]+", "-", text.lower()) for text in (machine, part) if text)
    return "-".join([plain, *([] if plain == machine else [f"{zlib.crc32(machine.encode()):08x}"]), *rest])
