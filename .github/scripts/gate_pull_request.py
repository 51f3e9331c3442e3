"""Gate the commit of a pull request against its merge base, from a checkout of main.

    gate_pull_request.py HEAD_CHECKOUT FOLDER   write report.json and comment.md to FOLDER

Reads COMMIT, SET and MINUTES; exits with the status of the gate.
"""

import os
import secrets
import subprocess
import sys
from pathlib import Path

from github import COMMIT, RefusedError, expect
from results import git


def main() -> int:
    """Fetch the commit, then gate it."""
    checkout, folder = sys.argv[1], Path(sys.argv[2])
    commit = os.environ["COMMIT"]
    try:
        expect(COMMIT, commit, "commit", "40 hexadecimal digits")
        git("fetch", "--quiet", "--no-tags", checkout, "HEAD")
        if (head := git("rev-parse", "FETCH_HEAD")) != commit:
            raise RefusedError(f"the checkout is at {head}, not at {commit}")
        base = git("merge-base", "HEAD", commit)
    except RefusedError as refused:
        sys.exit(f"refused: {refused}")
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "perf", "gate", base, commit]
    options = ["--set", os.environ["SET"], "--budget", os.environ["MINUTES"]]
    outputs = ["--json", str(folder / "report.json"), "--markdown", str(folder / "comment.md")]
    # The code of the pull request runs from here on. The runner must not take its output for commands.
    token = secrets.token_hex()
    print(f"::stop-commands::{token}", flush=True)
    try:
        return subprocess.run([*command, *options, *outputs], check=False).returncode
    finally:
        print(f"::{token}::", flush=True)


if __name__ == "__main__":
    sys.exit(main())
