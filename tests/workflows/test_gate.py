"""perf-pr.yml and perf-comment.yml: from a maintainer's start to one comment, and all that is refused on the way.

But for one test the gate is a stand-in: these are of what the workflows ask of it and do with what it leaves.
"""

import html
import io
import json
import re
import sys
import zipfile

import pytest

from perf.__main__ import main
from perf.gate import report as report_file
from tests.gate import reports as made
from tests.workflows.project import HOSTILE, Project
from tests.workflows.running import Run, load

pytestmark = pytest.mark.slow

NUMBER = "7"
FILES = ("report.json", "comment.md")

GATE = """
import json, os, subprocess, sys
if sys.argv[1:4] != ["-m", "perf", "gate"]:
    os.execv({python!r}, ["python", *sys.argv[1:]])
base, head = sys.argv[4:6]
options = dict(zip(sys.argv[6::2], sys.argv[7::2]))
print(subprocess.run(["git", "log", "-1", "--format=%B", head], capture_output=True, text=True).stdout)
with open({stubs!r} + "/called.txt", "a") as log:
    log.write(json.dumps([base, head, options]) + "\\n")
if os.path.exists({stubs!r} + "/report.json"):
    for option, name in (("--json", "report.json"), ("--markdown", "comment.md")):
        with open(options[option], "wb") as file:
            file.write(open({stubs!r} + "/" + name, "rb").read())
sys.exit({status})
"""


def report(base, head):
    """What `python -m perf gate --json` writes of one row, without samples."""
    key = "attention.FlashAttention.track_time(8192, 64, 'bfloat16', 'forward', 'triton')"
    row = made.verdict("SLOWER", key=key, base=1e-4, head=1.1e-4, change=0.1, low=0.09, high=0.11)
    arms = {"base": {"commit": base, "subject": "Before"}, "head": {"commit": head, "subject": "After"}}
    return json.loads(report_file.to_json(made.report(row, **arms)))


class PullRequest:
    """A project with a pull request of a fork's, whose texts are hostile."""

    def __init__(self, folder, *, suite=False):
        folder.mkdir(exist_ok=True)
        self.project = Project(folder, sys.executable, suite=suite)
        self.github = self.project.github
        if suite:
            (self.project.checkout / "tests").mkdir()
            (self.project.checkout / "tests" / "test_one.py").write_text("def test_one():\n    pass\n")
        self.base = self.project.commit("Where the pull request begins", code=True)
        self.project.git("checkout", "-q", "-b", "$(touch${IFS}pwned)`touch${IFS}pwned`")
        package = self.project.checkout / "cs336_systems" / "__init__.py"
        package.write_text("# another\n" if suite else "open('pwned', 'w')\n")
        self.project.git("add", "-A")
        self.project.git("commit", "-q", "-m", "\n".join(HOSTILE))
        self.commit = self.project.git("rev-parse", "HEAD")
        self.project.git("push", "-q", "origin", f"HEAD:refs/pull/{NUMBER}/head")
        self.project.git("checkout", "-q", "main")
        self.main = self.project.commit("Main goes on")
        self.github.answer("GET", f"pulls/{NUMBER}", json=self.as_github_says_it())
        if not suite:
            self.gate(status=1)
        comment = "<!-- perf gate -->\n❌ 1 row is slower\n\n| row | change |\n| --- | --- |\n"
        self.says(json.dumps(report(self.base, self.commit)), comment)

    def as_github_says_it(self, **other):
        return {"state": "open", "base": {"ref": "main"}, "head": {"sha": self.commit}} | other

    def gate(self, *, status):
        text = GATE.format(python=sys.executable, stubs=str(self.github.stubs), status=status)
        self.github.python_stub("python", text)

    def says(self, *contents):
        """The two files that the gate writes."""
        for name, content in zip(FILES, contents, strict=True):
            (self.github.stubs / name).write_text(content)

    def measure(self, **inputs):
        given = {"pull_request": NUMBER, "commit": self.commit, "set": "pr", "minutes": "10"} | inputs
        run = Run(self.github, "perf-pr.yml", {f"inputs.{name}": value for name, value in given.items()})
        run.title = run.text(load("perf-pr.yml")["run-name"])
        for job in ("check", "gate"):
            run.job(job)
        return run

    def comment(self, title=None, archive=None, **event):
        """perf-comment.yml, as GitHub starts it when perf-pr.yml has ended."""
        if archive is None:
            folder = self.github.artifacts / "gate-report"
            archive = zipped({path.name: path.read_bytes() for path in folder.glob("*")})
        path = self.github.folder / "artifact.zip"
        path.write_bytes(archive)
        artifact = {"name": "gate-report", "id": 5, "size_in_bytes": len(archive)}
        self.github.answer("GET", "actions/runs/99/artifacts", json={"artifacts": [artifact]})
        self.github.answer("GET", "actions/artifacts/5/zip", file=str(path))
        self.github.answers.setdefault(f"GET {COMMENTS}?per_page=100", {"json": [[]]})
        self.github.answers |= {f"POST {COMMENTS}": {"json": {}}, f"PATCH {COMMENT}": {"json": {}}}
        (self.github.stubs / "answers.json").write_text(json.dumps(self.github.answers))
        given = {
            "path": ".github/workflows/perf-pr.yml",
            "event": "workflow_dispatch",
            "head_branch": "main",
            "head_repository.full_name": "owner/repository",
            "id": "99",
            "display_title": title or f"gate of #{NUMBER} at {self.commit}",
            "html_url": "https://github.com/owner/repository/actions/runs/99",
        }
        table = {f"github.event.workflow_run.{name}": value for name, value in (given | event).items()}
        return Run(self.github, "perf-comment.yml", table).job("comment")


