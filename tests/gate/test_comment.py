"""The comment on a pull request: what it shows, and that nothing of the commits under test can write in it."""

import html
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from perf.gate.comment import MARKER, MAX_CHARACTERS, comment
from perf.gate.report import read_report
from tests.gate.reports import KEY, report, verdict

HOSTILE = (
    "<script>document.title='pwned'</script>",
    "<img src=x onerror=\"document.title='pwned'\">",
    "</code></td></table></details><h1>All is well</h1>",
    "| a | b |\n|---|---|\n| ✅ SAME | nothing |",
    "`code` **bold** [click](javascript:document.title='pwned') ![x](http://example.org/x.png)",
    "@everyone closes #1, see https://example.org and www.example.org and a@example.org",
    "-->\n\n# Heading\n\n<!--",
    "$(touch pwned) && `touch pwned` ; ::set-output name=x::y",
    "&lt;script&gt; &#60;script&#62; \u202e\u0000\x1b[31m",
)


def rendered(text: str) -> str:
    """As GitHub's Markdown does it: HTML allowed, tables, links from bare addresses."""
    return MarkdownIt("gfm-like", {"html": True, "linkify": True}).render(text)


def everywhere(text: str) -> str:
    """The comment where all that a commit can choose is `text`."""
    rows = [verdict(word, key=text, reason=text) for word in ("SLOWER", "BROKEN", "AMBIGUOUS", "SAME", "NEW")]
    arm = {"commit": text, "subject": text}
    rest = {"contaminated": text, "tests": text, "command": text, "device": {"name": text}}
    return comment(report(*rows, base=arm, head=arm, differences=((text, text),), **rest))


def test_the_worse_lies_open_and_the_rest_is_folded():
    shown = rendered(comment(report(verdict("SLOWER", reason="because"), verdict("SAME"), verdict("FASTER"))))
    opened = shown.partition("<details>")[0]
    assert "SLOWER" in opened
    assert "because" in opened
    assert "SAME" not in opened
    assert re.findall(r"<summary>(\w+)", shown) == ["FASTER", "SAME", "How"]
    assert KEY.replace("'", "&#39;") in shown or KEY in shown


def test_the_first_line_finds_it_again():
    assert comment(report()).splitlines()[0] == MARKER


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_commit_chooses_is_text_and_nothing_else(text):
    tags = re.compile(r"<[^>]*>")
    assert tags.findall(rendered(everywhere(text))) == tags.findall(rendered(everywhere("harmless")))


@pytest.mark.parametrize("text", ["@octocat", "@github/security", "fixes #12", "octocat/hello#12", "GH-12", "gh-12"])
def test_what_a_commit_chooses_calls_nobody_and_names_no_issue(text):
    """GitHub looks for these in what the references stand for."""
    assert text not in html.unescape(everywhere(text))
    assert text in html.unescape(everywhere(text)).replace("\u200b", "")


def test_of_many_rows_that_are_worse_the_first_are_shown_with_how_they_were_measured():
    text = comment(report(*[verdict("SLOWER", key=f"row({n})" * 20) for n in range(400)]))
    assert len(text) < MAX_CHARACTERS + 1000
    assert 20 < text.count("| SLOWER |") < 400 and "more are in" in text and "How this was measured" in text


def test_a_long_report_is_cut_between_rows_and_says_so():
    text = comment(report(*[verdict("SLOWER")], *[verdict("SAME", key=f"row({n})" * 20) for n in range(2000)]))
    assert len(text) < MAX_CHARACTERS + 1000
    assert "SLOWER" in text


def test_the_comment_in_the_docs_is_what_its_record_gives():
    """A real regression of ours, found again: larger tiles for a single head."""
    root = Path(__file__).parents[2]
    found = read_report(root / "perf/records/nvidia-h200/gate/20261124T142859Z.json")
    assert comment(found) == (root / "docs/comment.md").read_text(encoding="utf-8")
