"""asv's page as one of ours: it moves to history.html, has our links, and works without the internet.

asv's index.html loads its libraries from three content delivery networks. The same files lie in `vendor/`, with
their hashes, sources and licences; `adopt` copies them beside the page and points the tags at them.
"""

import json
import re
import shutil
from collections.abc import Iterable
from html import escape
from pathlib import Path

from perf.files import replace_file

VENDOR = Path(__file__).parent / "vendor"
STYLE = Path(__file__).parent / "templates" / "history.css"
HISTORY = "history.html"
"""asv's page: the index of the site is our overview."""

_TAG = re.compile(r"<(?:script|link)\b[^>]*>", re.IGNORECASE)
_EXTERNAL = re.compile(r"""\b(src|href)=(["'])((?:https?:)?//[^"']*)\2""", re.IGNORECASE)
# What only makes sense towards another host. Our copies are as trustworthy as the page that names them.
_CROSS_ORIGIN = re.compile(r"""\s+(?:integrity|crossorigin|referrerpolicy)=(["'])[^"']*\1""", re.IGNORECASE)
_BEFORE_TITLE = re.compile(r'[ \t]*<li id="nav-li-graphdisplay">')
_VIEWPORT = '<meta name="viewport" content="width=device-width, initial-scale=1">'
_END_OF_HEAD = re.compile(r"[ \t]*</head>")


class UnknownPage(ValueError):
    """asv's index.html is not the page that this module knows."""


def read_manifest() -> dict[str, dict[str, str]]:
    """URL in asv's page -> {"file", "source", "integrity"} of the copy in `vendor/`."""
    return json.loads((VENDOR / "manifest.json").read_text(encoding="utf-8"))["replaces"]


def adopt(html_dir: Path, links: Iterable[tuple[str, str]]) -> None:
    """Make asv's index.html our history.html, once: `links` (href and label) in its bar, what it loads from beside it.

    Raises `UnknownPage`.
    """
    theirs, ours = html_dir / "index.html", html_dir / HISTORY
    if ours.exists():
        return
    page = localize(theirs.read_text(encoding="utf-8"), read_manifest())
    items = "".join(f'        <li><a href="{escape(href)}">{escape(label)}</a></li>\n' for href, label in links)
    page, bars = _BEFORE_TITLE.subn(lambda before: items + before[0], page)
    style = (
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{STYLE.read_text()}</style>\n'
    )
    page, heads = _END_OF_HEAD.subn(lambda end: style + end[0], page)
    if bars != 1 or heads != 1:
        raise UnknownPage("asv's index.html has no head and navigation bar of the known shape")
    shutil.copytree(VENDOR, html_dir / "vendor", dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git*"))
    replace_text(ours, page)
    theirs.unlink()


def fill_grid(html_dir: Path, benchmarks: Iterable[str]) -> None:
    """An empty summary for each benchmark without a number: asv's grid asks for one of every benchmark."""
    folder = html_dir / "graphs" / "summary"
    folder.mkdir(parents=True, exist_ok=True)
    for name in benchmarks:
        if not (summary := folder / f"{name}.json").exists():
            replace_text(summary, "[]")


def localize(page: str, manifest: dict[str, dict[str, str]]) -> str:
    """The page with every external script and stylesheet replaced by its copy. Doing it twice changes nothing."""

    def local(tag: re.Match[str]) -> str:
        external = _EXTERNAL.search(tag[0])
        if external is None:
            return tag[0]
        attribute, _, url = external.groups()
        if url not in manifest:
            raise UnknownPage(f"asv's index.html loads {url}, which perf/site/vendor/manifest.json does not know")
        own = f'{attribute}="vendor/{manifest[url]["file"]}"'
        return _CROSS_ORIGIN.sub("", tag[0].replace(external[0], own))

    return _TAG.sub(local, page)


def replace_text(path: Path, text: str) -> None:
    """Write aside, then rename: a reader never sees half a page. What has no place in UTF-8 becomes a question mark."""
    replace_file(path, text.encode(errors="replace"))
