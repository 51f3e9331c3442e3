"""Open one issue for each kept gate that found a regression of main, or update the issue that is open already.

    open_issue.py FOLDER   the results of a run; this reads perf/records/MACHINE/gate/TIME.json

The GPU machine wrote these files, so they are untrusted: this script checks them, looks their commits up in main's
history and writes their texts as plain text. `perf.gate` decides which rows count and words them. It needs no installed
package; PYTHONPATH names the checkout. Reads REPOSITORY and RUN_URL; exits with status 1 and one line if it refuses.
"""

import dataclasses
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from github import REPOSITORY, RefusedError, api, expect, ours
from results import content_of, git
from untrusted import read_report

from perf.gate.comment import MARKER, comment
from perf.gate.verdicts import Judgement, Report, Unreached, Verdict

MAX_REPORTS = 5  # a night writes one; aborted runs leave theirs to the next


def main() -> None:
    """Open or update the issues."""
    try:
        for line in run(Path(sys.argv[1]), os.environ["REPOSITORY"], os.environ["RUN_URL"]):
            print(line)
    except RefusedError as refused:
        sys.exit(f"refused: {refused}")


def run(folder: Path, repository: str, url: str) -> Iterator[str]:
    """Yield one line for each report, saying what was done. Raises RefusedError."""
    expect(REPOSITORY, repository, "repository", "owner/name")
    names = sorted(path.relative_to(folder).as_posix() for path in folder.glob("perf/records/*/gate/*"))
    if len(names) > MAX_REPORTS:
        raise RefusedError(f"{len(names)} reports of gates were given; allowed: {MAX_REPORTS}")
    if not names:
        yield "No gate was run."
    for name in names:
        report = believed(read_report(content_of(folder, name), name))
        rows = [verdict for verdict in report.judgement.verdicts if verdict.is_bad]
        base, head = report.base["commit"], report.head["commit"]
        if rows:
            yield post(repository, marker(base, head), title(rows, base, head), body(report, name, repository, url))
        else:
            yield f"Nothing is worse in {base[:8]}..{head[:8]} that may be believed and was not accepted."


def believed(report: Report) -> Report:
    """Drop the rows that do not count, such as times beside controls that moved. Raises RefusedError."""
    base, head = report.base["commit"], report.head["commit"]
    return dataclasses.replace(
        report,
        base=_of_main(base, head),
        head=_of_main(head, "HEAD"),
        judgement=Judgement(report.judgement.believed, report.judgement.contaminated),
        without=(),
        unreached=Unreached(),
        command=f"python -m perf gate {base} {head} --set pr --no-tests",
    )


def _of_main(commit: str, later: str) -> dict[str, str]:
    """Look the commit up in main's history. Raises RefusedError unless it comes before `later` there."""
    try:
        git("merge-base", "--is-ancestor", commit, later)
    except RefusedError:
        raise RefusedError(f"{commit} is no commit of main before {later}") from None
    return {"commit": commit, "subject": git("log", "-1", "--format=%s", commit)}


def marker(base: str, head: str) -> str:
    """Return the first line of the issue, by which a later run recognizes it."""
    return f"<!-- perf step {base}..{head} -->"


def title(rows: list[Verdict], base: str, head: str) -> str:
    """Return a title such as "Slower since 1a2b3c4d: 3 rows (1a2b3c4d..5e6f7a8b)"."""
    words = {row.word for row in rows}
    word = words.pop().capitalize() if len(words) == 1 else "Worse"
    return f"{word} since {base[:8]}: {len(rows)} row{'s' * (len(rows) != 1)} ({base[:8]}..{head[:8]})"


def body(report: Report, name: str, repository: str, url: str) -> str:
    """Return the commits, the gate's rows, how to repeat the gate, and how to accept the regression."""
    base, head = report.base["commit"], report.head["commit"]
    commits = f"[{base[:8]}...{head[:8]}](https://github.com/{repository}/compare/{base}...{head})"
    text = "\n\n".join(
        [
            f"Main became worse in {commits}. [This run]({url}) measured both ends on `{name.split('/')[2]}`.",
            comment(report).removeprefix(MARKER).strip(),
            f"**To repeat it**, on such a machine: `{report.command}`",
            f'**To accept it**, in a checkout of main: `python -m perf accept {name} --reason "..."`; then commit '
            "`perf/accepted.json`.",
            "Close this issue when it is mended or accepted: the next gate compares with the newer commit.",
        ]
    )
    return f"{marker(base, head)}\n{text}\n"


def post(repository: str, mark: str, heading: str, text: str) -> str:
    """Update the open issue of these two commits, or open it."""
    issue = {"title": heading, "body": text}
    if found := ours(f"repos/{repository}/issues?state=open&", mark):
        api(f"repos/{repository}/issues/{found['number']}", method="PATCH", body=issue)
        return f"Issue {found['number']} is up to date."
    api(f"repos/{repository}/issues", method="POST", body=issue)
    return "An issue was opened."


if __name__ == "__main__":
    main()
