"""One measurement at a time."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perf.harness import lock
from perf.harness.lock import Busy, measuring, visible_gpus

HOLDER = """
import sys
from pathlib import Path
from perf.harness import lock
lock.FOLDER, lock.visible_gpus = Path(sys.argv[1]), lambda: sys.argv[2:]
with lock.measuring("python -m perf gate main"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put the locks into the test's folder, and make this process see these GPUs; none before the first call."""
    monkeypatch.setattr(lock, "FOLDER", tmp_path)

    def see(*gpus: str) -> None:
        monkeypatch.setattr(lock, "visible_gpus", lambda: list(gpus))

    see()
    return see


@contextlib.contextmanager
def held(folder: Path, *gpus: str) -> Iterator["subprocess.Popen[str]"]:
    """Yield a process that measures on these GPUs, until its input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder), *gpus], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder


def test_a_second_measurement_is_refused_with_the_name_of_the_first(tmp_path: Path) -> None:
    with held(tmp_path) as holder:
        refused = pytest.raises(Busy, match=rf"process {holder.pid}: python -m perf gate main")
        with refused, measuring("x"):
            pass
    with measuring("x"):
        pass


def test_locks_are_shared_whatever_a_user_calls_the_folder_for_temporary_files(tmp_path: Path) -> None:
    places = [
        subprocess.run(
            [sys.executable, "-c", "from perf.harness import lock; print(lock.FOLDER)"],
            env={name: value for name, value in os.environ.items() if name != "PERF_LOCKS"} | {"TMPDIR": str(folder)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for folder in (tmp_path, "/var/tmp")
    ]
    assert places == ["/tmp\n"] * 2


def test_a_folder_that_takes_no_lock_is_named_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a read-only or a full disk."""
    folder = tmp_path / "file"
    folder.touch()
    monkeypatch.setattr(lock, "FOLDER", folder)
    with pytest.raises(Busy, match=f"cannot take the lock {folder}/"), measuring("x"):
        pass
    with pytest.raises(Busy, match=f"cannot take the lock {folder}/"):
        lock.lock_checkout(folder)


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    with held(tmp_path) as holder:
        holder.kill()
        holder.wait()
    with measuring("x"):
        pass


@pytest.mark.parametrize("content", [b"[]", b"[" * 100_000, b"{", b"\xff"])
def test_a_note_that_anybody_may_have_written_names_nobody(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "note.json").write_bytes(content)
    assert lock._owner(tmp_path / "note.json") == ""


def test_who_waits_is_told_why_and_gets_it_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "PATIENCE_S", 0.05)
    with held(tmp_path) as holder:
        told: list[str] = []

        def wait(said: str) -> None:
            told.append(said)
            holder.stdin.close()  # type: ignore[union-attr]

        with measuring("x", wait=wait):
            assert "python -m perf gate main" in told[0]


def test_gpus_are_held_one_by_one(tmp_path: Path, see: Callable[..., None]) -> None:
    with held(tmp_path, "GPU-2", "GPU-1") as holder:
        see("GPU-0", "GPU-3")
        with measuring("x"):
            pass
        refused = pytest.raises(Busy, match=rf"runs on GPU-2 \(process {holder.pid}: ")
        see("GPU-0", "GPU-2")
        with refused, measuring("x"):
            pass
        see("GPU-0")
        with measuring("x"):
            pass  # what the refused one had taken is free again


def test_without_a_driver_no_gpu_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock.ctypes, "CDLL", _raises_os_error)
    assert visible_gpus() == []


@pytest.mark.gpu
def test_the_gpus_seen_are_torchs() -> None:
    import torch

    uuids = [f"GPU-{torch.cuda.get_device_properties(index).uuid}" for index in range(torch.cuda.device_count())]
    assert visible_gpus() == uuids


def _raises_os_error(name: str) -> None:
    raise OSError(f"{name}: cannot open shared object file")
