"""perf.yml from a push to the published site, with real git, real asv, and a machine that breaks off."""

import gzip
import json
import sys

import pytest

from tests.workflows.project import HOSTILE, NIGHT, PUSH, Project, measure, results, show, small_project, store_by_hand
from tests.workflows.running import Run

pytestmark = pytest.mark.slow


GREEN_WITH_NOTHING_NEW = {"measure": "success", "store": "skipped", "issue": "skipped", "site": "skipped"}


def measured(project, commit):
    """Row -> how many of its cells have a number, of the results on main."""
    project.pull()
    paths = list((project.checkout / "perf" / "results").glob(f"*/{commit[:8]}-*.json"))
    rows = json.loads(paths[0].read_text())["results"] if paths else {}
    return {name: sum(isinstance(value, float) and value > 0 for value in row[0]) for name, row in rows.items()}


def test_from_a_push_to_the_published_site(tmp_path):
    """Real asv."""
    project = Project(tmp_path, sys.executable)
    first = project.commit("\n".join(HOSTILE), code=True)  # got no run: let GitHub have dropped it
    second = project.commit("$(touch pwned) `touch pwned`", code=True)
    project.commit("No code: nothing to measure")

    push = measure(project)
    assert results(push) == {"measure": "success", "store": "success", "issue": "success", "site": "success"}, show(
        push
    )
    night = [step for step in push.jobs["measure"].steps if step.outcome == "skipped"]
    assert [step.name for step in night] == [
        "Gate what has changed since the last gate",
        "Put the gate itself to the test, on another eighth of its rows every night",
        "Measure every GPU case of the newest commit",
    ]
    assert push.jobs["issue"]["Check and open"].output == "No gate was run.\n"
    assert project.github.called()[:5] == [
        "pip install --quiet --editable .[dev]",
        "python -c import torch; torch.cuda.init()",
        "python -m perf machine",
        "python -m perf doctor",
        "pytest",
    ]
    for commit in (first, second):
        assert measured(project, commit) == {"smoke.SmokeAttention.track_time": 1}
    the_commit_says_whose_the_results_are_and_holds_nothing_else(project, (first, second))
    the_site_holds_the_results(project, (first, second))

    again = measure(project)
    assert results(again) == {"measure": "success", "store": "skipped", "issue": "skipped", "site": "skipped"}, show(
        again
    )

    project.assert_nothing_ran()


def the_commit_says_whose_the_results_are_and_holds_nothing_else(project, commits):
    log = project.github.git("log", "-1", "--format=%an%n%B", "main", cwd=project.github.origin)
    assert log.startswith("github-actions[bot]\nResults of cpu-")  # as the records call this machine
    assert "throw-away: 2 commits\n" in log
    assert all(commit[:8] in log for commit in commits)
    assert "https://github.com/owner/repository/actions/runs/1" in log
    changed = project.github.git("diff", "--name-only", "main~", "main", cwd=project.github.origin).splitlines()
    assert len(changed) == 6  # of two commits results and records, the machine, the benchmarks
    assert all(name.startswith(("perf/results/", "perf/records/")) for name in changed)


def the_site_holds_the_results(project, commits):
    site = project.github.artifacts / "site"
    assert set(commits) <= set(json.loads((site / "index.json").read_text())["revision_to_hash"].values())
    graphs = (site / "graphs").rglob("smoke.SmokeAttention.track_time.json")
    assert 2 in [len(json.loads(path.read_text())) for path in graphs]


@pytest.fixture
def small(tmp_path):
    return small_project(tmp_path)


def write(project, *, exit_status=0, results='{"commit_hash": "%s", "results": {}}'):
    """asv writes the results of the first commit it was asked for, and ends."""
    project.github.records(
        "asv",
        f"""
[ "$1" = run ] || {{ mkdir -p .asv/html; touch .asv/html/index.html; exit 0; }}
commit=$(head -n 1 "${{4#HASHFILE:}}")
mkdir -p perf/results/throw-away
printf '{results}' "$commit" > "perf/results/throw-away/${{commit:0:8}}-linked-py3.11.json"
exit {exit_status}""",
    )


def test_a_red_test_measures_nothing_and_is_red(small):
    small.github.records("pytest", "exit 1")
    run = measure(small)
    assert results(run) == {"measure": "failure", "store": "skipped", "issue": "skipped", "site": "skipped"}, show(run)
    assert not [line for line in small.github.called() if line.startswith("asv")]


