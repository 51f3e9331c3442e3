"""Real asv over a throw-away repository: every commit's number is made by that commit's own code.

The repository holds this working tree's `perf/` and `asv.conf.json`; `cs336_systems` differs from commit to commit, and
this working tree's own package is installed beside it in editable mode, as a developer has it.
"""

import json
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from perf.harness import records
from perf.harness.measure import package_digest
from tests.throwaway import MACHINE, ROOT, Repository

STALL_S = 0.1  # beside calls of under a millisecond: no load of this machine stands in for it or hides it
COMMITS = ("without a package", "planted slow-down, other tables", "fast")


def measure_commits(folder):
    repository = Repository(folder / "repository")
    commits = {COMMITS[0]: repository.commit(COMMITS[0])}
    for message, axis, stall_s in ((COMMITS[1], "[77, 1024]", STALL_S), (COMMITS[2], "[128, 512]", 0)):
        repository.write_package(axis=axis, stall_s=stall_s)
        commits[message] = repository.commit(message)
    pattern = r"SmokeAttention.*\(512, 64, 'float32', 'forward', '(reference|sdpa)'\)"
    run = repository.asv("run", "ALL", "--quick", "--machine", MACHINE, "-b", pattern)
    return repository, commits, run


@pytest.fixture
def measured(once):
    """The repository after an `asv run` over all its commits; commit hashes by message, and asv's output."""
    return once("linked-environment", measure_commits)


def times(repository, commit):
    return {
        result.params["impl"]: statistics.median(result.samples_s)
        for result in repository.case_results(commit)
        if result.samples_s
    }


def test_the_working_tree_is_installed_editable_beside_it():
    """The premise of this module: what asv must not measure is importable from here."""
    import cs336_systems

    assert Path(cs336_systems.__file__).is_relative_to(ROOT)


def test_a_planted_slow_down_is_seen_in_its_commit_and_in_no_other(measured):
    repository, commits, run = measured
    assert run.returncode == 0, run.stdout + run.stderr
    slow, fast = (times(repository, commits[name])["reference"] for name in COMMITS[1:])
    assert slow >= STALL_S
    peers = [times(repository, commits[name])["sdpa"] for name in COMMITS]
    assert max(fast, *peers) < STALL_S


def test_asv_stored_what_the_records_say(measured):
    repository, commits, _ = measured
    for name in COMMITS[1:]:
        stored = repository.result(commits[name])["results"]["smoke.SmokeAttention.track_time"]
        medians = [value for value in stored[0] if isinstance(value, float) and value == value]
        assert medians == pytest.approx(list(times(repository, commits[name]).values()), rel=1e-6)


def test_a_commit_without_the_package_is_na_with_that_reason(measured):
    repository, commits, run = measured
    by_impl = {result.params["impl"]: result for result in repository.case_results(commits[COMMITS[0]])}
    assert by_impl["reference"].status == "unavailable"
    assert by_impl["reference"].reason.endswith(" cs336_systems")
    assert by_impl["sdpa"].status == "ok"
    assert "n/a" in run.stdout


def test_a_table_of_the_package_changes_no_axis(measured):
    repository, commits, _ = measured
    axes = [repository.result(commits[name])["results"]["smoke.SmokeAttention.track_time"][1] for name in COMMITS[1:]]
    assert axes[0] == axes[1]
    assert axes[0][0] == ["128", "512"]


def test_each_measuring_process_imported_the_commits_own_package(measured, tmp_path):
    repository, commits, _ = measured
    folder = repository.folder / "perf" / "records"
    (machine,) = records.machines(folder)
    seen = set()
    for name, commit in commits.items():
        repository.git("worktree", "add", "-q", "--detach", str(tmp_path / commit), commit)
        package = tmp_path / commit / "cs336_systems"
        expected = package_digest(package) if package.exists() else ""
        lines = records.read_lines(folder, machine, commit)
        found = {line["package_digest"] for line in lines if line["kind"] == "process"}
        assert found == {expected}, name
        seen |= found
    assert len(seen) == len(COMMITS)


