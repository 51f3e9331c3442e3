"""A killed run resumes where it stopped, and a damaged file or a full disk costs one clear line."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from perf.harness import records
from perf.harness.device import machine
from tests.throwaway import MACHINE, Repository

CASES = r"SmokeAttention.*\(128, 64, 'float32', 'forward', '(reference|sdpa)'\)"
NEXT = r"SmokeControls.*\('launch'\)"  # of the class after it


def repository_in(folder):
    repository = Repository(folder / "repository")
    repository.write_package(axis="[]")
    repository.commit("a commit")
    return repository


@pytest.fixture
def repository(tmp_path):
    return repository_in(tmp_path)


def visits(repository):
    folder = repository.folder / "perf" / "records"
    return [
        line
        for machine in records.machines(folder)
        for commit in records.commits(folder, machine)
        for line in records.read_lines(folder, machine, commit)
        if line["kind"] == "visit"
    ]


def results(repository):
    (path,) = (repository.folder / "perf" / "results" / MACHINE).glob("*-linked-*.json")
    return json.loads(path.read_text())["results"]


def command(*arguments):
    return [sys.executable, "-m", "asv", "run", "HEAD^!", "--machine", MACHINE, "-b", CASES, *arguments]


def watch_those_named_after(folder):
    """A file descriptor for each process with this folder in its command, readable once it has ended."""
    watched = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ")
            if os.fsencode(folder) in words:
                watched[os.pidfd_open(int(process.name))] = words
    return watched


class Resumed(NamedTuple):
    """A run that was killed, and asv's next run."""

    repository: Repository
    ended: dict[str, bool]
    """Command of each process of the killed asv -> whether it has ended."""

    before: list
    """Visits after the first run."""

    saved: dict
    """asv's results after the first run."""

    after: list


