"""Files and scratch folders of commands that are killed or may not write."""

import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest

from perf.files import PROBE_BYTES, refuse_unwritable, replace_file, scratch_folder, write_measured

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
        held, left = (Path(process.stdout.readline().strip()) for process in (living, killed))
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
    with pytest.raises(click.ClickException, match="cannot be written: File name too long"):
        refuse_unwritable(tmp_path / ("long" * 100))
    refuse_unwritable(tmp_path / "new" / "newer" / "report.json")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_no_rename_takes_the_place_of_a_device_or_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "link", tmp_path / "dangling", tmp_path / "pipe", Path(os.devnull), tmp_path):
        with pytest.raises(click.ClickException, match="a regular one"):
            refuse_unwritable(path)
    refuse_unwritable(tmp_path / "target")
    assert (tmp_path / "target").read_text() == "old"


SMALL_DISK = """
import resource, sys
from pathlib import Path
from perf import files

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)  # as a full disk
files.{call}
"""


def on_a_small_disk(call: str, path: Path, size: int) -> "subprocess.CompletedProcess[str]":
    """A call in a process that can write so many bytes to any file; with its click error as the exit message."""
    script = SMALL_DISK.format(call=call).replace("files.", "try: files.", 1)
    script += "except Exception as error: sys.exit(f'{type(error).__name__}: {error}')\n"
    command = [sys.executable, "-c", script, str(path), str(size)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("call", "size"),
    [
        ("write_aside(Path(sys.argv[1]), 'new' * 9999)", 9999),
        ("refuse_unwritable(Path(sys.argv[1]))", PROBE_BYTES - 1),
    ],
)
def test_a_full_disk_is_one_line_leaves_nothing_and_keeps_what_was_there(tmp_path: Path, call: str, size: int) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    done = on_a_small_disk(call, path, size)
    assert done.stderr.startswith(f"ClickException: {path} cannot be written: ")
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    assert path.read_text() == "old"


def test_what_was_measured_is_elsewhere_if_it_cannot_be_kept(tmp_path: Path, temporary: Path) -> None:
    (tmp_path / "file").write_text("")
    whole = tmp_path / "whole.json"
    with pytest.raises(click.ClickException) as error:
        write_measured({tmp_path / "file" / "report.json": "measured", whole: "as well"})
    (saved,) = temporary.glob("perf-saved-*/report.json")
    assert str(saved) in error.value.message and saved.read_text() == "measured"
    assert whole.read_text() == "as well", "one that fails does not take the others along"


def test_what_was_measured_is_printed_if_no_disk_takes_it(tmp_path: Path) -> None:
    done = on_a_small_disk("write_measured({Path(sys.argv[1]): 'measured'})", tmp_path / "report.json", 0)
    assert done.returncode == 1
    assert done.stdout == "measured\n"


def test_of_many_writers_of_one_file_each_writes_a_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    contents = [bytes([letter]) * 9999 for letter in b"abcdefgh"]
    with ThreadPoolExecutor(len(contents)) as pool:
        for _ in range(20):
            list(pool.map(lambda content: replace_file(path, content), contents))
            assert path.read_bytes() in contents
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
