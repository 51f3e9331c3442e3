"""open_issue.py: the issue for a regression of main, and every report that it refuses."""

import html
import json
import re

import pytest

from tests.repositories import git
from tests.workflows.scripts import HOSTILE, REPOSITORY, ROOT, RUN_URL, assert_refused, changed, commit, report, run

KEPT = "perf/records/nvidia-h200/gate/20261101T020304Z.json"
ISSUES = f"/repos/{REPOSITORY}/issues"
BOT = {"login": "github-actions[bot]"}


class Main:
    """A repository with two commits of main and one of a branch."""

    def __init__(self, folder):
        self.folder = folder / "main"
        self.folder.mkdir()
        git(self.folder, "init", "-q", "-b", "main")
        self.base, self.head = commit(self.folder, "Before"), commit(self.folder, "\n".join(HOSTILE))
        self.branch = git(self.folder, "commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", "Of a branch")

    def report(self, *rows, contaminated="", **other):
        document = report(self.base, self.head)
        verdicts = [document["judgement"]["verdicts"][0] | row for row in rows]
        return document | {"judgement": {"verdicts": verdicts, "contaminated": contaminated}} | other


@pytest.fixture(scope="module")
def main(tmp_path_factory):
    return Main(tmp_path_factory.mktemp("issue"))


@pytest.fixture
def issue(github, main, tmp_path):
    """Run the script on one report, or on files by name; issue.github has what it sent."""

    def start(document=None, **files):
        for name, content in ({KEPT: json.dumps(document)} if document is not None else files).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        given = {"REPOSITORY": REPOSITORY, "RUN_URL": RUN_URL, "PYTHONPATH": str(ROOT)}
        return run("open_issue", tmp_path, cwd=main.folder, GITHUB_API_URL=github.url, GH_TOKEN="secret", **given)

    github.answer("GET", "issues?state=open&per_page=100&page=1", [])
    github.answer("POST", "issues", {})
    start.github = github
    return start


MEMORY = {"quantity": "peak_memory", "word": "LARGER", "base": 2.0**20, "head": 2.0**21, "change": 1.0, "low": 1.0}
BROKEN = {"word": "BROKEN", "base": 1e-4, "head": None, "change": None, "low": None, "high": None, "reason": "wrong"}


def test_a_regression_is_an_issue_with_its_rows_its_commits_and_what_to_do(main, issue):
    assert issue(main.report({}, {"word": "SAME", "key": "z"})).returncode == 0
    ((method, address, sent),) = issue.github.written()
    base, head = main.base, main.head
    assert (method, address) == ("POST", ISSUES)
    assert sent["body"].startswith(f"<!-- perf step {base}..{head} -->\n")
    assert f"](https://github.com/{REPOSITORY}/compare/{base}...{head})" in sent["body"]
    assert f"]({RUN_URL})" in sent["body"]
    assert f"python -m perf gate {base} {head}" in sent["body"]
    assert f"python -m perf accept {KEPT}" in sent["body"]
    assert "track_time(8192, 64, 'bfloat16', 'forward', 'triton')" in html.unescape(sent["body"])


TITLES = {
    "larger": ([MEMORY], "Larger", 1),
    "broken": ([BROKEN], "Broken", 1),
    "of several kinds": ([{}, MEMORY, BROKEN], "Worse", 3),
    "beside an accepted row": ([{"accepted": "It is exact now"}, MEMORY], "Larger", 1),
}


@pytest.mark.parametrize("case", TITLES)
def test_the_title_counts_the_regressions(main, issue, case):
    rows, word, count = TITLES[case]
    assert issue(main.report(*rows)).returncode == 0
    title = issue.github.written()[0][2]["title"]
    assert title.startswith(word) and f" {count} row" in title and f"{main.base[:8]}..{main.head[:8]}" in title


def test_beside_controls_that_moved_bytes_count_and_times_do_not(main, issue):
    assert issue(main.report({}, MEMORY, contaminated="copy moved by 4 %")).returncode == 0
    ((_, _, sent),) = issue.github.written()
    assert sent["title"].startswith("Larger")
    assert "| SLOWER |" not in sent["body"]


QUIET = {
    "nothing worse": ([{"word": "SAME"}, {"word": "FASTER"}, {"word": "AMBIGUOUS"}, {"word": "NEW"}], ""),
    "no rows": ([], ""),
    "all accepted": ([{"accepted": "It is exact now"}, MEMORY | {"accepted": "For the cache"}], ""),
    "controls that moved": ([{}], "copy moved by 4 %"),
}


@pytest.mark.parametrize("case", QUIET)
def test_without_a_regression_there_is_no_issue(main, issue, case):
    rows, contaminated = QUIET[case]
    assert issue(main.report(*rows, contaminated=contaminated)).returncode == 0
    assert not issue.github.requests


