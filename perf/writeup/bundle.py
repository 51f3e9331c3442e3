"""Bundle a submission: run the tests, then write writeup.pdf and code.zip."""

import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from perf.harness.working_tree import ROOT


def run_tests() -> int:
    """The exit status of the whole suite; its output is shown as it comes."""
    return subprocess.run([sys.executable, "-m", "pytest"], cwd=ROOT, check=False).returncode


def require_green(run: Callable[[], int], archive: Path) -> None:
    """Raises `click.ClickException` with one line if the tests fail; an archive of before is gone then."""
    archive.unlink(missing_ok=True)
    status = run()
    if status:
        raise click.ClickException(f"the tests failed (exit status {status}): nothing was bundled")


def files(root: Path) -> Iterator[Path]:
    """Relative paths of what git tracks, and of what is new and not ignored, in order.

    The course's script takes the folder and leaves out by suffix (*.txt, *.json, *.pt, ...), which drops fixtures that
    its own tests read. What git knows has neither caches nor results of a run in it, and all that the tests need.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        raise click.ClickException(f"code.zip holds what git tracks; {root} was given; allowed: a git checkout")
    names = {name for name in listed.stdout.decode("utf-8", "surrogateescape").split("\0") if name}
    for name in sorted(names):
        if (root / name).is_file():  # not one that was deleted since
            yield Path(name)


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
