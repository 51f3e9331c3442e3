"""Merged shards equal a run that was not split."""

import json
import shutil
import subprocess
import sys

import click
import pytest

from perf.commands.merge import merge
from perf.harness import records
from perf.site import load
from tests.throwaway import MACHINE, Repository

SHARDS = (
    r"SmokeAttention.*\(128, 64, 'float32', 'forward', 'sdpa'\)|SmokeControls.*'copy'",
    r"SmokeAttention.*\(128, 64, 'float32', 'forward', 'reference'\)",
)


def measure_shards(folder):
    """A repository and the `perf` folders of two runs of its one commit, with different cases in each."""
    repository = Repository(folder / "repository")
    repository.write_package(axis="[]")
    repository.commit("a commit")
    shards = []
    for number, pattern in enumerate(SHARDS):
        run = repository.asv("run", "HEAD^!", "--quick", "--machine", MACHINE, "-b", pattern)
        assert run.returncode == 0, run.stdout + run.stderr
        shards.append(folder / f"shard-{number}")
        for name in ("results", "records"):
            shutil.move(repository.folder / "perf" / name, shards[-1] / name)
    return repository, shards


@pytest.fixture
def repository(once):
    return once("merge", measure_shards)[0]


@pytest.fixture
def shards(once):
    return once("merge", measure_shards)[1]


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


def test_merged_shards_hold_every_case_of_each(shards, tmp_path):
    for shard in shards:
        merge(shard, tmp_path)
    assert measured(tmp_path) == set.union(*map(measured, shards))
    rows = values(tmp_path)
    for name, row in rows.items():
        apart = [number for shard in shards for number in numbers(values(shard).get(name, [[]]))]
        assert sorted(numbers(row)) == sorted(apart), name
    attention = rows["smoke.SmokeAttention.track_time"]
    assert len(numbers(attention)) == 2
    for column in attention[5:11]:
        assert len([value for value in column if value is not None]) == 2, "statistics come with their number"


def test_merging_twice_changes_nothing(shards, tmp_path):
    for shard in shards:
        merge(shard, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    for shard in shards:
        merge(shard, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()} == before


def test_rows_of_a_benchmark_that_is_new_here_are_known_by_their_axes(shards, tmp_path):
    controls = "smoke.SmokeControls.track_time"
    known = json.loads((shards[0] / "results" / "benchmarks.json").read_text())
    (tmp_path / "results").mkdir()
    here = {name: entry for name, entry in known.items() if name != controls}
    here["smoke.SmokeAttention.track_time"] = here["smoke.SmokeAttention.track_time"] | {
        "pretty_name": "of this checkout"
    }
    (tmp_path / "results" / "benchmarks.json").write_text(json.dumps(here))
    merge(shards[0], tmp_path)
    found = json.loads((tmp_path / "results" / "benchmarks.json").read_text())
    assert found == here | {controls: known[controls]}
    assert set(load(tmp_path / "results")["benchmark"]) == {"smoke.SmokeAttention", "smoke.SmokeControls"}


def test_another_gpu_never_joins_a_series(shards, tmp_path):
    merge(shards[0], tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(shards[1], copy)
    path = copy / "results" / MACHINE / "machine.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"gpu": "another"}))
    with pytest.raises(click.ClickException, match="not one series"):
        merge(copy, tmp_path)


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


def test_the_command_says_what_it_merged(repository, shards, tmp_path):
    copy = tmp_path / "checkout"
    shutil.copytree(repository.folder, copy, ignore=shutil.ignore_patterns("results", "records", "__pycache__"))
    command = [sys.executable, "-m", "perf", "merge", *map(str, shards)]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.rpartition(": ")[2] for line in done.stdout.splitlines()] == ["2 files merged"] * 2
    assert measured(copy / "perf") == set.union(*map(measured, shards))

    refused = subprocess.run([*command[:4], str(tmp_path)], cwd=copy, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert refused.stderr.startswith("Error: ")
    assert len(refused.stderr.splitlines()) == 1


def command(repository, folder):
    return subprocess.run(
        [sys.executable, "-m", "perf", "merge", str(folder)],
        cwd=repository.folder,
        env=repository.environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("damage", ["unknown commit", "endless time", "no object", "no text"])
def test_what_is_no_result_of_a_commit_here_is_refused_and_nothing_is_written(repository, shards, tmp_path, damage):
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
    done = command(repository, folder)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not list((repository.folder / "perf").glob("results/*/*-*.json"))
