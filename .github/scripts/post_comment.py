"""Post the result of a gate as one comment of the pull request, and update that comment from then on.

The code of the pull request ran on the machine that wrote the artifact, so the artifact's two files are untrusted: they
are read as data, and main's own `perf.gate` words them. The numbers of the pull request and of the commit come from the
title of the run instead, which the workflow on main wrote.
It needs no installed package; PYTHONPATH names the checkout. Reads REPOSITORY, RUN_ID, RUN_TITLE and RUN_URL; exits
with status 1 and one line if it refuses.
"""

import io
import os
import re
import sys
import zipfile
import zlib
from typing import Any

from github import RefusedError, api, download, expect, ours, pull_request, shown
from untrusted import read, read_report

from perf.gate.comment import MARKER, comment
from perf.gate.machine_code import report as machine_code
from perf.gate.machine_code.compared import Report as MachineCode
from perf.gate.verdicts import Report

ARTIFACT = "gate-report"
MAX_ARTIFACT, MAX_REPORT = 32 * 2**20, 128 * 2**20
REPORT = "report.json"
MACHINE_CODE = "machine-code.json"  # missing where nothing could be compiled
TITLE = re.compile(r"gate of #([1-9][0-9]{0,8}) at ([0-9a-f]{40})")


def main() -> None:
    """Post the comment."""
    try:
        print(run(os.environ["REPOSITORY"], os.environ["RUN_ID"], os.environ["RUN_TITLE"], os.environ["RUN_URL"]))
    except RefusedError as refused:
        sys.exit(f"refused: {refused}")


def run(repository: str, run_id: str, title: str, url: str) -> str:
    """Post or update the comment and return what was done. Raises RefusedError."""
    expect(TITLE, title, "title of the run", "gate of #NUMBER at COMMIT")
    expect(re.compile(r"[0-9]{1,20}"), run_id, "run", "a number")
    number, commit = TITLE.fullmatch(title).groups()  # type: ignore[union-attr]
    artifacts = api(f"repos/{repository}/actions/runs/{run_id}/artifacts")["artifacts"]
    reports = [artifact for artifact in artifacts if artifact["name"] == ARTIFACT]  # one of each attempt
    if not reports:
        return f"Run {run_id} left no report: there is nothing to post, and the run itself says why."
    report, compiled = read_archive(fetch(repository, max(reports, key=lambda artifact: artifact["id"])))
    if report.head["commit"] != commit:
        raise RefusedError(f"the report is of commit {report.head['commit']}, the run of {commit}")
    pull_request(repository, number, commit)
    return post(repository, number, f"{worded(report, compiled)}\n{footer(number, commit, url)}\n")


def fetch(repository: str, artifact: dict[str, Any]) -> bytes:
    """Download the archive of an artifact. Raises RefusedError if it is too large."""
    size, number = artifact["size_in_bytes"], artifact["id"]
    if not (isinstance(size, int) and isinstance(number, int) and size <= MAX_ARTIFACT):
        raise RefusedError(f"the artifact has {shown(size)} bytes; allowed: {MAX_ARTIFACT}")
    return download(f"repos/{repository}/actions/artifacts/{number}/zip", MAX_ARTIFACT)


def read_archive(archive: bytes) -> tuple[Report, MachineCode | None]:
    """Return the reports of an archive. Raises RefusedError if it holds anything else."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            names = files.namelist()
            if len(set(names)) < len(names) or not {REPORT} <= set(names) <= {REPORT, MACHINE_CODE}:
                raise RefusedError(f"the artifact holds {shown(sorted(names))}; allowed: {REPORT} and {MACHINE_CODE}")
            texts = {name: _member(files, name, MAX_REPORT) for name in names}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error):
        raise RefusedError("the artifact is not a ZIP archive") from None
    compiled = read(MachineCode, texts[MACHINE_CODE], MACHINE_CODE) if MACHINE_CODE in texts else None
    return read_report(texts[REPORT], REPORT), compiled


def worded(report: Report, compiled: MachineCode | None) -> str:
    """Return the comment. Raises RefusedError for values that fit their types and cannot be shown."""
    try:
        return comment(report) + (f"\n{machine_code.comment(compiled)}" if compiled else "")
    except Exception as error:
        raise RefusedError(f"the report cannot be shown: {shown(repr(error))}") from None


def _member(files: zipfile.ZipFile, name: str, limit: int) -> str:
    with files.open(name) as stream:
        content = stream.read(limit + 1)  # what the archive says of its sizes need not be so
    if len(content) > limit:
        raise RefusedError(f"{name} is larger than {limit} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise RefusedError(f"{name} is not UTF-8") from None


def footer(number: str, commit: str, url: str) -> str:
    """Return the last line of the comment, which holds trusted values only."""
    return f"<sub>Pull request {number} at {commit}, from [this run]({url}); the next run replaces this comment.</sub>"


def post(repository: str, number: str, body: str) -> str:
    """Update the comment of an earlier gate, or post the first."""
    if found := ours(f"repos/{repository}/issues/{number}/comments?", MARKER):
        api(f"repos/{repository}/issues/comments/{found['id']}", method="PATCH", body={"body": body})
        return f"Comment {found['id']} of pull request {number} is up to date."
    api(f"repos/{repository}/issues/{number}/comments", method="POST", body={"body": body})
    return f"Pull request {number} has its comment."


if __name__ == "__main__":
    main()
