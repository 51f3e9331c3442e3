"""Our copies are the files that asv's page names, and its page asks nobody else."""

import base64
import hashlib
import json
import re
from pathlib import Path

import asv
import pytest

from perf.site import offline

INDEX = Path(asv.__file__).parent / "www" / "index.html"
TAGS = dict(re.findall(r'<(?:script|link)[^>]* (?:src|href)="(https://[^"]+)" integrity="([^"]+)"', INDEX.read_text()))
NOT_ON_NPM = {"https://cdnjs.cloudflare.com/ajax/libs/stupidtable/1.0.1/stupidtable.min.js"}


def integrity(path: Path, like: str) -> str:
    algorithm = like.partition("-")[0]
    return f"{algorithm}-{base64.b64encode(hashlib.new(algorithm, path.read_bytes()).digest()).decode()}"


def test_every_external_file_of_asv_has_a_copy() -> None:
    assert TAGS
    assert offline.read_manifest().keys() == TAGS.keys()


@pytest.mark.parametrize("url", sorted(TAGS.keys() - NOT_ON_NPM))
def test_our_copy_is_the_file_that_asv_names(url: str) -> None:
    assert integrity(offline.VENDOR / offline.read_manifest()[url]["file"], TAGS[url]) == TAGS[url]


def test_the_vendor_folder_holds_what_the_manifest_says_and_nothing_else() -> None:
    manifest = json.loads((offline.VENDOR / "manifest.json").read_text())
    pinned = {entry["file"]: entry["integrity"] for entry in manifest["replaces"].values()}
    pinned |= {file: entry["integrity"] for file, entry in manifest["carries"].items()}
    for file, expected in pinned.items():
        assert integrity(offline.VENDOR / file, expected) == expected, file
    there = {str(path.relative_to(offline.VENDOR)) for path in offline.VENDOR.rglob("*") if path.is_file()}
    assert there == pinned.keys() | {"manifest.json", "LICENSES.md", ".gitattributes"}


def test_what_the_stylesheet_refers_to_is_there() -> None:
    css = offline.VENDOR / "bootstrap" / "css" / "bootstrap.min.css"
    for reference in re.findall(r"url\(([^)?#]+)", css.read_text()):
        assert (css.parent / reference).is_file(), reference


def test_the_page_names_no_other_host_has_our_links_and_a_second_pass_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(INDEX.read_text())
    links = [("index.html", "Overview"), ("attention.html", "Attention")]
    summary = tmp_path / "graphs" / "summary" / "a.Measured.track_time.json"
    summary.parent.mkdir(parents=True)
    summary.write_text("[[1, 2.0]]")
    offline.adopt(tmp_path, links, ["a.Measured.track_time", "a.Never.track_time", "b.Never.track_time"])
    page = (tmp_path / "history.html").read_text()
    for tag in re.findall(r"<(?:script|link|img)\b[^>]*>", page):
        assert "//" not in tag
        assert "integrity" not in tag
        for file in re.findall(r'"(vendor/[^"]+)"', tag):
            assert (tmp_path / file).is_file()
    assert page.count('href="attention.html"') == page.count('href="index.html"') == 1
    assert (tmp_path / "vendor" / "LICENSES.md").is_file()
    assert not (tmp_path / "index.html").exists(), "that is the overview's place"

    offline.adopt(tmp_path, links, [])
    assert (tmp_path / "history.html").read_text() == page


@pytest.mark.parametrize(
    "tag",
    [
        '<script src="https://cdn.example/new.js"></script>',
        "<script defer src='//cdn.example/new.js'></script>",
        '<link rel="stylesheet"\n href="https://cdn.example/new.css">',
    ],
)
def test_an_unknown_external_file_is_named(tag: str) -> None:
    with pytest.raises(offline.UnknownPage, match=r"cdn\.example/new\..*manifest\.json does not know"):
        offline.localize(tag, offline.read_manifest())


def test_a_page_without_the_navigation_bar_is_refused(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<html></html>")
    with pytest.raises(offline.UnknownPage):
        offline.adopt(tmp_path, [("a.html", "A")], [])
