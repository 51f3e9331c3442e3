"""The issue for what became worse on main: what it says, and all that is refused on the way."""

import html
import json
import re
import subprocess
import sys

import pytest

from tests.workflows.project import HOSTILE, Project, store_by_hand
from tests.workflows.running import ROOT, Run
from tests.workflows.test_gate import report

pytestmark = pytest.mark.slow

KEPT = "perf/records/nvidia-h200/gate/20261101T020304Z.json"
LISTING = "issues?state=open&per_page=100"
STEP = "Check and open"


class Main(Project):
    """A project with two commits of main, whose gate has kept a report."""

    def __init__(self, folder):
        super().__init__(folder, sys.executable)
        self.base = self.commit("Before", code=True)
        self.head = self.commit("\n".join(HOSTILE), code=True)
        self.branch = self.git("commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", "Of a branch")
        self.git("push", "-q", "origin", f"{self.branch}:refs/heads/branch")
        self.github.answer("GET", LISTING, json=[[]])
        self.github.answer("POST", "issues", json={})
        self.github.answer("PATCH", "issues/12", json={})

    def report(self, *rows, contaminated="", **other):
        document = report(self.base, self.head)
        verdicts = [document["judgement"]["verdicts"][0] | row for row in rows]
        return document | {"judgement": {"verdicts": verdicts, "contaminated": contaminated}} | other

    def issue(self, document, name=KEPT, *, stored="success"):
        """The issue job after a store job that ended so; the file is a report, or bytes."""
        content = document if isinstance(document, bytes) else json.dumps(document).encode()
        run = store_by_hand(self, {name: content})
        run.jobs["store"].result = stored
        return run.job("issue")

    def written(self):
        return [call for call in self.github.asked() if call["method"] != "GET"]


@pytest.fixture
def main(tmp_path):
    return Main(tmp_path)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    """One for all tests in which no issue may be written, which they check."""
    return Main(tmp_path_factory.mktemp("quiet") / "project")


MEMORY = {"quantity": "peak_memory", "word": "LARGER", "base": 2.0**20, "head": 2.0**21, "change": 1.0, "low": 1.0}
BROKEN = {"word": "BROKEN", "base": 1e-4, "head": None, "change": None, "low": None, "high": None, "reason": "wrong"}


def test_what_became_worse_is_an_issue_with_its_rows_its_commits_and_what_to_do(main):
    job = main.issue(main.report({}, {"key": "x"}, {"key": "y"}, {"word": "SAME", "key": "z"}))
    assert job.result == "success", job[STEP].output
    assert job[STEP].output == "An issue was opened.\n"
    (call,) = main.written()
    base, head = main.base, main.head
    assert (call["method"], call["address"]) == ("POST", "repos/owner/repository/issues")
    assert call["sent"]["title"] == f"Slower since {base[:8]}: 3 rows ({base[:8]}..{head[:8]})"
    body = call["sent"]["body"]
    assert body.splitlines()[0] == f"<!-- perf step {base}..{head} -->"
    assert f"({'https://github.com/owner/repository/compare'}/{base}...{head})" in body
    assert "[This run](https://github.com/owner/repository/actions/runs/1)" in body
    assert f"`python -m perf gate {base} {head} --set pr --no-tests`" in body
    assert f'`python -m perf accept {KEPT} --reason "..."`' in body
    text = html.unescape(body)
    row = "| SLOWER | <code>attention.FlashAttention.track_time(8192, 64, 'bfloat16', 'forward', 'triton')</code> | "
    assert f"{row}100 µs | 110 µs | +10.00 % (+9.00 .. +11.00) |" in text
    assert "- Device: <code>NVIDIA H200, driver 580" in text
    assert "3 slower, 1 same" in text


TITLES = {
    "larger": ([MEMORY], "Larger since {}: 1 row"),
    "broken": ([BROKEN], "Broken since {}: 1 row"),
    "of several kinds": ([{}, MEMORY, BROKEN], "Worse since {}: 3 rows"),
    "beside what was accepted": ([{"accepted": "It is exact now"}, MEMORY], "Larger since {}: 1 row"),
}


@pytest.mark.parametrize("case", TITLES)
def test_the_title_counts_what_is_worse(main, case):
    rows, title = TITLES[case]
    assert main.issue(main.report(*rows)).result == "success"
    assert main.written()[0]["sent"]["title"].startswith(title.format(main.base[:8]) + " (")


def test_beside_controls_that_moved_bytes_are_believed_and_times_are_not(main):
    assert main.issue(main.report({}, MEMORY, contaminated="copy moved by 4 %")).result == "success"
    (call,) = main.written()
    assert call["sent"]["title"].startswith("Larger since ")
    assert "| SLOWER |" not in call["sent"]["body"]


QUIET = {
    "nothing worse": ([{"word": "SAME"}, {"word": "FASTER"}, {"word": "AMBIGUOUS"}, {"word": "NEW"}], ""),
    "no rows": ([], ""),
    "all accepted": ([{"accepted": "It is exact now"}, MEMORY | {"accepted": "For the cache"}], ""),
    "controls that moved": ([{}], "copy moved by 4 %"),
}


@pytest.mark.parametrize("case", QUIET)
def test_what_is_not_worse_accepted_or_not_believed_is_no_issue(quiet, case):
    rows, contaminated = QUIET[case]
    job = quiet.issue(quiet.report(*rows, contaminated=contaminated))
    assert job.result == "success"
    assert job[STEP].output.startswith("Nothing is worse in ")
    assert not quiet.written()


@pytest.mark.parametrize("stored", ["failure", "skipped"])
def test_there_is_no_issue_for_what_is_not_on_main(quiet, stored):
    assert quiet.issue(quiet.report({}), stored=stored).result == "skipped"


