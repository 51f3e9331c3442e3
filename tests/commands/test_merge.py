"""Merged shards equal a run that was not split."""

import gzip
import itertools
import json
import math
import shutil
import subprocess
import sys

import click
import pytest
from filelock import FileLock

from perf.commands.merge import STARTED_AT, merge
from perf.harness import records
from perf.harness.journal import Journal
from perf.site import load
from perf.stored import PROFILE_COLUMN
from tests.asv_plugins.test_linked_environment import COMMITS, measure_commits
from tests.repositories import git
from tests.throwaway import MACHINE

SHARDS = ("sdpa", "reference")
"""The implementation in each shard."""


def split(perf, commit, shard, impl):
    """Write into `shard` what a run of this implementation alone leaves: every other cell as if it was not selected."""
    (path,) = (perf / "results" / MACHINE).glob(f"{commit[:8]}-*.json")
    document = json.loads(path.read_text())
    for row in document["results"].values():
        cells = [params[-1] == repr(impl) for params in itertools.product(*row[1])]
        for index in (0, *range(5, len(row))):
            absent = math.nan if index == 0 else None
            row[index] = [value if kept else absent for value, kept in zip(row[index], cells, strict=True)]
    folder = shard / "results" / MACHINE
    folder.mkdir(parents=True)
    (folder / path.name).write_text(json.dumps(document))
    shutil.copy(path.with_name("machine.json"), folder)
    shutil.copy(perf / "results" / "benchmarks.json", folder.parent)

    (machine,) = records.machines(perf / "records")
    journal = Journal(shard / "records", machine, commit)
    for line in records.read_lines(perf / "records", machine, commit, kinds=("session", "process", "visit")):
        if line["kind"] != "visit" or line["params"]["impl"] == impl:
            name = "id" if line["kind"] == "session" else "session"
            journal.write(line | {name: f"{line[name]}-{shard.name}"})
    journal.close()


@pytest.fixture(scope="module")
def whole(once):
    """The repository in which asv has measured, and its newest commit."""
    repository, commits, run = once("linked-environment", measure_commits)
    assert run.returncode == 0, run.stdout + run.stderr
    return repository, commits[COMMITS[-1]]


@pytest.fixture(scope="module")
def shards(whole, tmp_path_factory):
    """The `perf` folders of two runs of that commit, with another case in each."""
    repository, commit = whole
    folders = [tmp_path_factory.mktemp(f"shard-{number}") for number in range(len(SHARDS))]
    for folder, impl in zip(folders, SHARDS, strict=True):
        split(repository.folder / "perf", commit, folder, impl)
    return folders


@pytest.fixture
def checkout(whole, tmp_path):
    """A clone of that repository, in which nothing was measured."""
    git(tmp_path, "clone", "-q", str(whole[0].folder), "checkout")
    return tmp_path / "checkout"


def values(folder):
    (path,) = folder.glob(f"results/{MACHINE}/*-*.json")
    return json.loads(path.read_text())["results"]


def numbers(row):
    return [value for value in row[0] if value == value and value is not None]


def measured(folder):
    return {
        (result.benchmark, *result.params.values())
        for machine in records.machines(folder / "records")
        for commit in records.commits(folder / "records", machine)
        for result in records.read_commit(folder / "records", machine, commit)
    }


def test_merged_shards_hold_every_case_of_each(whole, shards, tmp_path):
    repository, _ = whole
    for shard in shards:
        merge(shard, tmp_path)
    assert measured(tmp_path) == set.union(*map(measured, shards))
    assert sum(map(len, map(measured, shards))) == len(measured(tmp_path)) == 2
    (path,) = (tmp_path / "results" / MACHINE).glob("*-*.json")
    unsplit = (repository.folder / "perf" / "results" / MACHINE / path.name).read_text()
    assert json.dumps(json.loads(path.read_text()), sort_keys=True) == json.dumps(json.loads(unsplit), sort_keys=True)
    rows = values(tmp_path)
    for name, row in rows.items():
        apart = [number for shard in shards for number in numbers(values(shard).get(name, [[]]))]
        assert sorted(numbers(row)) == sorted(apart), name
    attention = rows["smoke.SmokeAttention.track_time"]
    assert len(numbers(attention)) == 2
    for column in attention[5:11]:
        assert len([value for value in column if value is not None]) == 2, "statistics come with their number"


