"""Gate the commit of a pull request against its merge base, from a checkout of main.

    gate_pull_request.py HEAD_CHECKOUT FOLDER   write report.json and machine-code.json to FOLDER

The kernels whose machine code differs are compiled on the CPU while no GPU is in use.

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
    perf = [sys.executable, "-m", "perf"]
    compiled = ["--set", os.environ["SET"], "--json", str(folder / "machine-code.json")]
    measured = ["--set", os.environ["SET"], "--budget", os.environ["MINUTES"], "--json", str(folder / "report.json")]
    # The code of the pull request runs from here on. The runner must take neither its output for commands nor the files
    # that it may write for the environment of the next steps.
    own = ("GITHUB_", "RUNNER_", "ACTIONS_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    token = secrets.token_hex()
    print(f"::stop-commands::{token}", flush=True)
    try:
        subprocess.run([*perf, "machine-code", base, commit, *compiled], env=environment, check=False)
        return subprocess.run([*perf, "gate", base, commit, *measured], env=environment, check=False).returncode
    finally:
        print(f"::{token}::", flush=True)


if __name__ == "__main__":
    sys.exit(main())