def test_the_open_issue_of_the_same_step_is_updated_and_no_other(main):
    assert main.issue(main.report({})).result == "success"
    body = main.written()[0]["sent"]["body"]
    bot = {"login": "github-actions[bot]"}
    theirs = {"number": 10, "user": {"login": "somebody"}, "body": body}
    other = {"number": 11, "user": bot, "body": body.replace(main.base, "f" * 40)}
    empty = {"number": 9, "user": bot, "body": None}
    same = {"number": 12, "user": bot, "body": body}

    main.github.answer("GET", LISTING, json=[[theirs, other], [empty]])
    main.issue(main.report({}))
    main.github.answer("GET", LISTING, json=[[theirs, other], [empty, same]])
    job = main.issue(main.report({}, MEMORY))
    assert job[STEP].output == "Issue 12 is up to date.\n"
    assert [(call["method"], call["address"].rpartition("/")[2]) for call in main.written()] == [
        ("POST", "issues"),
        ("POST", "issues"),
        ("PATCH", "12"),
    ]
    assert main.written()[-1]["sent"]["title"].startswith("Worse since ")


def test_hostile_texts_are_shown_and_do_nothing(main):
    everywhere = "\n".join([*HOSTILE, "fixes #12", "</code></details>", "| a | b |", "www.evil.example", "<!-- x -->"])
    rows = [{"key": everywhere}, {"key": "y", "reason": everywhere}, {"key": "z", "accepted": everywhere}]
    other = {"device": {"name": everywhere, "driver": everywhere}, "software": {everywhere: everywhere}}
    job = main.issue(main.report(*rows, tests=everywhere, command=everywhere, contaminated="", **other))
    assert job.result == "success", job[STEP].output
    assert job[STEP].output == "An issue was opened.\n"
    body = main.written()[0]["sent"]["body"]
    assert not [bad for bad in ("<img", "[x](", "</code></details>", "| a | b |") if bad in body]
    assert body.count("<!--") == 1
    assert not re.search(r"@everyone|(?<!&)#12\b|www\.evil", body)
    assert "@everyone" not in html.unescape(body), "GitHub looks for mentions in what the references stand for"
    assert body.count("https://") == 2, "the commits and the run"
    assert "touch pwned" in html.unescape(body), "the text itself is there"
    main.assert_nothing_ran()


def changed(document, *path, to):
    inner = document
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = to
    return document


def without(document, name):
    return {key: value for key, value in document.items() if key != name}


REFUSED = {
    "another schema": (lambda main: changed(main.report({}), "judgement", to=[]), "report.judgement breaks its type"),
    "a word of its own": (lambda main: main.report({"word": "$(touch pwned)"}), "word breaks its enum"),
    "a number without end": (lambda main: main.report({"head": 10**400}), "head breaks its maximum"),
    "no number": (lambda main: main.report({"change": float("nan")}), "change breaks its m"),
    "a commit by name": (lambda main: changed(main.report({}), "head", "commit", to="main"), "commit breaks its pat"),
    "a commit of no one's": (lambda main: changed(main.report({}), "base", "commit", to="f" * 40), "is no commit of"),
    "a commit of a branch": (lambda main: changed(main.report({}), "head", "commit", to=main.branch), "before HEAD"),
    "commits in the wrong order": (
        lambda main: main.report({}, base={"commit": main.head}, head={"commit": main.base}),
        "is no commit of main before",
    ),
    "half a row": (lambda main: changed(main.report({}), "judgement", "verdicts", 0, to=HALF), "is not whole"),
    "half a report": (lambda main: without(main.report({}), "seconds"), "is not whole"),
}
HALF = {"key": "x", "quantity": "time", "word": "SLOWER"}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_report_of_mains_is_refused_in_one_line(quiet, case):
    make, reason = REFUSED[case]
    job = quiet.issue(make(quiet))
    assert job.result == "failure"
    assert job[STEP].output.startswith("refused: ")
    assert reason in job[STEP].output
    assert len(job[STEP].output.splitlines()) == 1, job[STEP].output
    assert job[STEP].output.isascii()
    assert not quiet.written()
    quiet.assert_nothing_ran()


def open_issue(project, folder):
    """The step of the job alone, without what `store` has refused before."""
    run = Run(project.github, "perf.yml", {})
    (step,) = (step for step in run.workflow["jobs"]["issue"]["steps"] if step.get("name") == STEP)
    environment = project.github.environment() | {name: run.text(value) for name, value in step["env"].items()}
    script = ROOT / ".github" / "scripts" / "open_issue.py"
    command = [sys.executable, "-S", script, folder]  # no package but Python's own
    return subprocess.run(command, cwd=project.checkout, env=environment, capture_output=True, text=True, check=False)


ALONE = {
    "another name": ({"perf/records/m/gate/last.json": b"{}"}, "is no file of results or records"),
    "a large one": ({KEPT: b"{}" + b" " * 2**22}, "allowed: 4194304"),
    "one cut in half": ({KEPT: b"{"}, "is cut in half"),
    "many": ({KEPT.replace("020304", f"{at:06}"): b"{}" for at in range(6)}, "6 reports of gates were given; allowed"),
}


@pytest.mark.parametrize("case", ALONE)
def test_the_job_itself_refuses_what_is_no_kept_report(quiet, tmp_path, case):
    files, reason = ALONE[case]
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    done = open_issue(quiet, tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("refused: ")
    assert reason in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not quiet.written()


def test_it_runs_without_any_package_and_does_nothing_where_no_gate_was_run(quiet, tmp_path):
    done = open_issue(quiet, tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("No gate was run.\n", "", 0)
