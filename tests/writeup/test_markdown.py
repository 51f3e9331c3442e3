"""Text of rows stays text, in every form that the document takes."""

import re

import pytest

from perf.writeup.convert import READ, html
from perf.writeup.markdown import Markup, anchored, plain, table, tables_alone

HOSTILE = (
    "<script>alert(1)</script>",
    "![x](https://evil.example/x.png)",
    "[x](javascript:alert(1))",
    "a | b | c",
    "`code` **bold** _it_ ~~s~~ $x$",
    "line\n\n# heading\n\n```{=html}\n<b>\n```",
    '#import "@preview/x:0.1.0" #read("/etc/passwd")',
    "https://evil.example www.evil.example a@evil.example",
    "<!-- --> &lt; &#60; \\<b>",
    "| --- |\n| x |",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_one_cell_of_one_table(text, tmp_path):
    pytest.importorskip("pypandoc", reason="needs pip install -e '.[report]'")
    pytest.importorskip("typst", reason="needs pip install -e '.[report]'")
    page = html(f"# T\n\n{table([{'reason': text, 'next': 'kept'}])}", tmp_path)
    body = page.partition("<tbody>")[2].partition("</tbody>")[0]
    assert page.count("<table") == 1
    assert body.count("<td") == 2
    assert ">kept</td>" in body
    assert not [
        tag for tag in ("<script", "<img", "<a ", "<b>", "<h1", "<strong", "<code", "<em", "<del") if tag in body
    ]


def test_text_is_one_line_of_bounded_length():
    assert plain("a\n\tb\x00c") == "a b c"
    assert len(plain("word " * 200)) <= 300


def test_numbers_are_to_the_right_and_a_missing_cell_is_empty():
    made = table([{"a": "x", "b": 1.5}, {"a": "y", "c": Markup("`z`")}]).splitlines()
    assert made[1] == "| --- | ---: | --- |"
    assert [one.strip() for one in made[2].split("|")] == ["", "x", "1.5", "", ""]
    assert [one.strip() for one in made[3].split("|")] == ["", "y", "", "`z`", ""]


def test_a_formula_that_begins_with_a_digit_is_no_number():
    assert "-:" not in table([{"formula": "8P, with"}, {"formula": "16P"}])


def test_links_that_lead_nowhere_become_their_words():
    linked = "## one\n\n[here](#one), [there](#two), [rows.json](rows.json), [site](https://a.b)\n"
    assert anchored(linked) == "## one\n\n[here](#one), there, `rows.json`, [site](https://a.b)\n"


def test_only_tables_and_their_headings_are_left():
    text = "# t\n\nwords\n\n## a\n\nmore\n\n| x |\n| --- |\n| 1 |\n\n## b\n\nnone\n"
    assert tables_alone(text) == "## a\n\n| x |\n| --- |\n| 1 |\n"


def test_a_page_names_its_icon_so_that_a_browser_requests_no_other(tmp_path):
    assert re.search(
        r'<link [^>]*href="data:,"[^>]*rel="icon"|<link [^>]*rel="icon"[^>]*href="data:,"', html("# T\n", tmp_path)
    )


def test_pandoc_reads_no_html():
    assert "-raw_html" in READ