def kill_and_resume(folder):
    repository = repository_in(folder)
    run = subprocess.Popen(
        command("-b", NEXT),
        cwd=repository.folder,
        env=repository.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert run.stderr is not None
    while not any("Controls" in visit["benchmark"] for visit in visits(repository)):
        # asv's stderr carries the progress bar: every read waits for the run to move.
        assert run.stderr.read1(), "the run ended before its second class had a visit on file"
    of_asv = watch_those_named_after(repository.folder)
    run.kill()
    run.wait()
    run.stderr.close()
    ended = {}
    for process, words in of_asv.items():
        ended[words.decode()] = bool(select.select([process], [], [], 60)[0])
        os.close(process)
    before, saved = visits(repository), results(repository)
    again = repository.asv("run", "HEAD^!", "--machine", MACHINE, "-b", CASES, "-b", NEXT)
    assert again.returncode == 0, again.stdout + again.stderr
    return Resumed(repository, ended, before, saved, visits(repository))


@pytest.fixture
def resumed(once):
    return once("resumed", kill_and_resume)


def test_a_killed_asv_leaves_no_process_behind(resumed):
    assert resumed.ended, "asv has processes of its own"
    assert all(resumed.ended.values()), resumed.ended


def test_a_killed_run_goes_on_where_it_stopped(resumed):
    before, after = resumed.before, resumed.after
    assert len(before) > 0
    assert after[: len(before)] == before, "what was there is still there"
    assert len(after) == 3 * 4, "three cases, four visits each, none twice"
    assert len({(*line["params"].values(), line["visit"]) for line in after}) == len(after)


def test_a_killed_asv_has_saved_the_classes_that_had_ended(resumed):
    saved, at_the_end = resumed.saved, results(resumed.repository)
    assert saved and saved.keys() < at_the_end.keys()
    for name, row in saved.items():
        numbers = [value for value in row[0] if value == value]
        assert "SmokeAttention" in name and len(numbers) == 2
        assert [value for value in at_the_end[name][0] if value == value] == numbers


@pytest.mark.slow
def test_a_records_file_cut_in_half_is_one_clear_line_and_nothing_is_lost(resumed):
    (path,) = (resumed.repository.folder / "perf" / "records").glob("*/*.jsonl.gz")
    half = path.read_bytes()[: path.stat().st_size // 2]
    path.write_bytes(half)  # no other test reads it
    run = resumed.repository.asv("run", "HEAD^!", "--quick", "--machine", MACHINE, "-b", CASES, "-e")
    assert run.returncode == 2
    assert f"perf: {path} " in run.stdout
    assert "Traceback" not in run.stdout
    assert path.read_bytes() == half, "left for its owner to look at"


@pytest.mark.slow
def test_a_damaged_record_of_another_commit_is_one_warning_and_the_run_goes_on(repository):
    folder = repository.folder / "perf" / "records" / machine()["machine"]
    folder.mkdir(parents=True)
    damaged = folder / f"{'d' * 40}.jsonl.gz"
    damaged.write_bytes(b"cut off")
    run = repository.asv("run", "HEAD^!", "--quick", "--machine", MACHINE, "-b", CASES, "-b", NEXT)
    assert run.returncode == 0, run.stdout + run.stderr
    assert (run.stdout + run.stderr).count(f"{damaged} cannot be read: ") == 1, "once, and not for each class"
    assert damaged.read_bytes() == b"cut off"
    damaged.unlink()
    assert len(visits(repository)) == 6


@pytest.mark.slow
def test_a_results_file_that_is_none_is_set_aside_and_comes_back_from_the_records(repository):
    run = ("run", "HEAD^!", "--quick", "--machine", MACHINE, "-b", CASES)
    assert repository.asv(*run).returncode == 0
    (path,) = (repository.folder / "perf" / "results" / MACHINE).glob("*-*.json")
    whole, measured = path.read_bytes(), visits(repository)
    for left in ("", '{"commit_hash": "'):
        path.write_text(left)
        assert repository.asv("publish").returncode == 0, "everything else is published"
        again = repository.asv(*run)
        assert again.returncode == 0
        assert path.name in again.stdout + again.stderr and "Traceback" not in again.stdout + again.stderr
        assert left in [aside.read_text() for aside in path.parent.glob(f"{path.name}.broken*")]
        assert visits(repository) == measured, "nothing was measured again"
        assert json.loads(path.read_bytes())["results"].keys() == json.loads(whole)["results"].keys()


@pytest.fixture
def small_disk():
    """Makes a folder a disk of a MiB."""
    mounted = []

    def mount(folder):
        folder.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
        if not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("a small disk takes root's rights to mount one")
        mounted.append(folder)

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["results", "records"])
def test_asv_on_a_full_disk_loses_nothing_and_goes_on_when_there_is_room(repository, small_disk, folder):
    small_disk(repository.folder / "perf" / folder)
    run = ("run", "HEAD^!", "--quick", "-e", "--machine", MACHINE, "-b", CASES)
    assert repository.asv(*run).returncode == 0
    before = visits(repository)
    (path,) = (repository.folder / "perf" / "results" / MACHINE).glob("*-*.json")
    numbers = json.loads(path.read_bytes())["results"]["smoke.SmokeAttention.track_time"][0]
    filler = repository.folder / "perf" / folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as stream:
        while stream.write(bytes(4096)):
            pass

    full = repository.asv(*run)
    assert full.returncode in (1, 2)
    printed = full.stdout + full.stderr
    assert "Traceback" not in printed
    assert f"perf/{folder}" in printed
    assert json.loads(path.read_bytes())
    assert not list((repository.folder / "perf").rglob("*.tmp"))

    filler.unlink()
    assert repository.asv(*run).returncode == 0
    assert visits(repository) == before, "nothing was measured again"
    again = json.loads(path.read_bytes())["results"]["smoke.SmokeAttention.track_time"][0]
    assert [value is None for value in again] == [value is None for value in numbers]


@pytest.mark.slow
def test_an_unknown_commit_is_one_line(repository):
    done = repository.asv("run", "nothing^!", "--machine", MACHINE, "-b", CASES)
    assert done.returncode == 1
    assert "nothing^!" in done.stdout and "Traceback" not in done.stdout + done.stderr


FULL_DISK = """
import os, resource, sys
from pathlib import Path
from perf.harness.journal import Journal

resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))  # as a full disk: a write comes back short, then fails
journal = Journal(Path(sys.argv[1]), "m", "c" * 40)
for number in range(1000):
    journal.write({"kind": "visit", "session": f"{os.getpid()}", "number": number})
"""


def test_a_full_disk_is_one_clear_line_and_what_was_written_is_still_there(tmp_path):
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    for already in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr.startswith("perf: ") and str(tmp_path / "m") in done.stderr
        assert done.stderr.count("\n") == 1
        kept = [line["number"] for line in records.read_lines(tmp_path, "m", "c" * 40)]
        first = kept.index(0, 1) if already else len(kept)
        assert kept[:first] == list(range(first)), "whole lines, in order"
        assert first > 100
