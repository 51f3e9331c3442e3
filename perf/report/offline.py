"""asv's site without the internet: every script and stylesheet is served by the site itself.

asv's index.html loads its libraries from three content delivery networks. The same files lie in `vendor/`, with
their hashes, sources and licences; `make_offline` copies them beside the page and points the tags at them.
"""

import json
import re
import shutil
from pathlib import Path

VENDOR = Path(__file__).parent / "vendor"

_TAG = re.compile(r"<(?:script|link)\b[^>]*>", re.IGNORECASE)
_EXTERNAL = re.compile(r"""\b(src|href)=(["'])((?:https?:)?//[^"']*)\2""", re.IGNORECASE)
# What only makes sense towards another host. Our copies are as trustworthy as the page that names them.
_CROSS_ORIGIN = re.compile(r"""\s+(?:integrity|crossorigin|referrerpolicy)=(["'])[^"']*\1""", re.IGNORECASE)
_BEFORE_TITLE = re.compile(r'[ \t]*<li id="nav-li-graphdisplay">')


class UnknownPage(ValueError):
    """asv's index.html is not the page that this module knows."""


def read_manifest() -> dict[str, dict[str, str]]:
    """URL in asv's page -> {"file", "source", "integrity"} of the copy in `vendor/`."""
    return json.loads((VENDOR / "manifest.json").read_text(encoding="utf-8"))["replaces"]


def make_offline(html_dir: Path) -> None:
    """Copy the vendored files into a published site and use them in its index.html, once. Raises `UnknownPage`."""
    index = html_dir / "index.html"
    asvs = index.read_text(encoding="utf-8")
    page = localize(asvs, read_manifest())
    if page != asvs:
        shutil.copytree(VENDOR, html_dir / "vendor", dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git*"))
        replace_text(index, page)


def localize(page: str, manifest: dict[str, dict[str, str]]) -> str:
    """The page with every external script and stylesheet replaced by its copy. Doing it twice changes nothing."""

    def local(tag: re.Match[str]) -> str:
        external = _EXTERNAL.search(tag[0])
        if external is None:
            return tag[0]
        attribute, _, url = external.groups()
        if url not in manifest:
            raise UnknownPage(f"asv's index.html loads {url}, which perf/report/vendor/manifest.json does not know")
        own = f'{attribute}="vendor/{manifest[url]["file"]}"'
        return _CROSS_ORIGIN.sub("", tag[0].replace(external[0], own))

    return _TAG.sub(local, page)


def add_link(html_dir: Path, *, name: str, href: str, label: str) -> None:
    """Put a link into the navigation bar of asv's index.html, once. Raises `UnknownPage`."""
    index = html_dir / "index.html"
    page = index.read_text(encoding="utf-8")
    item = f'<li id="nav-li-{name}"><a href="{href}">{label}</a></li>'
    if item in page:
        return
    page, count = _BEFORE_TITLE.subn(lambda before: f"        {item}\n{before[0]}", page)
    if count != 1:
        raise UnknownPage("asv's index.html has no navigation bar of the known shape")
    replace_text(index, page)


def replace_text(path: Path, text: str) -> None:
    """Write aside, then rename: a reader never sees half a page. What has no place in UTF-8 becomes a question mark."""
    aside = path.with_name(path.name + ".tmp")
    aside.write_text(text, encoding="utf-8", errors="replace")
    aside.replace(path)
