"""Run git, for commands that read commits."""

import subprocess
from pathlib import Path

import click


def git(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    """Run git in `folder`, whatever its status. Raises `click.ClickException` with one line without git."""
    try:
        return subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, check=False)
    except FileNotFoundError:
        raise click.ClickException("git is not installed; this command reads commits, so it needs git") from None


def output(folder: Path, *arguments: str) -> str:
    """Return what git prints. Raises `click.ClickException` with one line if git fails, outside a repository too."""
    done = git(folder, *arguments)
    if done.returncode != 0:
        reason = (done.stderr.decode(errors="replace").strip().splitlines() or [f"status {done.returncode}"])[0]
        raise click.ClickException(f"{folder} is not a git repository with commits: {reason}")
    return done.stdout.decode(errors="replace")
