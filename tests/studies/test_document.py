"""A study's document: no run replaces what an earlier one found unless it found something itself."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from perf.studies.document import kept, write_in_parts

FAILED = {"status": "unavailable", "reason": "needs two GPUs"}


def files(folder: Path) -> dict[str, Any]:
    return {path.name: json.loads(path.read_text())["rows"] for path in folder.iterdir()}


def states(folder: Path, **of: dict[str, Any]) -> Iterator[dict[Path, dict[str, Any]]]:
    yield {folder / f"{name}.json": {"rows": [row]} for name, row in of.items()}


@pytest.mark.parametrize("row", [{"status": "ok"}, {"status": "out_of_memory", "reason": "asked for 2 GiB"}, {"n": 1}])
def test_a_row_that_says_something_replaces_what_is_on_file(tmp_path: Path, row: dict[str, Any]) -> None:
    for number in (1, 2):
        kept([row | {"number": number}, FAILED], "cpu", tmp_path / "any.json")
    assert files(tmp_path) == {"any.json": [row | {"number": 2}, FAILED]}


def test_a_document_that_cannot_replace_what_is_in_its_place_is_named_with_its_part(tmp_path: Path) -> None:
    (tmp_path / "any.json").mkdir()
    with pytest.raises(click.ClickException, match=r"any\.json cannot be written.*any\.json\.part"):
        kept([{"status": "ok"}], "cpu", tmp_path / "any.json")
    assert json.loads((tmp_path / "any.json.part").read_text())["rows"] == [{"status": "ok"}]


def test_rows_that_failed_replace_nothing_and_name_their_reasons(tmp_path: Path) -> None:
    write_in_parts(states(tmp_path, one={"status": "ok"}))
    with pytest.raises(click.ClickException, match="needs two GPUs"):
        kept([FAILED, FAILED], "cpu", tmp_path / "one.json")
    assert files(tmp_path) == {"one.json": [{"status": "ok"}]}


def test_of_several_documents_those_with_results_are_written(tmp_path: Path) -> None:
    write_in_parts(states(tmp_path, one={"status": "ok"}, other=FAILED))
    assert files(tmp_path) == {"one.json": [{"status": "ok"}]}
