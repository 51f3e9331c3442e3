"""Git in throw-away repositories."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

CONFIGURED_BY_NOBODY = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}

needs_checkout = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a git checkout, with its history")


def git(folder: Path, *arguments: str) -> str:
    """The output of a command that has an identity of its own and no other configuration than the repository's."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    command = ["git", "-c", "user.name=test", "-c", "user.email=test@example.org", *arguments]
    environment = os.environ | CONFIGURED_BY_NOBODY
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