COMMENTS = f"repos/owner/repository/issues/{NUMBER}/comments"
COMMENT = "repos/owner/repository/issues/comments/1234"


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.fixture
def pull(tmp_path):
    return PullRequest(tmp_path)


@pytest.fixture(scope="module")
def refusing(tmp_path_factory):
    """One for all tests in which nothing may be written, which they check."""
    return PullRequest(tmp_path_factory.mktemp("refusing") / "project")


def posted(pull, method="POST"):
    """What was sent; nothing else may have been written anywhere."""
    written = [call for call in pull.github.asked() if call["method"] != "GET"]
    assert len(written) == 1
    assert written[0]["method"] == method
    return written[0]["sent"]["body"]


def assert_refused(pull, job, step, reason):
    """One clear line, and nothing written."""
    assert job.result == "failure"
    assert job[step].output.startswith("refused: ")
    assert len(job[step].output.splitlines()) == 1, job[step].output
    assert reason in job[step].output
    assert job[step].output.isascii()
    assert not [call for call in pull.github.asked() if call["method"] != "GET"]
    pull.project.assert_nothing_ran()


def test_the_gate_is_asked_for_the_merge_base_and_the_commit_from_a_checkout_of_main(pull):
    run = pull.measure(set="full", minutes="30")
    assert run.jobs["check"].result == "success"
    assert run.jobs["gate"].result == "failure", "exit status 1: something is slower"
    base, head, options = json.loads(pull.github.called()[-1])
    assert (base, head) == (pull.base, pull.commit)
    assert set(options) == {"--set", "--budget", "--json", "--markdown"}
    assert (options["--set"], options["--budget"]) == ("full", "30")
    in_main = pull.github.git("rev-parse", "HEAD", cwd=pull.github.folder / "self-hosted" / "work" / "main")
    assert in_main == pull.main


def test_from_a_start_to_the_comment_with_the_gate_itself(tmp_path):
    pull = PullRequest(tmp_path, suite=True)
    job = pull.measure(set="smoke", minutes="0.2").jobs["gate"]
    folder = pull.github.artifacts / "gate-report"
    document = json.loads((folder / "report.json").read_text())
    assert (document["base"]["commit"], document["head"]["commit"]) == (pull.base, pull.commit)
    assert document["tests"].startswith("1 passed")
    assert job.result == ("success" if document["exit_status"] == 0 else "failure")

    posting = pull.comment()
    assert posting.result == "success", posting["Check and post"].output
    text = html.unescape(posted(pull)).replace("\u200b", "")
    assert text.count("<!-- perf gate -->") == 1
    rows = document["judgement"]["verdicts"]  # none, where others keep the machine busy for all of the budget
    assert all(row["key"].partition("(")[0] in text for row in rows)
    assert pull.commit[:8] in text
    pull.project.assert_nothing_ran()


