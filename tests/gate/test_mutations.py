"""The list of mutations fits the code, and the score counts what the gate found."""

import ast
import json
from pathlib import Path
from typing import Any

import click
import pytest

from perf.gate import mutation_score, report
from perf.gate.checkouts import exported, working_tree
from perf.gate.evidence import Arm
from perf.gate.judge import judge
from perf.gate.mutation_score import Attempt, is_spared, selected_rows, table, verdict_of
from perf.gate.mutations import Mutation, mutations, scores_by_kind
from perf.gate.unreached import Change
from perf.harness.reach import ReachMap
from perf.harness.sources import Sources
from tests.gate.made_evidence import evidence, rows
from tests.throwaway import ROOT

LIST = mutations()


def test_the_list_has_thirty_slow_downs_of_ten_kinds() -> None:
    assert sum(one.wanted != "BROKEN" for one in LIST) >= 30
    assert len({one.kind for one in LIST}) >= 10
    assert len({(one.kind, one.name) for one in LIST}) == len(LIST)


@pytest.mark.parametrize("mutation", LIST, ids=lambda one: f"{one.kind}: {one.name}")
def test_each_edits_the_code_of_today_and_has_a_row(mutation: Mutation, tmp_path: Path) -> None:
    file = tmp_path / mutation.file
    file.parent.mkdir(parents=True)
    before = (ROOT / mutation.file).read_text(encoding="utf-8")
    file.write_text(before, encoding="utf-8")
    mutation.plant(tmp_path)
    after = file.read_text(encoding="utf-8")
    assert ast.dump(ast.parse(after)) != ast.dump(ast.parse(before))
    judged = [row for row in selected_rows(mutation.row) if not row.is_control]
    assert len(judged) <= 12, [row.case.key for row in judged]


def test_a_text_that_is_gone_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text("a\na\n")
    for old, count in (("b", 0), ("a", 2)):
        with pytest.raises(click.ClickException, match=f"stands {count} times in file.py"):
            Mutation("kind", "name", "file.py", old, "c", "row").plant(tmp_path)


def test_one_that_a_commit_cannot_have_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "RECORDS", tmp_path)
    monkeypatch.setattr(mutation_score, "selected_rows", lambda pattern: [])

    def attempt(arm: Arm, mutation: Mutation, *more: Any) -> tuple[Attempt, dict[str, Any]]:
        if mutation is LIST[0]:
            raise click.ClickException("the text stands 0 times in file.py")
        return Attempt(mutation, mutation.wanted, 0.1, "", 3.0), {}

    monkeypatch.setattr(mutation_score, "_attempt", attempt)
    assert mutation_score.score(Arm("a" * 40, "A commit"), LIST[:3], budget_s=1.0)
    (kept,) = tmp_path.glob("*/mutations/*.json")
    words = [one["word"] for one in json.loads(kept.read_text())["attempts"]]
    assert words == ["", LIST[1].wanted, LIST[2].wanted]
    assert "the text stands 0 times" in capsys.readouterr().out


def test_a_mutation_whose_row_the_map_leaves_out_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    slower = next(one for one in LIST if one.file.endswith("hopper_tables.py"))
    of_today = working_tree()
    sources = Sources(ROOT / "cs336_systems")
    row, known = evidence("row"), ReachMap([], {})
    with exported(of_today, of_today) as places:
        slower.plant(places[1])
        change = Change.between(of_today, of_today, places)
    assert not is_spared(change, [row], known), "a map that lacks a row spares none"
    for needs, spared in (["cross_entropy_kernel:"], True), (["attention.hopper_tables:"], False):
        known.entries = {row.case.key: [sources.digests(needs)]}
        assert is_spared(change, [row], known) == spared
    monkeypatch.setattr(mutation_score, "is_spared", lambda *of: True)
    attempt, _ = mutation_score._attempt(of_today, slower, [row], 1.0)
    assert not attempt.is_found


def test_what_has_no_verdict_is_not_counted() -> None:
    of = [("copy", "SLOWER", True), ("copy", "SAME", False), ("copy", "", False), ("leak", "LARGER", True)]
    assert [(kind, rate.hits, rate.of) for kind, rate in scores_by_kind(of)] == [
        ("copy", 1, 2),
        ("leak", 1, 1),
        ("all", 2, 3),
    ]
    larger = Attempt(LIST[0], "LARGER", 0.5, "", 3.0)
    assert not larger.is_found, "a tile table wants SLOWER"
    assert "+50.0 %" in table([larger])


def test_the_wanted_verdict_counts_whichever_row_of_a_mutation_gets_it() -> None:
    slower = next(one for one in LIST if one.wanted == "SLOWER")
    for evidence_of_both in ([*rows(), evidence("slow", 0.05)], [evidence("slow", 0.05), *rows()]):
        verdict = verdict_of(slower, judge(evidence_of_both))
        assert verdict is not None and (verdict.key, verdict.word) == (evidence("slow", 0.05).case.key, "SLOWER")
    missed, nothing = verdict_of(slower, judge(rows())), verdict_of(slower, judge([]))
    assert missed is not None and missed.word == "SAME" and nothing is None
