"""Run git, for commands that read commits."""

import os
import subprocess
from pathlib import Path

import click

OF_THE_CALLER = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE",
)  # fmt: skip
"""Variables by which git tells its hooks and aliases the repository that they were called in."""

PLAIN_LOG = ("-c", "log.showSignature=false")
"""Options of git before `log`, which a user may have set to print more than its format."""


def forget_the_caller() -> None:
    """Let git, in this process and its children, work in the folder that it is given, not in its caller's."""
    for name in OF_THE_CALLER:
        os.environ.pop(name, None)


def git(folder: Path, *arguments: str, index: Path | None = None) -> "subprocess.CompletedProcess[bytes]":
    """Run git in `folder`, whatever its status, with an index of its own if one is given. Its messages are in English.

    Raises `click.ClickException` with one line without git.
    """
    command = ["git", "-C", str(folder), *PLAIN_LOG, *arguments]
    environment = os.environ | {"LANGUAGE": "en"} | ({"GIT_INDEX_FILE": str(index)} if index else {})
    try:
        return subprocess.run(command, env=environment, capture_output=True, check=False)
    except FileNotFoundError:
        raise click.ClickException("git is not installed; this command reads commits, so it needs git") from None


def output(folder: Path, *arguments: str) -> str:
    """Return what git prints. Raises `click.ClickException` with one line if git fails, outside a repository too."""
    done = git(folder, *arguments)
    if done.returncode != 0:
        reason = (done.stderr.decode(errors="replace").strip().splitlines() or [f"status {done.returncode}"])[0]
        raise click.ClickException(f"git failed in {folder}: {reason}")
    return done.stdout.decode(errors="replace")
