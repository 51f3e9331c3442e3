"""Git in throw-away repositories."""

import os
import subprocess
from pathlib import Path

CONFIGURED_BY_NOBODY = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


def git(folder: Path, *arguments: str) -> str:
    """The output of a command that has an identity of its own and no other configuration than the repository's."""
    command = ["git", "-c", "user.name=test", "-c", "user.email=test@example.org", *arguments]
    environment = os.environ | CONFIGURED_BY_NOBODY
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
