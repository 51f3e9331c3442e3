"""What perf.yml does every night on top: a gate of what changed, a slice of its self-test, and an issue."""

import json
import sys

import pytest

from perf.commands.missed import rows_of
from perf.selection import SETS, shard
from tests.throwaway import MACHINE, write_package
from tests.workflows.project import HOSTILE, NIGHT, PUSH, Project, measure, results, show, small_project

pytestmark = pytest.mark.slow

GATE = "Gate what has changed since the last gate"
SELF_TEST = "Put the gate itself to the test, on another eighth of its rows every night"
FULL = "Measure every GPU case of the newest commit"
TIME = "20261101T020304Z"


def test_a_night_that_finds_a_regression_tells_of_it_once(tmp_path):
    """Real asv, a real gate, a real self-test."""
    project = Project(tmp_path, sys.executable)
    base = project.commit("Before", code=True)
    write_package(project.checkout, axis="'slow'", stall_s=0.005)
    head = project.commit("\n".join(HOSTILE))
    project.github.stub("date", "#!/bin/bash\necho 008\n")  # no number to bash, which reads it as octal
    project.github.answer("GET", "issues?state=open&per_page=100", json=[[]])
    project.github.answer("POST", "issues", json={})

    night = measure(project, NIGHT)
    assert night.jobs["measure"].result == "failure", show(night)
    assert [night.jobs[name].result for name in ("store", "issue", "site")] == ["success"] * 3, show(night)
    outcomes = {step.name: step.outcome for step in night.jobs["measure"].steps}
    assert (outcomes[GATE], outcomes[SELF_TEST], outcomes[FULL]) == ("failure", "success", "success"), show(night)
    (gate,) = (name for name in project.files_on_main() if "/gate/" in name)
    (proof,) = (name for name in project.files_on_main() if "/self-test/" in name)
    project.pull()
    report = json.loads((project.checkout / gate).read_text())
    assert (report["exit_status"], report["base"]["commit"], report["head"]["commit"]) == (1, base, head)
    proven = json.loads((project.checkout / proof).read_text())
    assert {row["key"] for part in proven["parts"] for row in part["verdicts"]} == {
        "smoke.SmokeAttention(128, 64, 'float32', 'forward', 'reference')"
    }
    (call,) = project.github.asked("POST")
    assert call["sent"]["title"].startswith("Slower since ")
    assert f"`python -m perf accept {gate} --reason" in call["sent"]["body"]
    project.assert_nothing_ran()

    project.before_python('[[ "$*" != *--self-test* ]] || exit 0')  # it has been seen
    next_night = measure(project, NIGHT)
    assert results(next_night) == {"measure": "success"} | dict.fromkeys(("store", "issue", "site"), "skipped")


@pytest.fixture
def small(tmp_path):
    project = small_project(tmp_path)
    project.base = project.git("rev-parse", "HEAD")
    project.head = project.commit("More code", code=True)
    return project


def gates(project, *, status=0, proven=0):
    """The gate keeps a report and ends with `status`, its self-test with `proven`; 2 may mean that nothing was kept."""
    report = {"exit_status": status, "tests_passed": True, "judgement": {"verdicts": [], "contaminated": ""}}
    report |= {"base": {"commit": project.base}, "head": {"commit": project.head}}
    (project.github.stubs / "report.json").write_text(json.dumps(report))
    project.github.records(
        "gate",
        f"""
kind=gate status={status}
[[ "$*" != *--self-test* ]] || kind=self-test status={proven}
mkdir -p "perf/records/{MACHINE}/$kind"
cp "{project.github.stubs}/report.json" "perf/records/{MACHINE}/$kind/{TIME}.json"
exit $status""",
    )


def asked(project, name):
    return [line for line in project.github.called() if line.startswith(name)]


def test_the_gate_is_asked_for_what_is_new_and_the_self_test_for_the_rows_of_the_day(small):
    small.github.stub("date", '#!/bin/bash\n[ "$*" = +%j ] && echo 008\n')
    run = measure(small, NIGHT)
    (gate, proof) = asked(small, "gate")
    assert gate == f"gate {small.base} {small.head} --set pr --budget 10 --no-tests --keep", show(run)
    rows = shard(r"SmokeAttention.*\(128, 64, 'float32', 'forward', 'reference'\)", 1, 8)
    assert proof == f"gate --self-test -b {rows} --budget 6", show(run)


@pytest.mark.parametrize("kind", ["a push", "red tests"])
def test_there_is_neither_on_a_push_nor_beside_red_tests(small, kind):
    if kind == "red tests":
        small.github.records("pytest", "exit 1")
    measure(small, PUSH if kind == "a push" else NIGHT)
    assert not asked(small, "gate")


def test_by_hand_they_are_asked_for_with_full(small):
    measure(small, {"github.event_name": "workflow_dispatch", "inputs.full": True})
    assert len(asked(small, "gate")) == 2


@pytest.mark.parametrize(("status", "proven"), [(1, 0), (2, 0), (0, 2)])
def test_a_gate_that_is_not_content_is_red_and_costs_the_night_nothing(small, status, proven):
    gates(small, status=status, proven=proven)
    run = measure(small, NIGHT)
    assert results(run)["measure"] == "failure"
    assert len(asked(small, "gate")) == 2
    assert len(asked(small, "asv run")) == 2, "of the history, and of every GPU case"
    assert run.jobs["store"].result == "success", show(run)
    assert small.files_on_main() == [
        f"perf/records/{MACHINE}/gate/{TIME}.json",
        f"perf/records/{MACHINE}/self-test/{TIME}.json",
    ]


def test_a_failed_case_does_not_cost_the_night_its_gate(small):
    small.github.records("asv", "exit 2")
    measure(small, NIGHT)
    assert len(asked(small, "gate")) == 2


def test_where_nothing_is_new_the_night_is_green_without_a_gate(small):
    small.before_python('[[ "$*" != "-m perf missed --gate" ]] || exit 0')
    run = measure(small, NIGHT)
    assert results(run)["measure"] == "success", show(run)
    assert [line.split()[1] for line in asked(small, "gate")] == ["--self-test"]


def test_a_kept_gate_that_cannot_be_read_is_red_and_no_gate_is_run(small):
    small.before_python('[[ "$*" != "-m perf missed --gate" ]] || exit 1')
    assert measure(small, NIGHT).jobs["measure"].result == "failure"
    assert [line.split()[1] for line in asked(small, "gate")] == ["--self-test"]


def test_rows_that_cannot_be_chosen_start_no_self_test(small):
    """An empty pattern would be every row there is."""
    small.before_python('[[ "$*" != *--shard* ]] || exit 1')
    assert measure(small, NIGHT).jobs["measure"].result == "failure"
    assert not [line for line in asked(small, "gate") if "--self-test" in line]


def test_the_commit_on_main_says_what_the_night_brought(small):
    gates(small)
    run = measure(small, NIGHT)
    assert run.jobs["store"].result == "success", show(run)
    log = small.github.git("log", "-1", "--format=%B", "main", cwd=small.github.origin)
    assert log.splitlines()[0] == f"Results of {MACHINE}: 1 gate, 1 self-test"


def test_every_night_has_rows_and_eight_nights_have_them_all():
    nights = [rows_of(shard(SETS["pr"], number, 8)) for number in range(1, 9)]
    assert all(nights)
    assert {row for night in nights for row in night} == set(rows_of(SETS["pr"]))
