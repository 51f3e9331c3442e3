"""Templates: values are text, claims are checked, and without sentences the tables remain."""

import re
from pathlib import Path

import click
import pandas
import pytest

from perf.studies.on_file import NotOnFile
from perf.writeup import answered, formats, templating
from perf.writeup.markdown import Markup
from perf.writeup.source import Source
from perf.writeup.templating import DoesNotHold, render, without_sentences


@pytest.fixture
def template(tmp_path, monkeypatch):
    """A function that writes one."""
    monkeypatch.setattr(templating, "FOLDER", tmp_path)
    return (tmp_path / "one.md").write_text


def test_a_value_is_text_and_a_table_is_markup(template):
    template("{{ reason }}: {{ table }}\n")
    made = render("one.md", {"reason": "<b> `x`\n# y", "table": Markup("| a |\n")})
    assert made == "\\<b\\> \\`x\\` \\# y: | a |\n\n"


def test_a_claim_that_the_rows_do_not_bear_out_is_refused(template):
    template('{% do holds("it is faster", speedup > 1) %}\nIt is faster.\n')
    assert render("one.md", {"speedup": 1.1}) == "It is faster.\n"
    with pytest.raises(DoesNotHold, match="it is faster"):
        render("one.md", {"speedup": 0.9})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ unknown }}", "template one.md: 'unknown' is undefined"),
        ("{{ gpu.unknown }}", "template one.md: 'str object' has no attribute 'unknown'"),
        ("words\n{% if %}", "template one.md, line 2: .*"),
        ("{{ 1 | unknown }}", "template one.md, line 1: No filter named 'unknown'."),
        ('{{ table("unknown") }}', r"template one.md: table\('unknown'\) was given; allowed: end-to-end, .*"),
    ],
)
def test_a_fault_of_a_template_is_one_line(template, text, message):
    template(text)
    known = answered.values(Source("none", Path(), pandas.DataFrame(), ()), lambda words, name: Markup())
    with pytest.raises(click.ClickException) as refused:
        render("one.md", known | {"gpu": "an H200"})
    assert re.fullmatch(message, str(refused.value))


def test_without_sentences_the_tables_that_have_rows_remain(template):
    def table(name):
        if name == "absent":
            raise NotOnFile(name)
        return Markup(f"| {name} |\n")

    template('{{ number }} words\n\n{{ table("absent") }}\n{{ table("there") }}\ncaption\n\n{{ picture("a") }}\n')
    made = without_sentences("one.md", {"table": table, "picture": lambda name: Markup(f"![{name}](x.png)")})
    assert made == "| there |\n\n![a](x.png)\n"
    template('{{ table("absent") }}\n')
    with pytest.raises(NotOnFile, match="no table"):
        without_sentences("one.md", {"table": table})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (formats.fixed(0.0174, 1, "ms"), "17.4 ms"),
        (formats.fixed(2.5), "2"),
        (formats.span([0.02, 0.001], 0, "%"), "0 to 2 %"),
        (formats.span([0.02, 0.0201], 0, "%"), "2 %"),
        (formats.span([7.0]), "7"),
        (formats.speedups([1.5, 0.9], 2), "0.90 to 1.50\u00d7"),
        (formats.speedups([1.0, 0.999], 2), "1.00\u00d7"),
        (formats.speedup((1.1751, 0.003)), "1.175\u00d7 ± 0.3 %"),
        (formats.step_speedup((1.107, 0.0199)), "1.107\u00d7 ± 2.0 %"),
        (formats.step_speedup((1.107, 0.062)), "1.107\u00d7 ± 6.2 % (too wide for a verdict)"),
        (formats.step_cost((0.9, 0.03), ", wide"), "11.1 % ± 3.3 %, wide"),
        (formats.scientific(4.51e-6), "4.5e-6"),
        (formats.mib(20 * 2**20), "20"),
        (formats.percent(-0.0321), "-3.2 %"),
    ],
)
def test_formats(text, shown):
    assert text == shown
