"""check_request.py and post_comment.py: from a maintainer's request to one comment."""

import dataclasses
import html
import io
import json
import re
import zipfile

import pytest

from perf.gate.evidence import Arm
from perf.gate.machine_code import compared
from perf.gate.machine_code import report as machine_code
from perf.gate.report import to_json
from tests.gate import reports as made
from tests.workflows.scripts import HOSTILE, REPOSITORY, ROOT, RUN_URL, assert_refused, report, run

COMMIT, NUMBER = "c" * 40, "7"
TITLE = f"gate of #{NUMBER} at {COMMIT}"
PULL = {"state": "open", "base": {"ref": "main"}, "head": {"sha": COMMIT}}
COMMENTS = f"issues/{NUMBER}/comments"


def check(github, cwd, number=NUMBER, commit=COMMIT):
    given = {"REPOSITORY": REPOSITORY, "PULL_REQUEST": number, "COMMIT": commit}
    return run("check_request", cwd=cwd, GITHUB_API_URL=github.url, GH_TOKEN="secret", **given)


def zipped(*others, **files):
    """An archive of these JSON files, "_" in a name standing for "-", and of other pairs of name and content."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in [*others, *((f"{name.replace('_', '-')}.json", one) for name, one in files.items())]:
            archive.writestr(name, content)
    return buffer.getvalue()


GOOD = json.dumps(report("b" * 40, COMMIT))
KERNEL = compared.KernelChange("9.0", "DIFFERS", "fwd", "fwd", "64", ("TILE 64 -> 128",), {}, {"error": "x"}, 2)
ROWS = compared.Comparison((KERNEL,), ("a.B(1)",), {"a.B(2)": "fwd"}, {}, {}, ())
MACHINE_CODE = compared.Report(Arm("b" * 40, "Base"), Arm(COMMIT, "Head"), {"9.0": ROWS}, 2, "3.7.1", 12.0, "a command")


def compiled(**changes):
    return machine_code.to_json(dataclasses.replace(MACHINE_CODE, **changes), "")


def everywhere(text):
    """Both reports with this text wherever a commit chooses it, in an archive."""
    arms = {name: {"commit": COMMIT, "subject": text} for name in ("base", "head")}
    rows = [made.verdict("SLOWER", key=text, reason=text)]
    changed = made.report(*rows, tests=text, command=text, device={"name": text}, software={text: text}, **arms)
    kernel = dataclasses.replace(KERNEL, base=text, head=text, head_dim=text, constants=(text,), after={"error": text})
    found = {text: dataclasses.replace(ROWS, kernels=(kernel,), reached={text: text}, broken={text: text})}
    return zipped(report=to_json(changed), machine_code=compiled(targets=found, triton=text, command=text))


def post(github, cwd, archive=None, *, title=TITLE, size=None, artifacts=1):
    archive = zipped(report=GOOD, machine_code=compiled()) if archive is None else archive
    artifact = {"name": "gate-report", "id": 5, "size_in_bytes": len(archive) if size is None else size}
    github.answer("GET", "actions/runs/99/artifacts", {"artifacts": [{"name": "logs"}, *[artifact] * artifacts]})
    storage = github.url.replace("127.0.0.1", "localhost")  # another host
    github.answer("GET", "actions/artifacts/5/zip", f"{storage}/blob")
    github.answers["GET /blob"] = archive
    github.answers.setdefault(f"GET /repos/{REPOSITORY}/{COMMENTS}?per_page=100&page=1", [])
    github.answer("POST", COMMENTS, {})
    given = {"REPOSITORY": REPOSITORY, "RUN_ID": "99", "RUN_TITLE": title, "RUN_URL": RUN_URL, "PYTHONPATH": str(ROOT)}
    return run("post_comment", cwd=cwd, GITHUB_API_URL=github.url, GH_TOKEN="secret", **given)


@pytest.fixture
def pull(github):
    github.answer("GET", f"pulls/{NUMBER}", PULL)
    return github


def test_an_open_pull_request_at_its_newest_commit_is_measured(pull, tmp_path):
    assert check(pull, tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("field", "text"),
    [
        *(("number", text) for text in (*HOSTILE[::2], "", "0", "7" * 10)),
        *(("commit", text) for text in (*HOSTILE[1::2], "", "c" * 39, "C" * 40)),
    ],
)
def test_another_input_is_refused_before_github_sees_it(pull, tmp_path, field, text):
    assert_refused(check(pull, tmp_path, **{field: text}), "was given; allowed: ", tmp_path)
    assert not pull.requests


WRONG = {
    "closed": ({"state": "closed"}, "allowed: open"),
    "to another branch": ({"base": {"ref": "$(touch pwned)\n::error::x"}}, "allowed: main"),
    "pushed since": ({"head": {"sha": "f" * 40}}, "read that commit, then start again"),
}


@pytest.mark.parametrize("case", WRONG)
def test_another_state_of_the_pull_request_is_refused_before_and_after(pull, tmp_path, case):
    other, reason = WRONG[case]
    pull.answer("GET", f"pulls/{NUMBER}", PULL | other)
    assert_refused(check(pull, tmp_path), reason, tmp_path)
    assert_refused(post(pull, tmp_path), reason, tmp_path)
    assert not pull.written()


@pytest.mark.parametrize(("answer", "reason"), [(404, "HTTP 404"), (b"<html>", "is not JSON"), (500, "HTTP 500")])
def test_an_error_of_github_is_one_line(pull, tmp_path, answer, reason):
    pull.answer("GET", f"pulls/{NUMBER}", answer)
    assert_refused(check(pull, tmp_path), reason, tmp_path)


def test_no_answer_is_one_line(pull, tmp_path):
    pull.close()
    assert_refused(check(pull, tmp_path), "refused", tmp_path)


def test_a_comment_is_posted_once_and_updated_from_then_on(pull, tmp_path):
    assert post(pull, tmp_path).returncode == 0
    ((method, address, sent),) = pull.written()
    assert (method, address) == ("POST", f"/repos/{REPOSITORY}/{COMMENTS}")
    body = sent["body"]
    assert body.startswith("<!-- perf gate -->\n")
    assert body.count("<!--") == 1
    assert "1 slower" in body and "machine code" in body and COMMIT in body and RUN_URL in body

    theirs = {"id": 1, "user": {"login": "somebody"}, "body": body}
    empty = {"id": 2, "user": {"login": "github-actions[bot]"}, "body": None}
    ours = {"id": 1234, "user": {"login": "github-actions[bot]"}, "body": body}
    gone = {"id": 3, "user": None, "body": body}
    pull.answer("GET", f"{COMMENTS}?per_page=100&page=1", [theirs, gone] * 50)
    pull.answer("GET", f"{COMMENTS}?per_page=100&page=2", [empty, ours])
    pull.answer("PATCH", "issues/comments/1234", {})
    assert post(pull, tmp_path).returncode == 0
    assert pull.written()[1:] == [("PATCH", f"/repos/{REPOSITORY}/issues/comments/1234", sent)]


def test_the_storage_to_which_an_artifact_is_redirected_does_not_see_the_token(pull, tmp_path):
    assert post(pull, tmp_path).returncode == 0
    seen = {address: token for (_, address, _), token in zip(pull.requests, pull.tokens, strict=True)}
    assert seen.pop("/blob") is None
    assert set(seen.values()) == {"Bearer secret"}


def test_a_run_that_was_repeated_posts_its_newest_report(pull, tmp_path):
    assert post(pull, tmp_path, artifacts=2).returncode == 0
    assert pull.written()


def test_a_run_without_a_report_posts_nothing(pull, tmp_path):
    assert post(pull, tmp_path, artifacts=0).returncode == 0
    assert not pull.written()


HALF = dataclasses.replace(KERNEL, after={"registers": 1})
ARTIFACTS = {
    "too large, as it says": (None, {"size": 2**25 + 1}, "allowed: 33554432"),
    "too large, in spite of what it says": (b"x" * (2**25 + 1), {"size": 1}, "is larger than 33554432"),
    "a size that is no number": (None, {"size": "$(touch pwned)"}, "allowed: 33554432"),
    "no archive": (b"$(touch pwned)", {}, "is not a ZIP archive"),
    "cut in half": (lambda: zipped(report=GOOD)[:-30], {}, "is not a ZIP archive"),
    "another file": (lambda: zipped(("pwned", "x"), report=GOOD), {}, "allowed: report.json and"),
    "no report": (lambda: zipped(machine_code=compiled()), {}, "allowed: report.json and"),
    "a bomb": (lambda: zipped(report=b" " * (2**27 + 1)), {}, "report.json is larger than"),
    "no text": (lambda: zipped(report=b"\xff\xfe"), {}, "report.json is not UTF-8"),
    "no JSON": (lambda: zipped(report="$(touch pwned)"), {}, "report.json is not JSON"),
    "deep JSON": (lambda: zipped(report="[" * 10**6), {}, "report.json is not JSON"),
    "another form": (lambda: zipped(report='{"base": {}}'), {}, "is not what perf writes"),
    "another form of the machine code": (lambda: zipped(report=GOOD, machine_code="[]"), {}, "is not what perf writes"),
    "a kernel without numbers": (
        lambda: zipped(report=GOOD, machine_code=compiled(targets={"9.0": dataclasses.replace(ROWS, kernels=(HALF,))})),
        {},
        "cannot be shown",
    ),
    "another commit": (lambda: zipped(report=json.dumps(report("b" * 40, "d" * 40))), {}, "is of commit"),
}


@pytest.mark.parametrize("case", ARTIFACTS)
def test_an_artifact_that_is_no_report_of_this_commit_is_refused(pull, tmp_path, case):
    archive, options, reason = ARTIFACTS[case]
    assert_refused(post(pull, tmp_path, archive() if callable(archive) else archive, **options), reason, tmp_path)
    assert not pull.written()


@pytest.mark.parametrize("text", [*HOSTILE, "gate of #7", f"{TITLE} and more", f"gate of #7 at {'C' * 40}"])
def test_a_title_that_the_workflow_did_not_write_is_refused(github, tmp_path, text):
    assert_refused(post(github, tmp_path, title=text), "allowed: gate of #NUMBER at COMMIT", tmp_path)
    assert not github.requests


def test_a_report_does_not_reach_another_pull_request(pull, tmp_path):
    pull.answer("GET", "pulls/8", PULL | {"head": {"sha": "d" * 40}})
    assert_refused(post(pull, tmp_path, title=f"gate of #8 at {COMMIT}"), "pull request 8 is at", tmp_path)
    assert not pull.written()


def test_a_report_without_machine_code_is_posted(pull, tmp_path):
    assert post(pull, tmp_path, zipped(report=GOOD)).returncode == 0
    ((_, _, sent),) = pull.written()
    assert "1 slower" in sent["body"] and "machine code" not in sent["body"]


def test_hostile_texts_are_posted_as_text(pull, tmp_path):
    text = "\n".join([*HOSTILE, "fixes #12", "</code></details>", "www.evil.example", "<!-- x -->"])
    done = post(pull, tmp_path, everywhere(text))
    assert done.returncode == 0, done.stderr
    ((_, _, sent),) = pull.written()
    assert not re.search(r"<img|\]\(https|www\.evil", sent["body"].replace(f"]({RUN_URL})", ""))
    assert sent["body"].count("<!--") == 1
    assert "@everyone" not in html.unescape(sent["body"]) and "#12" not in html.unescape(sent["body"])
    assert "touch pwned" in html.unescape(sent["body"]), "the text itself is there"
    assert not list(tmp_path.rglob("pwned"))
