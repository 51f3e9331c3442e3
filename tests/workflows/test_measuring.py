"""perf.yml from a push to the published site, with real git, real asv, and a machine that breaks off."""

import gzip
import json
import shutil
import sys

import pytest

from tests.workflows.project import HOSTILE, Project
from tests.workflows.running import Job, Run

pytestmark = pytest.mark.slow

PUSH = {"github.event_name": "push", "inputs.full": None}
NIGHT = {"github.event_name": "schedule", "inputs.full": None}


def measure(project, context=PUSH):
    run = Run(project.github, "perf.yml", context)
    for job in ("measure", "store", "site"):
        run.job(job)
    return run


def show(run):
    return {name: [(step.name, step.outcome, step.output) for step in job.steps] for name, job in run.jobs.items()}


def results(run):
    return {name: job.result for name, job in run.jobs.items()}


def measured(project, commit):
    """Row -> how many of its cells have a number, of the results on main."""
    project.pull()
    paths = list((project.checkout / "perf" / "results").glob(f"*/{commit[:8]}-*.json"))
    rows = json.loads(paths[0].read_text())["results"] if paths else {}
    return {name: sum(isinstance(value, float) and value > 0 for value in row[0]) for name, row in rows.items()}


def test_from_a_push_to_the_published_site_and_on_to_the_night(tmp_path):
    """Real asv, twice: in one test, since it takes ten seconds."""
    project = Project(tmp_path, sys.executable)
    first = project.commit("\n".join(HOSTILE), code=True)  # got no run: let GitHub have dropped it
    second = project.commit("$(touch pwned) `touch pwned`", code=True)
    project.commit("No code: nothing to measure")

    push = measure(project)
    assert results(push) == {"measure": "success", "store": "success", "site": "success"}, show(push)
    assert push.jobs["measure"]["Measure every GPU case of the newest commit"].outcome == "skipped"
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
    assert results(again) == {"measure": "success", "store": "skipped", "site": "skipped"}, show(again)

    night = measure(project, NIGHT)
    assert results(night) == {"measure": "success", "store": "success", "site": "success"}, show(night)
    assert measured(project, second) == {"smoke.SmokeAttention.track_time": 1, "smoke.SmokeControls.track_time": 1}
    assert measured(project, first) == {"smoke.SmokeAttention.track_time": 1}
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
    """A project whose asv does in no time what the test says."""
    project = Project(tmp_path, sys.executable)
    project.commit("Some code", code=True)
    project.github.records("asv")
    python = (project.github.stubs / "python").read_text()
    # What is missed of one set is missed of the other.
    project.github.stub("python", python.replace("exec ", 'set -- "${@/gpu/history}"\nexec '))
    return project


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
    assert results(run) == {"measure": "failure", "store": "skipped", "site": "skipped"}, show(run)
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
    assert results(run) == {"measure": "failure", "store": "success", "site": "success"}, show(run)
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


def store_by_hand(project, name, content, base=None):
    """The store job with an artifact of an attacker's."""
    folder = project.github.artifacts / "results"
    shutil.rmtree(folder, ignore_errors=True)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    if base is not False:
        (folder / "base").write_text(base or project.github.git("rev-parse", "main", cwd=project.github.origin))
    run = Run(project.github, "perf.yml", PUSH)
    run.jobs["measure"] = Job("success", outputs={"changed": "true"})
    return run.job("store")["Check, commit, push"]


BOMB = gzip.compress(b'{"samples": "' + b"x" * 2**27 + b'"}')  # good but for its size

REFUSED = {
    "code": ("perf/__main__.py", b"print()", "is no file of results or records"),
    "a workflow": (".github/workflows/perf.yml", b"{}", "is no file of results or records"),
    "a way out": ("perf/results/throw-away/..json", b"{}", "is no file of results or records"),
    "a name with shell in it": ("perf/results/$(touch pwned)/machine.json", b"{}", "is no file of results or records"),
    "no JSON": ("perf/results/throw-away/machine.json", b"<script>", "is cut in half, or not what its name says"),
    "deep JSON": ("perf/results/throw-away/machine.json", b"[" * 100_000, "is cut in half, or not what its name says"),
    "too large": ("perf/results/throw-away/machine.json", b'"' + b"x" * 2**23 + b'"', "allowed: 4194304"),
    "no records": (f"perf/records/throw-away/{'a' * 40}.jsonl.gz", b"{}", "is cut in half, or not what its name says"),
    "a bomb": (
        f"perf/records/throw-away/{'a' * 40}.jsonl.gz",
        BOMB,
        "or not what its name says",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_artifact_that_is_no_results_is_refused_in_one_line(refusing, case):
    name, content, reason = REFUSED[case]
    before = refusing.github.git("rev-parse", "main", cwd=refusing.github.origin)
    step = store_by_hand(refusing, name, content)
    assert step.outcome == "failure"
    assert step.output.startswith("refused: ")
    assert reason in step.output
    assert len(step.output.splitlines()) == 1
    assert refusing.github.git("rev-parse", "main", cwd=refusing.github.origin) == before
    refusing.assert_nothing_ran()


@pytest.mark.parametrize("base", [False, "$(touch pwned)", "0" * 40, "--upload-pack=touch pwned"])
def test_an_artifact_of_no_commit_of_main_is_refused_in_one_line(refusing, base):
    step = store_by_hand(refusing, "perf/results/throw-away/machine.json", b"{}", base)
    assert step.outcome == "failure"
    assert len(step.output.splitlines()) == 1, step.output
    refusing.assert_nothing_ran()


def test_results_go_on_top_of_what_was_pushed_meanwhile(small):
    base = small.github.git("rev-parse", "main", cwd=small.github.origin)
    small.commit("Somebody was faster")
    step = store_by_hand(small, "perf/results/throw-away/machine.json", b'{"machine": "m"}', base)
    assert step.outcome == "success", step.output
    assert small.files_on_main() == ["perf/results/throw-away/machine.json"]
    small.pull()


def test_other_results_of_the_same_commit_are_never_overwritten(small):
    base = small.github.git("rev-parse", "main", cwd=small.github.origin)
    path = small.checkout / "perf" / "results" / "throw-away" / "machine.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"of": "another machine"}')
    small.commit("Results by hand")
    step = store_by_hand(small, "perf/results/throw-away/machine.json", b'{"machine": "m"}', base)
    assert step.output == "refused: main has other results of the same commit meanwhile; merge them by hand\n"


def test_the_same_results_once_more_are_no_commit(small):
    base = small.github.git("rev-parse", "main", cwd=small.github.origin)
    content = b'{"machine": "m"}'
    assert store_by_hand(small, "perf/results/throw-away/machine.json", content, base).outcome == "success"
    before = small.github.git("rev-parse", "main", cwd=small.github.origin)
    assert store_by_hand(small, "perf/results/throw-away/machine.json", content, base).outcome == "success"
    assert small.github.git("rev-parse", "main", cwd=small.github.origin) == before


def test_the_tests_run_as_the_readme_says_in_a_new_environment(small):
    """tests.yml up to .ci/run and what it calls; the commands themselves are what runs this test."""
    small.github.stub("chromedriver", "#!/bin/bash\n")
    small.github.stub("python3", '#!/bin/bash\nmkdir -p "$3/bin"\necho > "$3/bin/activate"\n')
    assert Run(small.github, "tests.yml", {}).job("tests").result == "success"
    assert small.github.called() == [
        "pip install -q -e .[dev]",
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
