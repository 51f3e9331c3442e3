"""Resolve the two arms of a gate and check out each one's package into a folder of its own."""

import contextlib
import dataclasses
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click

from perf.files import scratch_folder
from perf.gate.evidence import Arm
from perf.git import git as run_git
from perf.git import output
from perf.harness.working_tree import ROOT
from perf.printable import shortened
from perf.workloads import PACKAGE

WORKING_TREE = "working tree"
_SUBMODULE = "160000 "  # mode
_ELSEWHERE = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.sparseCheckout=false")
"""Options of git for another folder than the user's checkout, whose settings these are."""


def resolve_arms(base: str | None, head: str | None, environments: tuple[Path, Path] | None) -> tuple[Arm, Arm]:
    """Return base and head: two commits, or one commit in two environments; the working tree if none is named.

    Raises `click.ClickException` with one line for an unknown commit or environment.
    """
    if environments:
        arm = resolve(base) if base else working_tree()
        first, second = (dataclasses.replace(arm, python=_python(path)) for path in environments)
        return first, second
    return resolve(base or ""), resolve(head) if head else working_tree()


def resolve(name: str) -> Arm:
    """Return the commit of this name. Raises `click.ClickException` with one line if git knows none, or several."""
    verified = ("rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")  # a range is none
    found = git("-c", "core.warnAmbiguousRefs=true", *verified)
    log = git("log", "-1", "--format=%H%n%s", found.stdout.decode().strip() or name, "--")
    if found.returncode != 0 or log.returncode != 0:
        output(ROOT, "rev-parse", "--git-dir")  # outside a repository no name would do
        raise click.ClickException(
            f"{name!r} was given; allowed: a commit of this repository (in a shallow clone, git fetch --unshallow "
            "fetches the others)"
        )
    if b"ambiguous" in found.stderr:  # git would take the tag
        raise click.ClickException(
            f"{name!r} was given, which is ambiguous, as of a tag and a branch; allowed: refs/heads/..., refs/tags/... "
            "or a hash"
        )
    commit, _, subject = log.stdout.decode(errors="replace").strip().partition("\n")
    return Arm(commit, shortened(subject))


def working_tree() -> Arm:
    """Return the package of the checkout, uncommitted changes included."""
    return Arm(WORKING_TREE, "uncommitted changes" if is_dirty() else resolve("HEAD").subject)


def is_dirty() -> bool:
    """Whether the package differs from HEAD's; ignored files do not count."""
    return bool(git("status", "--porcelain", "--", PACKAGE).stdout.strip())


def changed_paths(base: Arm, head: Arm) -> tuple[str, ...]:
    """Return the paths that differ between two arms, those that git ignores left out."""
    if base.commit == head.commit:
        return ()
    commits = [arm.commit for arm in (base, head) if arm.commit != WORKING_TREE]
    paths = git("diff", "--name-only", "--no-renames", "-z", *commits, "--").stdout.decode(errors="replace").split("\0")
    if WORKING_TREE in (base.commit, head.commit):
        others = git("ls-files", "--others", "--exclude-standard", "-z").stdout
        paths += others.decode(errors="replace").split("\0")
    return tuple(sorted(filter(None, paths)))


@contextlib.contextmanager
def exported(base: Arm, head: Arm) -> Iterator[tuple[Path, Path]]:
    """Yield a folder with the package of each arm, as `export` fills it, until the end of the block."""
    with scratch_folder("perf-gate-") as folder:
        places = folder / "base", folder / "head"
        for arm, place in zip((base, head), places, strict=True):
            export(arm, place)
        yield places


def export(arm: Arm, folder: Path, package: str = PACKAGE) -> None:
    """Put what a checkout of the arm has of a package into `folder`; nothing if the commit lacks it.

    The working tree is copied, so edits during the run are not measured; files that git ignores are left out. Raises
    `click.ClickException` for a submodule, whose files no arm would have.
    """
    folder.mkdir(parents=True, exist_ok=True)
    is_tree = arm.commit == WORKING_TREE
    entries = output(ROOT, *(("ls-files", "--stage", "--") if is_tree else ("ls-tree", "-r", arm.commit)), package)
    if modules := [line.split("\t")[-1] for line in entries.splitlines() if line.startswith(_SUBMODULE)]:
        raise click.ClickException(
            f"{modules[0]} is a submodule at {arm.commit[:12]}; allowed: a package whose files git keeps here"
        )
    if is_tree:
        listed = output(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", package)
        for name in filter(None, listed.split("\0")):
            if (source := ROOT / name).is_file():  # neither one that was deleted nor a link to nowhere, as editors make
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, folder / name)
        return
    index = folder.with_name(f"{folder.name}.index")  # the repository's own stays as it is
    for command in (("read-tree", arm.commit), ("checkout", "--", package)) if entries else ():
        done = run_git(ROOT, *_ELSEWHERE, f"--work-tree={folder}", *command, index=index)
        if done.returncode != 0:
            reason = done.stderr.decode(errors="replace").strip().splitlines() or ["?"]
            raise click.ClickException(f"{arm.commit[:8]} cannot be measured: {reason[-1]}")


def clone(arm: Arm, folder: Path) -> Path:
    """Clone the arm's commit for its tests; the working tree is used in place."""
    if arm.commit == WORKING_TREE:
        return ROOT
    output(ROOT, "clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(folder))
    output(folder, "checkout", "--quiet", "--detach", arm.commit)
    return folder


def git(*arguments: str) -> "subprocess.CompletedProcess[bytes]":
    """Run git in this checkout, whatever its status. Raises `click.ClickException` if git is not installed."""
    return run_git(ROOT, *arguments)


def _python(path: Path) -> str:
    """Return the Python of a virtual environment, or `path` itself if it is an executable."""
    executable = path / "bin" / "python" if path.is_dir() else path
    if not os.access(executable, os.X_OK):
        raise click.UsageError(f"--env {path} was given; allowed: a virtual environment, or its Python")
    return str(executable.absolute())  # not resolved: Python finds its environment by the link's location
