"""Bundle a submission: run the tests, then write writeup.pdf and code.zip."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path

import click

from perf.files import scratch_folder
from perf.git import git
from perf.harness.working_tree import ROOT

ARCHIVE = Path("code.zip")


def run_tests() -> int:
    """Run the whole suite, with its output shown as it comes, and return its exit status."""
    return subprocess.run([sys.executable, "-m", "pytest"], cwd=ROOT, check=False).returncode


def require_green(run: Callable[[], int]) -> None:
    """Raise `click.ClickException` with one line if the tests fail."""
    status = run()
    if status:
        raise click.ClickException(f"the tests failed (exit status {status}): nothing was bundled")


def require_complete(archive: Path) -> None:
    """Unpack the archive and collect its tests, which imports all that they import: 15 s before minutes of tests.

    Raises `click.ClickException` with one line if a module is missing, for example one that git ignores.
    """
    collect = ["-m", "pytest", "--collect-only", "-qq", "-n", "0", "-p", "no:cacheprovider"]
    with scratch_folder("perf-bundle-") as folder:
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)
        done = subprocess.run([sys.executable, *collect], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stdout.splitlines() + done.stderr.splitlines()
        reason = next((line[2:] for line in lines if line.startswith("E  ")), lines[-1] if lines else "it has no tests")
        raise click.ClickException(f"code.zip would not run its own tests: {reason.strip()}")


def files(root: Path) -> Iterator[Path]:
    """Yield the relative paths of what git tracks and of what is new and not ignored, in order.

    In an unpacked code.zip, which git does not know, the .gitignore alone decides. The course's script leaves out by
    suffix instead (*.txt, *.json, *.pt, ...), which drops fixtures that the tests read.

    Raises `click.ClickException` with one line if `root` is neither.
    """
    if (root / ".git").exists():
        listed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        if listed.returncode:
            reason = listed.stderr.decode(errors="replace").strip()
            raise click.ClickException(f"code.zip holds what git tracks, and git ls-files failed: {reason}")
        names = {name for name in listed.stdout.decode("utf-8", "surrogateescape").split("\0") if name}
        found: Iterable[Path] = map(Path, names)
    elif (root / ".gitignore").is_file():
        found = _not_ignored(root)
    else:
        raise click.ClickException(f"{root} was given; allowed: a git checkout, or an unpacked code.zip")
    for path in sorted(found, key=Path.as_posix):
        if (root / path).is_file():  # not one that was deleted since
            yield path


def _not_ignored(root: Path) -> Iterator[Path]:
    """Yield what the .gitignore at the root leaves, except virtual environments and the archive that was unpacked.

    Of git's language it reads names, with or without a wildcard, and paths from the root.
    """
    lines = (root / ".gitignore").read_text(encoding="utf-8").splitlines()
    patterns = [line.strip("/") for line in lines if line and not line.startswith("#")]

    def ignored(path: Path) -> bool:
        return any(fnmatch(path.name, pattern) or fnmatch(path.as_posix(), pattern) for pattern in patterns)

    for place, folders, names in os.walk(root):
        inside = Path(place).relative_to(root)
        folders[:] = [
            name for name in folders if not (ignored(inside / name) or Path(place, name, "pyvenv.cfg").exists())
        ]
        yield from (inside / name for name in names if not ignored(inside / name) and inside / name != ARCHIVE)


def zip_code(root: Path, archive: Path, left_out: Path) -> int:
    """Write `archive`; returns how many files are in it. `left_out` is a folder, where the bundle itself goes."""
    count = 0
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in files(root):
            whole = root / path
            if whole.resolve().is_relative_to(left_out.resolve()):
                continue
            entry = zipfile.ZipInfo(path.as_posix())  # of 1980: the same files make the same bytes
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (whole.stat().st_mode & 0o777) << 16
            packed.writestr(entry, whole.read_bytes())
            count += 1
    return count
