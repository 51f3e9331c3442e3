"""Folders and files of a command that may be killed, or that nobody may write."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import pytest

from perf.files import refuse_unwritable, scratch_folder

HOLDER = """
import sys
from perf.files import scratch_folder
with scratch_folder("perf-x-") as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def holder(temporary: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        env=os.environ | {"TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_folder_is_there_for_as_long_as_it_is_needed(temporary: Path) -> None:
    with scratch_folder("perf-x-") as first, scratch_folder("perf-x-") as second:
        (first / "file").write_text("")
        assert first != second and second.is_dir()
    assert list(temporary.iterdir()) == []


def test_what_a_killed_process_left_goes_and_what_a_living_one_holds_stays(temporary: Path) -> None:
    other = temporary / "perf-other"
    other.mkdir()
    (temporary / "perf-x-link").symlink_to(other)
    with holder(temporary) as living, holder(temporary) as killed:
        assert living.stdout and killed.stdout and living.stdin
        held, left = (Path(one.stdout.readline().strip()) for one in (living, killed))
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert held.is_dir() and left.is_dir()
        with scratch_folder("perf-x-"):
            assert held.is_dir() and not left.exists()
        assert other.is_dir()
        living.stdin.close()


def test_what_cannot_be_written_is_known_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "report.json", Path("/proc/report.json")):
        with pytest.raises(click.ClickException, match="cannot be written"):
            refuse_unwritable(path)
    refuse_unwritable(tmp_path / "new" / "report.json")
    assert list((tmp_path / "new").iterdir()) == []