def test_a_machine_without_its_gpu_measures_nothing_and_is_red(small):
    small.github.stub("python", "#!/bin/bash\nexit 1\n")
    run = measure(small)
    assert run.jobs["measure"]["Name the machine; no GPU, no run"].outcome == "failure"
    assert "store" not in [name for name, job in run.jobs.items() if job.result == "success"]


def test_a_set_that_cannot_be_read_measures_nothing_and_is_red(small):
    """An empty pattern would be every benchmark there is."""
    python = (small.github.stubs / "python").read_text()
    small.github.stub("python", python.replace('case "$*" in', '[[ "$*" != *select* ]] || exit 1\ncase "$*" in'))
    assert measure(small).jobs["measure"].result == "failure"
    assert not [line for line in small.github.called() if line.startswith("asv")]


def test_a_failed_case_is_stored_and_red(small):
    write(small, exit_status=2)
    run = measure(small)
    assert results(run) == {"measure": "failure", "store": "success", "issue": "success", "site": "success"}, show(run)
    assert len(small.files_on_main()) == 1


def test_a_failed_case_does_not_cost_the_night_its_full_run(small):
    write(small, exit_status=2)
    measure(small, NIGHT)
    assert len([line for line in small.github.called() if line.startswith("asv run")]) == 2


def test_results_of_a_run_that_was_killed_are_stored_by_the_next(small):
    """The next run's checkout leaves them where they are: `clean: false`."""
    left = (
        small.github.folder / "self-hosted" / "work" / "perf" / "results" / "throw-away" / "01234567-linked-py3.11.json"
    )
    small.github.records("asv", "kill -9 $PPID")
    measure(small)
    left.parent.mkdir(parents=True)
    left.write_text("{}")
    small.github.records("asv")
    run = measure(small)
    assert run.jobs["store"].result == "success", show(run)
    assert small.files_on_main() == ["perf/results/throw-away/01234567-linked-py3.11.json"]


def test_a_run_that_waited_measures_main_as_it_is_by_then(small):
    waited = small.git("rev-parse", "HEAD")
    newest = small.commit("More code, meanwhile", code=True)
    small.github.records("asv", f'[ "$1" != run ] || cat "${{4#HASHFILE:}}" >> "{small.github.stubs}/called.txt"')
    measure(small, PUSH | {"github.sha": waited})
    assert small.github.called()[-2:] == [newest, waited]


def test_a_file_that_was_cut_in_half_is_left_out_and_named(small):
    write(small, results='{"commit_hash": "%.3s')
    run = measure(small)
    assert run.jobs["store"].result == "skipped"
    assert "is cut in half" in run.jobs["measure"]["Collect what is finished"].output


@pytest.fixture(scope="module")
def refusing(tmp_path_factory):
    """One for all tests in which nothing may reach main, which they check."""
    project = Project(tmp_path_factory.mktemp("refusing") / "project", sys.executable, suite=False)
    project.commit("Some code", code=True)
    return project


def stored(project, name, content, base=None):
    """The store job's step with one file of an attacker's."""
    return store_by_hand(project, {name: content}, base).jobs["store"]["Check, commit, push"]


BOMB = gzip.compress(b'{"samples": "' + b"x" * 2**27 + b'"}')  # good but for its size