@pytest.mark.parametrize(("status", "result"), [(0, "success"), (1, "failure"), (2, "failure")])
def test_only_a_gate_that_judged_and_found_nothing_is_green_and_every_verdict_is_kept(pull, status, result):
    pull.gate(status=status)
    assert pull.measure().jobs["gate"].result == result
    assert {path.name for path in (pull.github.artifacts / "gate-report").glob("*")} == set(FILES)


def test_a_gate_that_crashed_leaves_nothing_and_the_comment_says_so_in_the_log(pull):
    for name in FILES:
        (pull.github.stubs / name).unlink()
    run = pull.measure()
    assert [step.outcome for step in run.jobs["gate"].steps][-2:] == ["failure", "success"]
    pull.github.answer("GET", "actions/runs/99/artifacts", json={"artifacts": []})
    pull.comment(archive=b"")
    pull.github.answer("GET", "actions/runs/99/artifacts", json={"artifacts": []})
    assert not pull.github.asked("POST")


def test_what_the_pull_request_prints_is_no_command_to_the_runner(pull):
    output = pull.measure().jobs["gate"]["Measure and judge"].output
    assert "::set-output name=changed::false" in output, "the hostile message was printed"
    stop = re.match(r"::stop-commands::([0-9a-f]{64})\n", output)[1]
    assert output.endswith(f"::{stop}::\n")
    assert output.count(stop) == 2


def test_the_code_of_the_pull_request_does_not_run_before_the_gate_runs_it(pull):
    pull.measure()
    pull.project.assert_nothing_ran()


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("field", ["pull_request", "commit"])
def test_a_hostile_input_is_refused_in_one_line_and_no_gpu_is_touched(refusing, field, text):
    run = refusing.measure(**{field: text})
    assert run.jobs["gate"].result == "skipped"
    assert_refused(refusing, run.jobs["check"], "The pull request is open and at this commit", "was given; allowed: ")


WRONG = {
    "closed": ({"state": "closed"}, "allowed: open"),
    "another branch": ({"base": {"ref": "$(touch pwned)\n::error::x"}}, "allowed: main"),
    "pushed since": ({"head": {"sha": "f" * 40}}, "read that commit, then start again"),
}


@pytest.mark.parametrize("case", WRONG)
def test_another_state_of_the_pull_request_is_refused_before_and_after(pull, case):
    pull.measure()
    other, reason = WRONG[case]
    pull.github.answer("GET", f"pulls/{NUMBER}", json=pull.as_github_says_it(**other))
    assert_refused(pull, pull.comment(), "Check and post", reason)
    run = pull.measure()
    assert run.jobs["gate"].result == "skipped"
    assert_refused(pull, run.jobs["check"], "The pull request is open and at this commit", reason)


def test_a_pull_request_that_does_not_exist_is_refused(pull):
    run = pull.measure(pull_request="8")
    assert_refused(pull, run.jobs["check"], "The pull request is open and at this commit", "HTTP 404")


def test_a_start_on_another_branch_than_main_does_nothing(pull):
    run = Run(pull.github, "perf-pr.yml", {"github.ref": "refs/heads/mine", "inputs.commit": pull.commit})
    assert [run.job("check").result, run.job("gate").result] == ["skipped", "skipped"]


def test_the_comment_is_posted_once_and_updated_from_then_on(pull):
    pull.measure()
    assert pull.comment().result == "success"
    body = posted(pull)
    assert body.startswith("<!-- perf gate -->\n\n❌ 1 row is slower\n")
    assert body.count("perf gate") == 1, "the marker of the GPU machine's comment gave way to ours"
    assert f"Pull request 7 at {pull.commit}, from [this run](https://github.com/owner/repository/actions/" in body

    (pull.github.stubs / "asked.jsonl").unlink()
    theirs = {"id": 1, "user": {"login": "somebody"}, "body": body}
    ours = {"id": 1234, "user": {"login": "github-actions[bot]"}, "body": body}
    pull.github.answer("GET", f"issues/{NUMBER}/comments?per_page=100", json=[[theirs], [ours]])
    assert pull.comment().result == "success"
    assert posted(pull, "PATCH") == body
    assert pull.github.asked("PATCH")[0]["address"] == COMMENT