def test_the_map_of_what_a_row_runs_has_each_commits_own_code_and_a_peer_has_none_of_it(measured):
    repository, commits, _ = measured
    folder = repository.folder / "perf" / "records"
    (machine,) = records.machines(folder)
    for commit in commits.values():
        for line in records.read_lines(folder, machine, commit, kinds=("reach",)):
            ran = {name for name in line["needs"] if name.startswith("attention.")}
            is_ours = line["params"]["impl"] == "reference"
            assert ("attention.reference:scaled_dot_product_attention" in ran) == bool(ran) == is_ours
    of_ours = [records.read_lines(folder, machine, commits[name], kinds=("reach",)) for name in COMMITS[1:]]
    assert all(any(line["params"]["impl"] == "reference" for line in lines) for lines in of_ours), "each needs its own"


def test_only_the_selected_cases_were_measured(measured):
    repository, commits, _ = measured
    for commit in commits.values():
        cases = [(result.benchmark, result.params["impl"]) for result in repository.case_results(commit)]
        assert sorted(cases) == [("smoke.SmokeAttention", "reference"), ("smoke.SmokeAttention", "sdpa")]


def test_all_commits_are_published_into_one_series(measured):
    repository, *_ = measured
    configuration = repository.folder / "without-our-pages.json"  # which take longer, and have tests of their own
    whole = (repository.folder / "asv.conf.json").read_text(encoding="utf-8")
    configuration.write_text(whole.replace(', ".perf.asv_plugins.site"', ""), encoding="utf-8")
    assert "asv_plugins.site" not in configuration.read_text(encoding="utf-8")
    publish = repository.asv("publish", "--config", str(configuration))
    assert publish.returncode == 0, publish.stdout + publish.stderr
    (graph,) = (repository.folder / ".asv" / "html").glob("graphs/arch*/**/smoke.SmokeAttention.track_time.json")
    assert len(json.loads(graph.read_text())) == len(COMMITS)


def test_another_python_is_refused_in_one_line(measured):
    repository, *_ = measured
    run = repository.asv("run", "HEAD^!", "--machine", MACHINE, "-E", "linked:2.7", "--dry-run")
    assert run.returncode != 0
    assert "Traceback" not in run.stdout + run.stderr


def test_a_name_of_asvs_choice_is_refused_in_one_line(measured):
    """Results under it would lie apart from the records."""
    repository, *_ = measured
    run = repository.asv("run", "HEAD^!", "-b", "SmokeControls.*'copy'")
    assert run.returncode != 0
    assert "Traceback" not in run.stdout + run.stderr
    assert f"asv calls this machine {MACHINE}" in run.stdout + run.stderr


def test_an_environment_of_another_python_is_made_again(measured, tmp_path):
    repository, *_ = measured
    copy = tmp_path / "copy"
    shutil.copytree(repository.folder, copy, symlinks=True)
    (paths,) = (copy / ".asv" / "env").glob("*/lib/python*/site-packages/_outer_site_packages.pth")
    before = paths.read_text()
    paths.write_text("/gone/lib/python3.11/site-packages\n")
    command = [sys.executable, "-m", "asv", "setup"]
    subprocess.run(command, cwd=copy, env=repository.environment, capture_output=True, check=True)
    assert paths.read_text() == before


def test_options_in_one_are_read_as_asv_reads_them_and_a_dry_run_leaves_no_records(measured):
    repository, *_ = measured
    before = sorted((repository.folder / "perf").rglob("*"))
    run = repository.asv("run", "HEAD^!", "-nqeb", "SmokeControls.*'copy'", "--machine", MACHINE)
    assert run.returncode == 0, run.stdout + run.stderr
    numbers = re.findall(r"(\w+) +\d[\d.]*±", run.stdout)
    assert numbers == ["copy"], run.stdout
    assert sorted((repository.folder / "perf").rglob("*")) == before


def test_a_second_run_in_a_checkout_says_so_and_leaves_the_first_alone(measured):
    """It would put its own commit in the place of the one that is being measured."""
    repository, *_ = measured
    with FileLock(repository.folder / ".asv" / "env" / "run.lock"):
        refused = repository.asv("run", "HEAD^!", "--quick", "--machine", MACHINE, "-b", "SmokeControls.*'copy'")
    assert refused.returncode != 0
    assert "Traceback" not in refused.stderr
    assert str(repository.folder) in refused.stdout + refused.stderr