def test_without_a_gate_there_is_nothing_to_do(issue):
    assert issue().returncode == 0


def test_the_open_issue_of_the_same_commits_is_updated_and_no_other(main, issue):
    assert issue(main.report({})).returncode == 0
    body = issue.github.written()[0][2]["body"]
    theirs = {"number": 10, "user": {"login": "somebody"}, "body": body}
    other = {"number": 11, "user": BOT, "body": body.replace(main.base, "f" * 40)}
    empty = {"number": 9, "user": BOT, "body": None}
    issue.github.answer("GET", "issues?state=open&per_page=100&page=1", [theirs, other])
    issue.github.answer("GET", "issues?state=open&per_page=100&page=2", [empty])
    issue.github.answer("GET", "issues?state=open&per_page=100&page=3", [])
    assert issue(main.report({})).returncode == 0
    issue.github.answer("GET", "issues?state=open&per_page=100&page=2", [{"number": 12, "user": BOT, "body": body}])
    issue.github.answer("PATCH", "issues/12", {})
    assert issue(main.report({}, MEMORY)).returncode == 0
    sent = [(method, address) for method, address, _ in issue.github.written()]
    assert sent == [("POST", ISSUES), ("POST", ISSUES), ("PATCH", f"{ISSUES}/12")]


def test_hostile_texts_are_shown_and_do_nothing(main, issue):
    everywhere = "\n".join([*HOSTILE, "fixes #12", "</code></details>", "| a | b |", "www.evil.example", "<!-- x -->"])
    rows = [{"key": everywhere}, {"key": "y", "reason": everywhere}, {"key": "z", "accepted": everywhere}]
    other = {"device": {"name": everywhere, "driver": everywhere}, "software": {everywhere: everywhere}}
    assert issue(main.report(*rows, tests=everywhere, command=everywhere, **other)).returncode == 0
    body = issue.github.written()[0][2]["body"]
    assert not [bad for bad in ("<img", "[x](", "</code></details>", "| a | b |") if bad in body]
    assert body.count("<!--") == 1
    assert not re.search(r"@everyone|(?<!&)#12\b|www\.evil", body)
    assert "@everyone" not in html.unescape(body), "GitHub looks for mentions in the rendered text"
    assert body.count("https://") == 2, "the commits and the run"
    assert "touch pwned" in html.unescape(body), "the text itself is there"
    assert not list(main.folder.rglob("pwned"))


NO_REPORT = "is not what perf writes"
HALF = {"key": "x", "quantity": "time", "word": "SLOWER"}
REFUSED = {
    "another form": (lambda main: changed(main.report({}), "judgement", to=[]), NO_REPORT),
    "an unknown word": (lambda main: main.report({"word": "$(touch pwned)"}), "word is"),
    "a huge number": (lambda main: main.report({"head": 10**400}), "head is"),
    "no number": (lambda main: main.report({"change": float("nan")}), "change is"),
    "a commit by name": (
        lambda main: changed(main.report({}), "head", "commit", to="main"),
        "allowed: 40 hex",
    ),
    "an unknown commit": (lambda main: changed(main.report({}), "base", "commit", to="f" * 40), "is no commit of"),
    "a commit of a branch": (lambda main: changed(main.report({}), "head", "commit", to=main.branch), "before HEAD"),
    "commits in the wrong order": (
        lambda main: main.report(
            {}, base={"commit": main.head, "subject": ""}, head={"commit": main.base, "subject": ""}
        ),
        "is no commit of main before",
    ),
    "half a row": (
        lambda main: changed(main.report({}), "judgement", "verdicts", 0, to=HALF),
        NO_REPORT,
    ),
    "half a report": (
        lambda main: {k: v for k, v in main.report({}).items() if k != "seconds"},
        NO_REPORT,
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_is_no_report_of_main_is_refused(main, issue, case):
    make, reason = REFUSED[case]
    assert_refused(issue(make(main)), reason, main.folder)
    assert not issue.github.requests


FILES = {
    "another name": ({"perf/records/m/gate/last.json": "{}"}, "is no file of results or records"),
    "a large one": ({KEPT: "{}" + " " * 2**22}, "allowed: 4194304"),
    "one cut in half": ({KEPT: "{"}, "is cut in half"),
    "many": ({KEPT.replace("020304", f"{at:06}"): "{}" for at in range(6)}, "6 reports of gates were given; allowed"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_no_gate_keeps_is_refused(main, issue, case):
    files, reason = FILES[case]
    assert_refused(issue(**files), reason, main.folder)
    assert not issue.github.requests