def test_the_run_names_itself_as_the_comment_reads_it(pull):
    run = pull.measure()
    assert run.title == f"gate of #{NUMBER} at {pull.commit}"
    assert pull.comment(run.title).result == "success"


EVENTS = {
    "path": ".github/workflows/other.yml",
    "event": "push",
    "head_branch": "mine",
    "head_repository.full_name": "stranger/repository",
}


@pytest.mark.parametrize("field", EVENTS)
def test_the_end_of_any_other_run_is_ignored(refusing, field):
    assert refusing.comment(**{field: EVENTS[field]}).result == "skipped"


GOOD = json.dumps(report("b" * 40, "c" * 40)).encode()
ARTIFACTS = {
    "too large": (b"x" * (32 * 2**20 + 1), "allowed: 33554432"),
    "no archive": (b"$(touch pwned)", "is not a ZIP archive"),
    "cut in half": (zipped({"report.json": GOOD, "comment.md": b"x"})[:-30], "is not a ZIP archive"),
    "another file": (zipped({"report.json": GOOD, "comment.md": b"x", "../../pwned": b"x"}), "allowed: comment.md and"),
    "no report": (zipped({"comment.md": b"x"}), "allowed: comment.md and"),
    "a bomb": (zipped({"report.json": b" " * (2**27 + 1), "comment.md": b"x"}), "report.json is larger than"),
    "a long comment": (zipped({"report.json": GOOD, "comment.md": b"x" * 240_001}), "comment.md is larger than 240000"),
    "no text": (zipped({"report.json": GOOD, "comment.md": b"\xff\xfe"}), "comment.md is not UTF-8"),
    "no JSON": (zipped({"report.json": b"$(touch pwned)", "comment.md": b"x"}), "report.json is not JSON"),
    "deep JSON": (zipped({"report.json": b"[" * 10**6, "comment.md": b"x"}), "report.json is not JSON"),
    "wrong schema": (zipped({"report.json": b'{"base": {}}', "comment.md": b"x"}), "report has no head"),
    "of another commit": (zipped({"report.json": GOOD, "comment.md": b"x"}), f"the report is of commit {'c' * 40}"),
}


@pytest.mark.parametrize("case", ARTIFACTS)
def test_an_artifact_that_is_no_report_is_refused_in_one_line(refusing, case):
    archive, reason = ARTIFACTS[case]
    assert_refused(refusing, refusing.comment(archive=archive), "Check and post", reason)


TITLES = [*HOSTILE, "gate of #7", f"gate of #7 at {'c' * 40} and more", f"gate of #7 at {'C' * 40}"]


@pytest.mark.parametrize("text", TITLES)
def test_a_title_that_is_not_ours_is_refused(refusing, text):
    assert_refused(refusing, refusing.comment(title=text), "Check and post", "allowed: gate of #NUMBER at COMMIT")


def test_a_report_of_this_commit_does_not_reach_another_pull_request(pull):
    pull.measure()  # leaves a report, which is of this commit
    pull.github.answer("GET", "pulls/8", json=pull.as_github_says_it(head={"sha": "d" * 40}))
    assert_refused(pull, pull.comment(title=f"gate of #8 at {pull.commit}"), "Check and post", "pull request 8 is at")


def test_a_hostile_comment_is_posted_as_text_that_calls_nobody(pull):
    archive = zipped({"report.json": json.dumps(report(pull.base, pull.commit)), "comment.md": "\n".join(HOSTILE)})
    assert pull.comment(archive=archive).result == "success"
    assert "<img" not in posted(pull)
    assert "@everyone" not in posted(pull)
    pull.project.assert_nothing_ran()


def test_the_gate_knows_the_options_that_the_workflow_gives_it():
    known = {option for parameter in main.commands["gate"].params for option in parameter.opts}
    (step,) = (step for step in load("perf-pr.yml")["jobs"]["gate"]["steps"] if step.get("name") == "Measure and judge")
    assert set(re.findall(r"--[a-z]+", step["run"])) <= known
    (sets,) = (parameter for parameter in main.commands["gate"].params if "--set" in parameter.opts)
    offered = load("perf-pr.yml")[True]["workflow_dispatch"]["inputs"]["set"]["options"]
    assert set(offered) <= set(sets.type.choices)
