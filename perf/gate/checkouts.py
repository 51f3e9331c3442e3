"""The two commits of a gate: what their names mean, and each one's package in a folder of its own."""

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import click

from perf.gate.evidence import Arm
from perf.harness.working_tree import ROOT
from perf.printable import shortened
from perf.workloads import PACKAGE

WORKING_TREE = "working tree"


def resolve(name: str) -> Arm:
    """The commit that git knows by this name. Raises `click.ClickException` with one line if it knows none."""
    found = git("log", "-1", "--format=%H%n%s", "--end-of-options", name, "--")
    if found.returncode != 0 or not found.stdout.strip():
        raise click.ClickException(
            f"{name!r} was given; allowed: a commit that this repository holds (of a shallow clone, git fetch "
            f"--unshallow brings the others)"
        )
    commit, _, subject = found.stdout.decode(errors="replace").strip().partition("\n")
    return Arm(commit, shortened(subject))


def working_tree() -> Arm:
    """The package as it lies in the checkout, uncommitted changes and all."""
    return Arm(WORKING_TREE, "uncommitted changes" if is_dirty() else resolve("HEAD").subject)


def is_dirty() -> bool:
    """Whether the package differs from HEAD's; files that git ignores do not count."""
    return bool(git("status", "--porcelain", "--", PACKAGE).stdout.strip())


def export(arm: Arm, folder: Path) -> None:
    """The arm's package, and nothing else, into `folder`; nothing if that commit has none.

    A copy, also of the working tree: what is edited during the run is not measured.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if arm.commit == WORKING_TREE:
        if (ROOT / PACKAGE).is_dir():
            shutil.copytree(ROOT / PACKAGE, folder / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
        return
    archive = git("archive", arm.commit, PACKAGE)
    if archive.returncode == 0:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python has it from 3.11.4 on
            tar.extractall(folder)


def clone(arm: Arm, folder: Path) -> Path:
    """The whole checkout, where the arm's tests can run: of a commit a clone, else the working tree itself."""
    if arm.commit == WORKING_TREE:
        return ROOT
    for command in (
        ["clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(folder)],
        ["-C", str(folder), "checkout", "--quiet", "--detach", arm.commit],
    ):
        done = subprocess.run(["git", *command], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise click.ClickException(f"git {command[0]} failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    return folder


def git(*arguments: str) -> "subprocess.CompletedProcess[bytes]":
    """git in this checkout, whatever becomes of it. Raises `click.ClickException` where there is no git."""
    try:
        return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=False)
    except FileNotFoundError:
        raise click.ClickException("git is not installed; a gate compares commits, so it needs git") from None
