"""asv finds exactly these benchmarks, and every selection selects what asv itself would."""

import ast
import importlib
import itertools
import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from perf import selection
from perf.harness import suite
from perf.harness.supervisor import FULL, QUICK
from perf.selection import SETS

ROOT = Path(__file__).resolve().parents[2]
SERIES = {
    f"{name}.{method}" for name, cls, _ in selection.asv_classes() for method in dir(cls) if method.startswith("track_")
}
"""The series of the repository's own discovery."""

CLASSES = sorted({name.rpartition(".")[0] for name in SERIES})


def instance(name):
    module, _, cls = name.partition(".")
    return getattr(importlib.import_module(f"perf.benchmarks.{module}"), cls)()


def configuration():
    from asv import util

    return util.load_json(str(ROOT / "asv.conf.json"), js_comments=True)


def test_asv_discovers_the_same_series_and_none_with_results_is_lost(tmp_path):
    """Discover as asv does: its runner imports perf/benchmarks in a process outside the repository."""
    import asv_runner

    runner = Path(asv_runner.__file__).parent.parent / "asv" / "benchmark.py"
    found = tmp_path / "found.json"
    command = [sys.executable, str(runner), "discover", str(ROOT / "perf" / "benchmarks"), str(found)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {benchmark["name"] for benchmark in json.loads(found.read_text())} == SERIES
    published = json.loads((ROOT / "perf" / "results" / "benchmarks.json").read_text())
    assert {name for name, about in published.items() if name != "version" and about} <= SERIES


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_writes_out_its_own_version_and_setup_cache(name):
    """asv keys a cache by the line of `setup_cache`, so classes that inherit one share its results."""
    cls = type(instance(name))
    assert {"version", "setup_cache", "params", "param_names"} <= vars(cls).keys()
    assert vars(cls)["setup_cache"].__module__ == cls.__module__


@pytest.mark.parametrize("name", CLASSES)
def test_axes_are_literals(name):
    """asv evaluates them again in every commit's environment and stores only the index of a value."""
    module, _, cls = name.partition(".")
    tree = ast.parse((ROOT / "perf" / "benchmarks" / f"{module}.py").read_text())
    (node,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls]
    axes = {
        target.id: statement.value
        for statement in node.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    assert ast.literal_eval(axes["params"])
    assert len(ast.literal_eval(axes["param_names"])) == len(ast.literal_eval(axes["params"]))


def test_the_grid_of_the_course_is_complete():
    cases = suite.cases_of(instance("attention.FlashAttention"))
    modes = ("forward", "backward", "forward_backward")
    course = set(itertools.product((2**n for n in range(7, 17)), (16, 32, 64, 128), ("bfloat16", "float32"), modes))
    for impl in ("triton", "reference", "sdpa"):
        assert course <= {tuple(case.params.values())[:4] for case in cases if case.params["impl"] == impl}
    assert {case.cache for case in cases} == {"cold"}


@pytest.mark.parametrize(
    "name", ["PyTorchAttention", "PyTorchAttentionSaved", "MultiHeadAttention", "Leaderboard", "FlashVariants"]
)
def test_the_other_grids_are_dense_and_name_what_the_workload_knows(name):
    from perf.workloads.attention import MODES
    from perf.workloads.attention_impls import IMPLS

    cases = suite.cases_of(instance(f"attention.{name}"))
    assert len({case.key for case in cases}) == len(cases)
    assert {case.params["impl"] for case in cases} <= IMPLS.keys()
    assert {case.params.get("mode", "forward_backward") for case in cases} <= set(MODES)
    assert {case.cache for case in cases} == {"cold"}


def test_an_implementation_of_a_commit_is_told_from_one_of_pytorch():
    from perf.workloads.attention_impls import OURS, PEERS

    of_commit = {
        impl for impl in OURS | PEERS if selection.runs_project_code("attention.FlashAttention", {"impl": impl})
    }
    assert of_commit == OURS.keys()


def test_the_papers_grid_is_32768_tokens_of_width_2048():
    from perf.workloads.attention import problem_of

    cases = suite.cases_of(instance("attention.MultiHeadAttention"))
    leading = {(case.params["seq_len"], case.params["d"], *problem_of(case.params).leading) for case in cases}
    assert leading == {
        (n, d, 32768 // n, heads) for n in (2**i for i in range(9, 15)) for d, heads in ((64, 32), (128, 16))
    }


def test_a_case_is_written_as_asv_writes_it():
    case = suite.cases_of(instance("attention.FlashAttention"))[0]
    assert case.key == "attention.FlashAttention(128, 16, 'bfloat16', 'forward', 'triton')"


@pytest.mark.parametrize(
    ("arguments", "patterns", "effort"),
    [
        ("run HEAD^!", [], FULL),
        ("run -b Smoke --quick", ["Smoke"], QUICK),
        ("run --bench=a -b 'b c' HEAD", ["a", "b c"], FULL),
        ("continuous -q main HEAD", [], QUICK),
        ("setup", [], FULL),
    ],
)
def test_selection_is_read_from_the_command_line_of_asv(arguments, patterns, effort, monkeypatch):
    from perf.asv_plugins import linked_environment

    environment = {}
    monkeypatch.setattr(sys, "argv", ["asv", *shlex.split(arguments)])
    monkeypatch.setattr(linked_environment, "_given", linked_environment._given.__wrapped__)
    stub = SimpleNamespace(_records="", run_executable=lambda *_, env: environment.update(env))
    linked_environment.LinkedEnvironment.run(stub, [])
    assert suite.selection(environment[suite.OPTIONS_VARIABLE]) == (patterns, effort)


@pytest.mark.parametrize("name", sorted(SETS))
def test_named_sets_select_what_asv_selects(name):
    from asv.benchmarks import Benchmarks

    class Configuration:
        benchmark_dir = "perf/benchmarks"

    ours = {}
    discovered = []
    for cls in CLASSES:
        benchmark = instance(cls)
        selected = [case for case in suite.cases_of(benchmark) if suite.is_selected(case, benchmark, [SETS[name]])]
        ours[cls] = len(selected)
        params = [list(map(repr, axis)) for axis in benchmark.params]
        discovered += [{"name": n, "params": params} for n in SERIES if n.rpartition(".")[0] == cls]
    asvs = Benchmarks(Configuration, discovered, regex=[SETS[name]])
    for full_name, indices in asvs.benchmark_selection.items():
        assert len(indices) == ours[full_name.rpartition(".")[0]], full_name
    assert any(ours.values())


def test_the_history_set_is_ours_and_one_control_in_at_most_60_cells():
    selected = [
        case
        for benchmark in map(instance, CLASSES)
        for case in suite.cases_of(benchmark)
        if suite.is_selected(case, benchmark, [SETS["history"]])
    ]
    assert 20 <= len(selected) <= 60
    assert {case.params.get("impl", "control") for case in selected} == {"triton", "control"}
    assert sum(case.benchmark == "controls.Controls" for case in selected) == 1


@pytest.mark.parametrize(("name", "attention", "controls"), [("history", 24, 1), ("quick", 6, 2)])
def test_the_sets_of_the_history_know_only_the_classes_they_began_with(name, attention, controls):
    """The set that measures a commit must not grow with new benchmarks."""
    selected = [
        (case.benchmark, case.params.get("impl"))
        for benchmark in map(instance, CLASSES)
        for case in suite.cases_of(benchmark)
        if suite.is_selected(case, benchmark, [SETS[name]])
    ]
    assert selected.count(("attention.FlashAttention", "triton")) == attention
    assert selected.count(("controls.Controls", None)) == controls
    assert {benchmark for benchmark, _ in selected} == {"attention.FlashAttention", "controls.Controls"}


def selected_by(pattern):
    return [
        case.key
        for benchmark in map(instance, CLASSES)
        for case in suite.cases_of(benchmark)
        if suite.is_selected(case, benchmark, [pattern])
    ]


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("name", ["history", "gpu"])
def test_every_case_is_in_exactly_one_shard(name, count):
    shards = [selected_by(selection.shard(SETS[name], number, count)) for number in range(1, count + 1)]
    assert sorted(itertools.chain(*shards)) == sorted(selected_by(SETS[name]))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_a_shard_of_nothing_selects_nothing():
    assert selected_by(selection.shard(r"nothing like this", 1, 2)) == []


def test_status_becomes_a_number_an_na_or_a_failure():
    from asv_runner.benchmarks.mark import SkipNotImplemented

    benchmark = instance("smoke.SmokeControls")
    key = "smoke.SmokeControls('copy')"

    def results(status, **extra):
        return {key: SimpleNamespace(status=status, reason="why", samples_s=(1.0,), peak_bytes=5, **extra)}

    assert suite.reported_time(benchmark, results("ok"), "copy") == {"samples": [1.0], "number": 1}
    assert suite.reported_peak_memory(benchmark, results("ok"), "copy") == 5
    for status in ("unavailable", "out_of_memory"):
        with pytest.raises(SkipNotImplemented, match=f"^{status.replace('_', ' ')}: why$"):
            suite.reported_time(benchmark, results(status), "copy")
    for status in ("wrong", "too_fast", "throttled", "error", "crashed", "hung"):
        with pytest.raises(SystemExit, match=r": why$"):
            suite.reported_time(benchmark, results(status), "copy")


def test_an_environment_that_cannot_tell_the_commit_is_refused(monkeypatch):
    monkeypatch.setenv("ASV_ENV_TYPE", "existing")
    with pytest.raises(SystemExit, match="'existing' was given; allowed: 'linked'"):
        suite.measure_class(instance("smoke.SmokeControls"))


def of_asv(monkeypatch, folder):
    """Set the environment variables of asv's process."""
    environment = {"ASV_ENV_TYPE": "linked", "ASV_ENV_DIR": folder, "ASV_COMMIT": "a" * 40}
    for name, value in (environment | {suite.RECORDS_VARIABLE: folder}).items():
        monkeypatch.setenv(name, str(value))


def test_a_reason_to_measure_nothing_is_said_where_asv_was_started(monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise SystemExit("perf: no room")

    of_asv(monkeypatch, tmp_path)
    monkeypatch.setenv(suite.PROGRESS_VARIABLE, str(tmp_path / "terminal"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(suite, "measure", refuse)
    with pytest.raises(SystemExit, match="no room"):
        suite.measure_class(instance("smoke.SmokeControls"))
    assert "perf: no room" in (tmp_path / "terminal").read_text().splitlines()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_class_on_a_machine_without_one_is_na_and_nothing_is_recorded(monkeypatch, tmp_path):
    from asv_runner.benchmarks.mark import SkipNotImplemented

    of_asv(monkeypatch, tmp_path)
    monkeypatch.setenv(suite.OPTIONS_VARIABLE, json.dumps({"bench": ["Controls.*'launch', 'cold'"]}))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # of the lock: no other test's run is waited for
    benchmark = instance("controls.Controls")
    results = suite.measure_class(benchmark)
    assert list(results) == ["controls.Controls('launch', 'cold')"]
    with pytest.raises(SkipNotImplemented, match="GPU"):
        suite.reported_time(benchmark, results, "launch", "cold")
    assert not list(tmp_path.rglob("*.jsonl*"))


def test_thresholds_are_disjoint():
    """asv takes the largest of all that match."""
    patterns = configuration()["regressions_thresholds"]
    for name in SERIES:
        assert sum(bool(re.match(pattern, f"{name}(1)@main")) for pattern in patterns) == 1, name


def test_local_plugins_have_their_dot():
    """Without it asv 0.6.6 ignores them silently."""
    assert all(name.startswith(".") for name in configuration()["plugins"])


def test_asv_is_the_version_whose_semantics_we_know():
    from importlib.metadata import version

    assert (version("asv"), version("asv_runner")) == ("0.6.6", "0.3.2")