def test_a_benchmark_of_one_shard_alone_is_kept(shards, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(shards[1], copy)
    (path,) = copy.glob(f"results/{MACHINE}/*-*.json")
    document = json.loads(path.read_text())
    document["results"] = {"smoke.SmokeControls.track_time": next(iter(document["results"].values()))}
    path.write_text(json.dumps(document))
    for shard in (shards[0], copy):
        merge(shard, tmp_path)
    assert json.dumps(values(tmp_path)) == json.dumps(values(shards[0]) | document["results"])


def test_merging_twice_changes_nothing(shards, tmp_path):
    for shard in shards:
        merge(shard, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    for shard in shards:
        merge(shard, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()} == before


@pytest.mark.parametrize("started", [1000, -1000])
def test_of_two_numbers_of_a_cell_the_last_runs_is_kept(shards, tmp_path, started):
    shutil.copytree(shards[0], tmp_path / "again")
    (path,) = (tmp_path / "again").glob(f"results/{MACHINE}/*-*.json")
    document = json.loads(path.read_text())
    for row in document["results"].values():
        row[0] = [value and 2 * value for value in row[0]]
        row[3] += started
    path.write_text(json.dumps(document))
    for source in (shards[0], tmp_path / "again"):
        merge(source, tmp_path)
    last = values(tmp_path / "again" if started > 0 else shards[0])
    assert json.dumps(values(tmp_path)) == json.dumps(last)
    assert any(map(numbers, last.values()))


def test_the_profile_of_a_row_is_that_of_its_last_run(shards, tmp_path):
    """`asv run --profile` keeps one for the whole row."""
    shards = [shutil.copytree(shard, tmp_path / shard.name) for shard in shards]
    for shard, started, profile in zip(shards, (1e12, 2e12), ("Zmlyc3Q=", "c2Vjb25k"), strict=True):
        (path,) = (shard / "results" / MACHINE).glob("*-*.json")
        document = json.loads(path.read_text())
        (row,) = document["results"].values()
        document["results"] = {name: profiled(row, int(started), profile) for name in document["results"]}
        path.write_text(json.dumps(document))
    target = tmp_path / "perf"
    for shard in shards:
        merge(shard, target)
    (merged,) = (target / "results" / MACHINE).glob("*-*.json")
    (row,) = json.loads(merged.read_text())["results"].values()
    assert row[PROFILE_COLUMN] == "c2Vjb25k"
    assert sum(value == value for value in row[0]) == len(SHARDS), "and every cell of both"


def profiled(row, started, profile):
    row = row + [None] * (PROFILE_COLUMN + 1 - len(row))
    row[STARTED_AT], row[PROFILE_COLUMN] = started, profile
    return row


def test_an_interrupted_merge_goes_on_and_a_session_that_has_grown_is_completed(shards, tmp_path):
    merge(shards[0], tmp_path)
    (path,) = tmp_path.glob("records/*/*.jsonl.gz")
    machine, commit = path.parent.name, path.name.partition(".")[0]
    whole = records.read_lines(tmp_path / "records", machine, commit)
    for kept in (0, 1, len(whole) - 1):
        path.unlink()
        journal = Journal(tmp_path / "records", machine, commit)
        for line in whole[:kept]:
            journal.write(line)
        journal.close()
        merge(shards[0], tmp_path)
        assert records.read_lines(tmp_path / "records", machine, commit) == whole


def test_damaged_records_stop_a_merge_before_anything_is_written(shards, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(shards[0], copy)
    (path,) = copy.glob("records/*/*.jsonl.gz")
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(click.ClickException, match="cannot be read"):
        merge(copy, tmp_path / "here")
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("lines", ["", '{"kind":"session"}\n', '{"kind":"visit","session":"s"}\n'])
def test_records_of_another_form_stop_a_merge_too(shards, tmp_path, lines):
    copy = tmp_path / "copy"
    shutil.copytree(shards[0], copy)
    (path,) = copy.glob("records/*/*.jsonl.gz")
    path.write_bytes(gzip.compress(lines.encode()))
    with pytest.raises(click.ClickException, match=r"jsonl\.gz "):
        merge(copy, tmp_path / "here")
    assert not (tmp_path / "here").exists()


def test_rows_of_a_benchmark_that_is_new_here_are_known_by_their_axes(shards, tmp_path):
    attention, controls = "smoke.SmokeAttention.track_time", "smoke.SmokeControls.track_time"
    known = json.loads((shards[0] / "results" / "benchmarks.json").read_text())
    (tmp_path / "results").mkdir()
    here = {name: entry for name, entry in known.items() if name != attention}
    here[controls] = here[controls] | {"pretty_name": "of this checkout"}
    (tmp_path / "results" / "benchmarks.json").write_text(json.dumps(here))
    merge(shards[0], tmp_path)
    found = json.loads((tmp_path / "results" / "benchmarks.json").read_text())
    assert found == here | {attention: known[attention]}
    assert set(load(tmp_path / "results")["benchmark"]) == {"smoke.SmokeAttention"}


def test_rows_with_other_axes_than_here_are_published_by_the_axes_they_were_last_measured_with(shards, tmp_path):
    attention = "smoke.SmokeAttention.track_time"
    for shard in shards:
        merge(shard, tmp_path)
    known = json.loads((tmp_path / "results" / "benchmarks.json").read_text())
    newer = tmp_path / "newer"
    shutil.copytree(shards[0] / "results", newer / "results")
    (path,) = newer.glob(f"results/{MACHINE}/*-*.json")
    document = json.loads(path.read_text())
    row = document["results"][attention]
    row[3] += 1000
    document["commit_hash"] = document["commit_hash"][::-1]
    path.with_name(document["commit_hash"][:8] + path.name[8:]).write_text(json.dumps(document))
    path.unlink()
    grid = [[*axis, "'another'"] for axis in known[attention]["params"]]
    there = known | {attention: known[attention] | {"params": grid}}
    (newer / "results" / "benchmarks.json").write_text(json.dumps(there))
    (tmp_path / "results" / MACHINE / "0-half.json").write_text("{")  # no site shows it
    merge(newer, tmp_path)
    assert json.loads((tmp_path / "results" / "benchmarks.json").read_text()) == there
    merge(shards[1], tmp_path)
    assert json.loads((tmp_path / "results" / "benchmarks.json").read_text()) == there, "the older run"


def test_another_gpu_never_joins_a_series(shards, tmp_path):
    merge(shards[0], tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(shards[1], copy)
    path = copy / "results" / MACHINE / "machine.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"gpu": "another"}))
    before = {path: path.read_bytes() for path in (tmp_path / "results").rglob("*.json")}
    with pytest.raises(click.ClickException, match="not one series"):
        merge(copy, tmp_path)
    assert {path: path.read_bytes() for path in (tmp_path / "results").rglob("*.json")} == before


def test_another_version_of_a_benchmark_never_joins_a_series(shards, tmp_path):
    merge(shards[0], tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(shards[0], copy)
    (path,) = copy.glob(f"results/{MACHINE}/*-*.json")
    document = json.loads(path.read_text())
    for row in document["results"].values():
        row[2] = "another version"
    path.write_text(json.dumps(document))
    with pytest.raises(click.ClickException, match="grid or version"):
        merge(copy, tmp_path)


def test_a_folder_without_results_is_one_clear_line(tmp_path):
    with pytest.raises(click.ClickException, match="allowed: a folder"):
        merge(tmp_path, tmp_path)


def test_the_command_says_what_it_merged(checkout, shards, tmp_path):
    command = [sys.executable, "-m", "perf", "merge", *map(str, shards)]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.rpartition(": ")[2] for line in done.stdout.splitlines()] == ["2 files merged"] * 2
    assert measured(checkout / "perf") == set.union(*map(measured, shards))

    for folder in (tmp_path, checkout / "perf"):
        merge_it = [*command[:4], str(folder)]
        refused = subprocess.run(merge_it, cwd=checkout, capture_output=True, text=True, check=False)
        assert refused.returncode == 1
        assert refused.stderr.startswith("Error: ")
        assert len(refused.stderr.splitlines()) == 1


def test_a_merge_during_a_run_is_refused_because_the_run_would_undo_it(checkout, shards):
    environments = checkout / ".asv" / "env"
    environments.mkdir(parents=True)
    with FileLock(environments / "run.lock"):
        command = [sys.executable, "-m", "perf", "merge", str(shards[0])]
        refused = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    assert refused.returncode == 1 and "another asv measures" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert not (checkout / "perf" / "results" / MACHINE).exists()


@pytest.mark.parametrize("damage", ["unknown commit", "endless time", "no object", "no text"])
def test_what_is_no_result_of_a_commit_here_is_refused_and_nothing_is_written(checkout, shards, tmp_path, damage):
    folder = tmp_path / "shard"
    shutil.copytree(shards[0], folder)
    (path,) = folder.glob(f"results/{MACHINE}/*-*.json")
    text = path.read_text()
    document = json.loads(text)
    cells = next(iter(document["results"].values()))[0]
    cells[next(index for index, value in enumerate(cells) if value == value)] = 1e308
    damaged = {
        "unknown commit": text.replace(document["commit_hash"], "f" * 40).encode(),
        "endless time": json.dumps(document).encode(),
        "no object": b"[]",
        "no text": b"\xff" + text.encode(),
    }
    path.write_bytes(damaged[damage])
    command = [sys.executable, "-m", "perf", "merge", str(folder)]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not list((checkout / "perf").glob("results/*/*-*.json"))
