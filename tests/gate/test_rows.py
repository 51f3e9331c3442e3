"""Which rows a gate measures, and on how many GPUs."""

import os
import re
from typing import Any

import pytest
from click.testing import CliRunner

from perf.commands import gate as command
from perf.gate.rows import rows
from perf.gate.simulation import PR_ROWS
from perf.harness import device, lock
from perf.selection import SETS, asv_classes
from tests.repositories import needs_checkout


def test_the_controls_of_the_devices_come_along() -> None:
    measured = rows(r"smoke\.SmokeAttention.*\(128.*'forward'")
    assert {row.case.benchmark for row in measured if row.is_control} == {"smoke.SmokeControls"}
    assert {row.case.benchmark for row in measured if not row.is_control} == {"smoke.SmokeAttention"}


def test_the_whole_set_judges_no_row_that_runs_no_project_code() -> None:
    measured = rows(SETS["gpu"])
    controls = {row.case.benchmark for row in measured if row.is_control}
    assert controls == {name for name, cls, _ in asv_classes() if cls.workload == "controls"}
    assert not [row for row in measured if row.case.workload == "controls" and not row.is_control]
    assert len({row.case.key for row in measured}) == len(measured), "each once"


def test_the_simulated_pull_request_has_as_many_rows_as_a_real_one() -> None:
    assert sum(not row.is_control for row in rows(SETS["pr"])) == PR_ROWS


def test_a_control_that_no_gate_needs_is_measured_where_it_is_selected() -> None:
    assert "controls.Clocks" not in {row.case.benchmark for row in rows(SETS["pr"])}
    assert rows("controls.Clocks") == [], "there is nothing to judge"


def test_a_row_is_selected_by_its_own_name_too() -> None:
    (key, *_) = [row.case.key for row in rows(r"smoke\.SmokeAttention\.") if not row.is_control]
    assert [row.case.key for row in rows(f"^{re.escape(key)}$") if not row.is_control] == [key]


@pytest.mark.parametrize(("gpus", "sizes"), [(None, {2, 4}), (2, {2}), (4, {4}), (1, set()), (8, set())])
def test_cases_on_several_gpus_use_all_that_the_gate_was_given(gpus: int | None, sizes: set[int]) -> None:
    measured = rows(r"data_parallel\.DataParallel|leaderboard|Leaderboard\.track_time", gpus)
    ranked = {row.case.params["world_size"] for row in measured if "world_size" in row.case.params}
    assert ranked == sizes
    assert any("Leaderboard" in row.case.benchmark for row in measured), "on one GPU as ever"


@needs_checkout
@pytest.mark.parametrize(
    ("before", "gpus", "after"), [("", 2, "0,1"), ("3,5,7", 2, "3,5"), ("3", 4, "3")], ids=["all", "some", "fewer"]
)
def test_the_first_of_the_gpus_that_are_there(
    before: str, gpus: int, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}

    def note(name: str, answer: Any) -> Any:
        seen[name] = os.environ["CUDA_VISIBLE_DEVICES"]
        return answer

    def compare(*arguments: Any, **options: Any) -> Any:
        raise SystemExit(note("measured", 0))

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
    monkeypatch.setattr(lock, "visible_gpus", lambda: note("locked", []))
    # torch would keep the number that it counts here for the tests after this one
    monkeypatch.setattr(device, "machine", lambda: note("counted", {"machine": "m", "gpu": ""}))
    monkeypatch.setattr(command, "compare", compare)
    done = CliRunner().invoke(command.command, ["HEAD", "--set", "smoke", "--gpus", str(gpus)])
    assert seen == dict.fromkeys(("locked", "counted", "measured"), after), done.output
