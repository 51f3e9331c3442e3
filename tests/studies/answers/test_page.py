"""The answers to the course show the rows beside them: every table, command and link."""

import copy
import re
from urllib.parse import unquote

import pytest
from click.testing import CliRunner

from cs336_systems.accounting.kept import block_kept_bytes, model_kept_bytes
from cs336_systems.configs import MODEL_CONFIGS
from perf.studies.answers import page
from perf.studies.answers.__main__ import main
from perf.studies.answers.attention import FRONT_TABLES
from perf.studies.answers.memory import block_parts
from perf.studies.answers.rows import by, markdown
from perf.studies.answers.tables import TABLES
from perf.studies.on_file import NotOnFile

TEXT = (page.FOLDER / "README.md").read_text()
WORDS = " ".join(TEXT.split())
FOUND = page.documents(page.FOLDER)
MEMORY = by(FOUND["memory"]["rows"], "size", "context", "precision")
BIG = MODEL_CONFIGS["2.7B"]
FILES = re.findall(r"\]\(([^)#]+)\)", TEXT)


def tables_in(path):
    return {name for kind, name in page.MARK.findall(path.read_text(encoding="utf-8")) if kind == "table"}


@pytest.mark.parametrize("path", page.readmes(page.FOLDER), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_table_and_command_is_that_of_the_rows(path):
    text = path.read_text(encoding="utf-8")
    assert page.rewritten(text, FOUND) == text, "run python -m perf.studies.answers"


def test_every_table_is_shown():
    own, *front = page.readmes(page.FOLDER)
    assert tables_in(own) == set(TABLES)
    assert [tables_in(path) for path in front] == [{name} for name in FRONT_TABLES]


def test_another_row_makes_another_table():
    changed = copy.deepcopy(FOUND)
    changed["end-to-end"]["rows"][0]["forward_s"][0] += 1.0
    assert page.rewritten(TEXT, changed) != TEXT


def test_a_mark_that_names_nothing_is_refused():
    with pytest.raises(ValueError, match="table 'nothing' was given; allowed: accumulation"):
        page.rewritten("<!-- table: nothing -->\n", FOUND)
    with pytest.raises(NotOnFile, match=r"command 'nothing' was given; allowed: .*warm-up"):
        page.rewritten("<!-- command: nothing -->\n", FOUND)


def test_only_what_is_marked_is_rewritten():
    text = "before\n\n<!-- table: dtypes -->\n| old |\n| --- |\n\nafter | x |\n"
    made = page.rewritten(text, FOUND)
    assert made.startswith("before\n\n<!-- table: dtypes -->\n| autocast |")
    assert made.endswith("|\n\nafter | x |\n")
    assert page.rewritten(made, FOUND) == made


def test_the_command_rewrites_a_readme_once_and_names_a_wrong_mark(tmp_path):
    (tmp_path / "precision.json").write_text((page.FOLDER / "precision.json").read_text())
    readme = tmp_path / "README.md"
    readme.write_text("<!-- table: dtypes -->\n")
    said = [CliRunner().invoke(main, [str(tmp_path)]).output for _ in range(2)]
    assert said == ["README.md: rewritten\n", "README.md: unchanged\n"]
    assert readme.read_text() == "<!-- table: dtypes -->\n" + TABLES["dtypes"](FOUND)
    readme.write_text("<!-- command: nothing -->\n")
    result = CliRunner().invoke(main, [str(tmp_path)])
    assert (result.exit_code, result.output) == (1, "Error: command 'nothing' was given; allowed: precision\n")


def test_two_rows_of_one_setting_are_not_taken_for_one():
    with pytest.raises(ValueError, match="two rows"):
        by([{"status": "ok", "size": "small"}] * 2, "size")


def test_columns_of_numbers_are_to_the_right():
    assert markdown([{"a": "x", "b": "-1.0 %"}]) == "| a | b |\n| --- | ---: |\n| x | -1.0 % |\n"


def test_all_was_measured_with_what_the_first_lines_say():
    assert len(page.headings(FOUND)) == 1
    (one,) = page.headings(FOUND)
    name, driver, torch, triton = one.split(", ")
    assert f"One {name} ({driver}), {torch}, {triton}, CUDA 13.0, Python 3.12.3." in WORDS
    assert {(one["software"]["cuda"], one["software"]["python"]) for one in FOUND.values()} == {("13.0", "3.12.3")}


@pytest.mark.parametrize("path", sorted(set(FILES)))
def test_what_is_linked_exists_and_pictures_are_small(path):
    file = page.FOLDER / unquote(path)
    assert file.exists()
    if file.suffix == ".png":
        assert file.stat().st_size < 60_000


def test_links_within_the_page_lead_to_headings():
    headings = {re.sub(r"[^\w -]", "", line[3:]).replace(" ", "-").lower() for line in re.findall("^## .*", TEXT, re.M)}
    assert set(re.findall(r"\]\(#([\w-]+)\)", TEXT)) <= headings


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_parts_of_a_block_are_all_that_it_keeps(precision):
    assert sum(block_parts(precision).values()) == block_kept_bytes(BIG, 4, 512, precision=precision)
    phases = {phase["name"]: phase for phase in MEMORY["2.7B", 512, precision]["step"]["phases"]}
    added = phases["forward"]["end_bytes"] - phases["forward"]["start_bytes"]
    assert added - model_kept_bytes(BIG, 4, 512, precision=precision) == 4
