"""Turn asv's page into history.html: our navigation bar, no external requests, no requests for missing graphs.

asv's index.html loads its libraries from three content delivery networks. `vendor/` holds the same files with
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
TEMPLATES = Path(__file__).parent / "templates"
HISTORY = "history.html"
"""The file name of asv's page. The site's index is our overview."""

_REGRESSIONS = (
    '<p style="margin: 1rem">asv\u2019s own rule for every graph, memory included; what was accepted is not marked. '
    'For the judged list see <a href="changes.html">Changes</a>.</p>\n'
)

_TAG = re.compile(r"<(?:script|link)\b[^>]*>", re.IGNORECASE)
_EXTERNAL = re.compile(r"""\b(src|href)=(["'])((?:https?:)?//[^"']*)\2""", re.IGNORECASE)
# Attributes for requests to another host. Our copies are as trustworthy as the page that loads them.
_CROSS_ORIGIN = re.compile(r"""\s+(?:integrity|crossorigin|referrerpolicy)=(["'])[^"']*\1""", re.IGNORECASE)


class UnknownPage(ValueError):
    """asv's index.html differs from the page that this module can convert."""


def read_manifest() -> dict[str, dict[str, str]]:
    """Map each URL in asv's page to {"file", "source", "integrity"} of the copy in `vendor/`."""
    return json.loads((VENDOR / "manifest.json").read_text(encoding="utf-8"))["replaces"]


def adopt(html_dir: Path, links: Iterable[tuple[str, str]], benchmarks: Iterable[str]) -> None:
    """Convert asv's index.html into history.html, once, with `links` (href and label) in its navigation bar.

    The page requests only graphs that are on file when this is called, and its grid omits benchmarks without one.
    Raises `UnknownPage`.
    """
    theirs, ours = html_dir / "index.html", html_dir / HISTORY
    if ours.exists():
        return
    page = localize(theirs.read_text(encoding="utf-8"), read_manifest())
    items = "".join(f'<li><a href="{escape(href)}">{escape(label)}</a></li>\n' for href, label in links)
    for text, replacement in (
        ("<html>", '<html lang="en">'),
        ("</head>", f"{_head(html_dir, benchmarks)}</head>"),
        ('<li id="nav-li-graphdisplay">', f'{items}<li id="nav-li-graphdisplay">'),
        ("</nav>", '</nav>\n<main><h1 class="sr-only">History</h1>'),
        ('<div id="regressions-body">', f'{_REGRESSIONS}<div id="regressions-body">'),
        ('<input id="range"', '<input id="range" aria-label="commits"'),
        ("<!-- A modal dialog", "</main>\n<!-- A modal dialog"),
    ):
        if page.count(text) != 1:
            raise UnknownPage(f"asv's index.html does not have exactly one {text}")
        page = page.replace(text, replacement)
    shutil.copytree(VENDOR, html_dir / "vendor", dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git*"))
    replace_text(ours, page)
    theirs.unlink()


def _head(html_dir: Path, benchmarks: Iterable[str]) -> str:
    graphs = sorted(path.relative_to(html_dir).as_posix() for path in html_dir.glob("graphs/**/*.json"))
    shown = {name: f"graphs/summary/{name}.json" in graphs for name in benchmarks}
    groups = {name.partition(".")[0] for name in shown} - {name.partition(".")[0] for name in shown if shown[name]}
    hidden = [f'#summarygrid-display a[href="#{name}"]' for name in shown if not shown[name]]
    hidden += [f'[id="group-{group}"]' for group in sorted(groups)]
    rule = f"{', '.join(hidden)} {{ display: none; }}\n" if hidden else ""
    listed = json.dumps(graphs).replace("<", r"\u003c")
    return (
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>\n{(TEMPLATES / 'history.css').read_text()}{rule}</style>\n"
        f"<script>\nconst published = new Set({listed});\n{(TEMPLATES / 'history.js').read_text()}</script>\n"
    )


def localize(page: str, manifest: dict[str, dict[str, str]]) -> str:
    """Replace every external script and stylesheet by its copy. A second call changes nothing."""

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
    """Replace a file atomically. Characters that UTF-8 cannot encode become question marks."""
    replace_file(path, text.encode(errors="replace"))
