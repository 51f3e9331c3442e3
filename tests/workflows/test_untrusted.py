"""untrusted.py: what Markdown keeps and loses, and which reports are none."""

import html
import json
import random
import re
import sys
from urllib.parse import urljoin

import pytest
from markdown_it import MarkdownIt

from perf.gate import comment as gate
from perf.gate import report as report_file
from tests.gate import reports as made
from tests.workflows.scripts import ROOT, SCRIPTS, report
from tests.workflows.scripts import changed as replaced

sys.path.insert(0, str(SCRIPTS))
try:
    import github
    import untrusted
finally:
    sys.path.remove(str(SCRIPTS))

LOST = {
    "a mention": ("@octocat", "@octocat"),
    "a team": ("@github/security", "@github/security"),
    "a mention by reference": ("&#64;octocat", "@octocat"),
    "a mention by a padded reference": ("&#0064;octocat", "@octocat"),
    "a mention by a hexadecimal reference": ("&#x40;octocat", "@octocat"),
    "a mention by name": ("&commat;octocat", "@octocat"),
    "another pull request": ("fixes #12", "#12"),
    "another by reference": ("fixes &#35;12", "#12"),
    "another with a digit by reference": ("fixes #&#49;2", "#12"),
    "another repository's": ("octocat/hello#12", "#12"),
    "another the old way": ("GH-12", "GH-12"),
    "another the old way by reference": ("gh&#45;12", "gh-12"),
    "a picture": ("![x](https://evil.example/x.png)", "!["),
    "a picture by tag": ("<img src=https://evil.example>", "<img"),
    "a link": ("[x](https://evil.example)", "https:"),
    "a link to a look-alike": ("[x](https://github.com.evil.example/owner/repository/)", "https:"),
    "a link to another repository": ("[x](https://github.com/owner/repository2/)", "https:"),
    "a bare link": ("see https://evil.example", "https:"),
    "a bare link in capitals": ("HTTPS://evil.example", "HTTPS:"),
    "a bare name": ("www.evil.example", "www."),
    "a link of this host": ("[x](/settings)", "]("),
    "a link in brackets": ("[x](<https://evil.example>)", "]("),
    "a link after a word": ("_https://evil.example/x", "https:"),
    "a link that climbs out": ("[x](https://github.com/owner/repository/../../evil/x)", "]("),
    "a link that climbs out by references": ("[x](https://github.com/owner/repository/%2E%2e/%2e./evil)", "]("),
    "a link defined in a list": ("[c]\n\n- [c]: //evil", "]:"),
    "a link defined with a bracket": (r"[a\]b]: //evil", "]:"),
    "a link defined over two lines": ("[a\nb]: //evil", "]:"),
    "a link around one of ours": ("[a [b](https://github.com/owner/repository/x)](//evil)", ")]("),
    "a link defined apart": ("[x]\n\n[x]: /settings", "]:"),
    "a form": ("<form action=x><input></form>", "<form"),
    "a tag with attributes": ('<details onclick="x">', "<details on"),
    "a hidden comment": ("<!-- perf gate -->", "<!--"),
    "text from right to left": ("a\u202eb", "\u202e"),
    "text from right to left by reference": ("a&#8238;b", "\u202e"),
    "a bell": ("a\x07b&#7;c", "\x07"),
}


@pytest.mark.parametrize("case", LOST)
def test_a_comment_loses_what_does_something(case):
    text, active = LOST[case]
    written = untrusted.harmless(text, "owner/repository")
    assert active not in written
    if active[0] in "@#gG" or not active.isprintable():  # GitHub looks for these in what the references stand for
        assert active not in html.unescape(written)


FRAGMENTS = [
    *("[", "]", "(", ")", "<", ">", ":", "!", "\\", "`", "_", "*", "|", "#", "x", "&", "&#91;", "&lt;"),
    *(" ", "\t", "\n", "\n\n", "\n- ", "\n> ", "\n    ", "[x]", "[x]:", "](", "![", "//evil.example", "javascript:"),
    *("https://evil.example", "http:", "www.evil.example", "a@evil.example", "mailto:a@b.c", "../../evil", "%2e%2e/"),
    *("https://github.com/owner/repository/", "[x](https://github.com/owner/repository/a)"),
    *("<details>", "</details>", "<code>", "<br>", "<a href=x>", "<img src=x>"),
]


@pytest.mark.parametrize("seed", range(5))
def test_no_markdown_of_any_kind_leads_elsewhere(seed):
    drawn = random.Random(seed)
    for _ in range(400):
        leads_nowhere("".join(drawn.choices(FRAGMENTS, k=drawn.randint(2, 14))))