TIME = "20261101T020304Z"
REFUSED = {
    "code": ("perf/__main__.py", b"print()", "is no file of results or records"),
    "a workflow": (".github/workflows/perf.yml", b"{}", "is no file of results or records"),
    "a way out": ("perf/results/throw-away/..json", b"{}", "is no file of results or records"),
    "a name with shell in it": ("perf/results/$(touch pwned)/machine.json", b"{}", "is no file of results or records"),
    "no JSON": ("perf/results/throw-away/machine.json", b"<script>", "is cut in half, or not what its name says"),
    "deep JSON": ("perf/results/throw-away/machine.json", b"[" * 100_000, "is cut in half, or not what its name says"),
    "too large": ("perf/results/throw-away/machine.json", b'"' + b"x" * 2**23 + b'"', "allowed: 4194304"),
    "no records": (f"perf/records/throw-away/{'a' * 40}.jsonl.gz", b"{}", "is cut in half, or not what its name says"),
    "a bomb": (f"perf/records/throw-away/{'a' * 40}.jsonl.gz", BOMB, "or not what its name says"),
    "a gate of another name": ("perf/records/throw-away/gate/last.json", b"{}", "is no file of results or records"),
    "another folder": (f"perf/records/throw-away/site/{TIME}.json", b"{}", "is no file of results or records"),
    "a deeper folder": (f"perf/records/throw-away/gate/x/{TIME}.json", b"{}", "is no file of results or records"),
    "a name with more": (f"perf/records/throw-away/gate/{TIME}.json\n", b"{}", "is no file of results or records"),
    "a gate in bits": (f"perf/records/throw-away/gate/{TIME}.json", b'{"version":', "is cut in half, or not what"),
    "a gate that is a list": (f"perf/records/throw-away/gate/{TIME}.json", b"[]", "is cut in half, or not what"),
    "a self-test that is a list": (f"perf/records/m/self-test/{TIME}.json", b"[{}]", "is cut in half, or not what"),
    "a large self-test": (f"perf/records/m/self-test/{TIME}.json", b"{}" + b" " * 2**22, "allowed: 4194304"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_artifact_that_is_no_results_is_refused_in_one_line(refusing, case):
    name, content, reason = REFUSED[case]
    before = refusing.main()
    step = stored(refusing, name, content)
    assert step.outcome == "failure"
    assert step.output.startswith("refused: ")
    assert reason in step.output
    assert len(step.output.splitlines()) == 1
    assert refusing.main() == before
    refusing.assert_nothing_ran()


@pytest.mark.parametrize("base", [False, "$(touch pwned)", "0" * 40, "--upload-pack=touch pwned"])
def test_an_artifact_of_no_commit_of_main_is_refused_in_one_line(refusing, base):
    step = stored(refusing, "perf/results/throw-away/machine.json", b"{}", base)
    assert step.outcome == "failure"
    assert len(step.output.splitlines()) == 1, step.output
    refusing.assert_nothing_ran()


def test_results_go_on_top_of_what_was_pushed_meanwhile(small):
    base = small.main()
    small.commit("Somebody was faster")
    step = stored(small, "perf/results/throw-away/machine.json", b'{"machine": "m"}', base)
    assert step.outcome == "success", step.output
    assert small.files_on_main() == ["perf/results/throw-away/machine.json"]
    small.pull()


@pytest.mark.parametrize("kind", ["gate", "environment", "self-test"])
def test_what_a_gate_keeps_is_stored(small, kind):
    name = f"perf/records/throw-away/{kind}/{TIME}.json"
    assert stored(small, name, b"{}").outcome == "success"
    assert small.files_on_main() == [name]


def test_other_results_of_the_same_commit_are_never_overwritten(small):
    base = small.main()
    path = small.checkout / "perf" / "results" / "throw-away" / "machine.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"of": "another machine"}')
    small.commit("Results by hand")
    step = stored(small, "perf/results/throw-away/machine.json", b'{"machine": "m"}', base)
    assert step.output == "refused: main has other results of the same commit meanwhile; merge them by hand\n"


def test_the_same_results_once_more_are_no_commit(small):
    base = small.main()
    content = b'{"machine": "m"}'
    assert stored(small, "perf/results/throw-away/machine.json", content, base).outcome == "success"
    before = small.main()
    assert stored(small, "perf/results/throw-away/machine.json", content, base).outcome == "success"
    assert small.main() == before


def test_the_tests_run_as_the_readme_says_in_a_new_environment(small):
    """tests.yml up to .ci/run and what it calls; the commands themselves are what runs this test."""
    small.github.stub("chromedriver", "#!/bin/bash\n")
    small.github.stub("python3", '#!/bin/bash\nmkdir -p "$3/bin"\necho > "$3/bin/activate"\n')
    assert Run(small.github, "tests.yml", {}).job("tests").result == "success"
    assert small.github.called() == [
        "pip install -q -e .[dev] -c constraints.txt",
        "ruff check",
        "ruff format --check -q",
        "mypy",
        "pytest",
    ]


@pytest.mark.parametrize("command", ["pip", "ruff", "mypy", "pytest"])
def test_each_of_the_checks_can_turn_the_tests_red(small, command):
    small.github.stub("chromedriver", "#!/bin/bash\n")
    small.github.stub("python3", '#!/bin/bash\nmkdir -p "$3/bin"\necho > "$3/bin/activate"\n')
    small.github.stub(command, "#!/bin/bash\nexit 1\n")
    assert Run(small.github, "tests.yml", {}).job("tests").result == "failure"
