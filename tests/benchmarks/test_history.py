"""The committed results belong to this repository's own history."""

import json
import re
import subprocess

import pytest

from tests.repositories import ROOT, needs_checkout

RESULTS, RECORDS = ROOT / "perf" / "results", ROOT / "perf" / "records"

# Per commit and machine. The attention grid of 726 cases takes 59 and 268 KB; a hundred such commits fit in a clone.
RESULTS_BUDGET, RECORDS_BUDGET = 256 * 2**10, 1024 * 2**10


def git(*arguments):
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def result_files():
    return [path for path in tracked(RESULTS) if path.suffix == ".json" and path.parent != RESULTS]


def tracked(folder):
    """Committed files: what was measured here since may be of a commit that is gone."""
    paths = (ROOT / line for line in git("ls-files", str(folder)).splitlines())
    return [path for path in paths if path.name != "machine.json"]


@needs_checkout
def test_every_measured_commit_is_an_ancestor_of_this_one():
    if git("rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("a shallow clone does not hold the history")
    history = set(git("rev-list", "HEAD").split())
    measured = {json.loads(path.read_text())["commit_hash"] for path in result_files()}
    measured |= {path.name.partition(".")[0] for path in tracked(RECORDS) if path.name.endswith(".jsonl.gz")}
    assert not measured - history


@needs_checkout
def test_results_hold_the_json_of_asv_alone():
    tracked = git("ls-files", "perf/results").splitlines()
    assert all(path.endswith(".json") for path in tracked)


@needs_checkout
def test_committed_records_are_folded():
    document = r"(gate|environment|self-test|mutations)/\w{16}\.json"
    kept = re.compile(rf"perf/records/(README\.md|[^/]+/(\w{{40}}\.jsonl\.gz|{document}))")
    tracked = git("ls-files", "perf/records").splitlines()
    assert [path for path in tracked if not kept.fullmatch(path)] == []


def test_results_of_a_machine_name_its_gpu_and_nothing_that_moves():
    for path in RESULTS.glob("*/machine.json"):
        machine = json.loads(path.read_text())
        assert machine["machine"] == path.parent.name
        assert machine["ram"] == machine["num_cpu"] == ""


def test_a_commit_keeps_to_its_budget():
    for path in result_files():
        assert path.stat().st_size <= RESULTS_BUDGET, path.name
    for path in RECORDS.glob("*/*.jsonl.gz"):
        assert path.stat().st_size <= RECORDS_BUDGET, path.name