def leads_nowhere(text):
    """Nothing in it, as a parser of GitHub's Markdown takes it, is a picture or a link out of the repository."""
    parser = MarkdownIt("gfm-like", {"html": True})
    parser.linkify.set({"fuzzy_link": False, "fuzzy_ip": False}).add("//", None)  # GitHub takes neither for a link
    tokens = parser.parse(untrusted.harmless(text, "owner/repository"))
    for token in [inner for one in tokens for inner in (one, *(one.children or []))]:
        assert token.type != "image"
        if token.type == "link_open":
            address = urljoin("https://github.com/owner/repository/pull/1", token.attrs["href"])
            assert address.startswith("https://github.com/owner/repository/"), text
        if token.type in ("html_inline", "html_block"):
            tags = re.findall(r"<[^>]*>?", token.content)
            assert all(re.fullmatch(rf"(?i)</?({untrusted.TAGS})( open)?\s*/?>", tag) for tag in tags), text


KEPT = [
    "### ✅ perf: Nothing is worse",
    "| verdict | row |\n|---|--:|\n| SAME | `a` |",
    "<details><summary>SAME (3)</summary>\n\ntext\n\n</details>",
    "base <code>1a2b3c4d</code> Subject<br>\nhead",
    "**To do:** nothing",
    "&#95;bwd&#95;dkdv&#46; 3&#46;2 % &lt;b&gt;",
    "[history](https://github.com/owner/repository/blob/main/x.py)",
    "[commits](https://github.com/owner/repository/compare/1a2b3c4d...5e6f7a8b)",
    "- one\n- two",
]


@pytest.mark.parametrize("text", KEPT)
def test_a_comment_keeps_what_only_looks(text):
    assert untrusted.harmless(text, "owner/repository") == text


def changed(*path, to):
    return replaced(report("b" * 40, "c" * 40), *path, to=to)


WRONG = [
    [],
    "report",
    None,
    {},
    changed("base", to={}),
    changed("head", "commit", to="c" * 39),
    changed("head", "commit", to="c" * 40 + "\n"),
    changed("head", "commit", to=["c" * 40]),
    changed("judgement", "verdicts", to={}),
    changed("judgement", "verdicts", to=[{}]),
    changed("judgement", "verdicts", 0, "word", to="GREAT"),
    changed("judgement", "verdicts", 0, "change", to="0.1"),
    changed("judgement", "verdicts", 0, "change", to=True),
    changed("judgement", "verdicts", 0, "head", to=10**400),
    changed("judgement", "verdicts", 0, "low", to=float("inf")),
    changed("judgement", "verdicts", 0, "accepted", to=None),
    changed("processes", to=1.5),
    changed("judgement", "verdicts", 0, "negligible", to="1 %"),
    changed("differences", to=[["torch"]]),
    changed("spent_s", to={"samples": 1.0, "checks": "long"}),
]


def read(document):
    return untrusted.read_report(json.dumps(document), "report.json")


def test_a_good_report_is_read_and_keys_of_a_later_version_are_passed_over():
    assert read(report("b" * 40, "c" * 40)).head["commit"] == "c" * 40
    assert read(changed("judgement", "verdicts", 0, "change", to=None)).judgement.verdicts[0].change is None
    assert read(changed("more", to=[1, 2])) == read(report("b" * 40, "c" * 40))


@pytest.mark.parametrize("index", range(len(WRONG)))
def test_a_wrong_report_is_refused_in_one_line(index):
    with pytest.raises(github.RefusedError) as refused:
        read(WRONG[index])
    line = str(refused.value)
    assert line.startswith("report.json") and line.isascii() and line.isprintable() and len(line) < 500


def test_a_report_of_the_gates_own_making_is_read():
    """The form that the gate writes and the form that the comment takes go together."""
    rows = [made.verdict(word) for word in ("SLOWER", "AMBIGUOUS", "NEW")] + [made.memory("LARGER", 2.0**20, 2.0**21)]
    for own in (made.report(*rows), made.report(tests_passed=False)):
        assert report_file.to_json(untrusted.read_report(report_file.to_json(own, []), "")) == report_file.to_json(own)


def test_a_comment_of_the_gates_own_making_is_posted_as_it_is_but_calls_nobody():
    arms = {name: {"commit": name[0] * 40, "subject": "Fix (#12) by @octocat"} for name in ("base", "head")}
    text = gate.comment(made.report(made.verdict("SLOWER", reason="2 % in `_fwd` of @octocat"), **arms))
    written = untrusted.harmless(text.removeprefix(gate.MARKER), "owner/repository")
    assert gate.MARKER + written.replace("\u200b", "") == text
    assert "@octocat" not in html.unescape(written)
    assert "#12" not in html.unescape(written)


@pytest.mark.parametrize("text", ["::error::x", "a\n::set-output name=x::y", "\x1b[31m", "é", "x" * 1000])
def test_what_is_shown_in_a_log_is_one_short_line_of_ascii(text):
    line = github.shown(text)
    assert line.isascii()
    assert line.isprintable()
    assert len(line) <= 420
    assert line.startswith("'")


@pytest.mark.parametrize("path", sorted((ROOT / "perf" / "records").glob("*/gate/*.json")), ids=lambda path: path.stem)
def test_every_gate_on_file_is_one_that_the_workflows_take(path):
    assert untrusted.read_report(path.read_bytes(), path.name).base
