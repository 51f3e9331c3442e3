"""Nothing under perf/ is timed without a check and a floor: modules with a stopwatch and exceptions are listed."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from perf.harness import ceilings
from perf.harness.bench import Bench
from perf.harness.ceilings import TooFast
from perf.harness.clock import Stop, WallClock
from perf.harness.comparison import ComparedArm
from perf.workloads.workload import Floor, Part, Workload, WrongResult, no_floor, no_result

ROOT = Path(__file__).resolve().parents[2]
PERF = {path.relative_to(ROOT).as_posix(): path for path in sorted((ROOT / "perf").rglob("*.py"))}

STOPWATCHES = re.compile(
    r"(^|\.)(perf_counter\w*|monotonic\w*|process_time\w*|timeit\w*|do_bench\w*|enable_timing|elapsed_time"
    r"|torch\.profiler|torch\.utils\.benchmark|device_activity|host_activity)(\.|$)"
)
"""Names in an import, an expression or a keyword by which something is timed."""

TAKING = ("batch", "visit", "alternate")
"""The methods and functions that take samples; a `Bench` has methods of these names."""

HOLDERS = {
    "perf/harness/clock.py": "the wall clock, and visits by any clock",
    "perf/harness/cuda_clocks.py": "the clocks of a GPU",
    "perf/harness/rank_work.py": "the clock of a rank",
    "perf/harness/workers/first_call.py": "the clock of a first call",
    "perf/harness/profiler.py": "what ran on the device",
    "perf/harness/measure.py": "cases: `examine` checks before samples, `Instruments.require_above_floor` after",
    "perf/harness/comparison.py": "every comparison: `_build_arm` checks, `Instruments.require_above_floor` after",
    "perf/harness/pair.py": "cases of two commits, the same way",
    "perf/harness/two_checkouts.py": "a visitor of a syntax tree",
    "perf/harness/sources.py": "visitors of a syntax tree",
    "perf/gate/compare.py": "a budget of time",
    "perf/gate/machine_code/run.py": "how long a run took",
    "perf/gate/measuring.py": "a budget of time",
    "perf/gate/mutation_score.py": "how long a run took",
    "perf/gate/self_test.py": "a budget of time",
    "perf/harness/bench.py": "studies: checks, and holds to floors",
    "perf/harness/ceilings.py": "the rates that floors are made of; of checked work",
    "perf/harness/explanation.py": "kernels of a case that was checked; no time is judged by it",
    "perf/harness/injection.py": "how fast the device spins, for a planted slow-down",
    "perf/harness/supervisor.py": "how long a run took",
    "perf/commands/case_profile.py": "a profile that is shown, with no number kept",
    "perf/studies/attention/comparing.py": "a function of this name that visits a cell of that worker",
    "perf/studies/clock.py": "do_bench, the other stopwatch that ours are set beside; held to the floor too",
    "perf/studies/kernels/profiling.py": "which kernels ran; the study checks the step and holds its busy time",
}

EXCEPTIONS = {
    "perf/harness/ranks.py": "the ranks check, and their floor is what they reply",
    "perf/workloads/attention.py": "before_backward runs nothing",
    "perf/workloads/collectives.py": "an all-reduce has no floor in what one GPU can do",
    "perf/workloads/controls.py": "an empty kernel",
    "perf/workloads/transformer_training.py": "a model of a user's own has an unknown floor",
    "perf/workloads/workload.py": "where the exceptions are defined",
}
"""Modules that may say `no_floor` or `no_result`, or build a workload from a reply."""


def stopwatches(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        elif isinstance(node, ast.keyword) and node.arg:
            names = [node.arg]
        else:
            names = []
        yield from filter(STOPWATCHES.search, names)
        if isinstance(node, ast.ClassDef):
            yield from (f"class of {ast.unparse(base)}" for base in node.bases if ast.unparse(base).endswith("Worker"))
    for call in calls_of(tree):
        receiver, _, name = ast.unparse(call.func).rpartition(".")
        if name in TAKING and receiver not in ("bench", "bench()"):
            yield f"{receiver}.{name}"


def calls_of(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def is_constant(node: ast.expr | None) -> bool:
    return node is None or (isinstance(node, ast.Lambda) and isinstance(node.body, ast.Constant))


def faults(tree: ast.AST) -> Iterator[str]:
    """Workloads whose check compares nothing, floors of nothing, and exceptions."""
    for call in calls_of(tree):
        name = ast.unparse(call.func).rpartition(".")[2]
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        if name == "Workload" and (is_constant(given.get("check")) or "floor" not in given):
            yield f"line {call.lineno}: a workload without a check or a floor"
        if name == "Floor" and not {"flops", "bytes_read", "launches", None} & given.keys():
            yield f"line {call.lineno}: a floor of nothing"
        if name in ("no_floor", "no_result"):
            yield f"line {call.lineno}: {name}"


def test_only_those_who_check_and_hold_have_a_stopwatch():
    found = {name: set(stopwatches(ast.parse(path.read_text()))) for name, path in PERF.items()}
    assert {name: names for name, names in found.items() if names and name not in HOLDERS} == {}
    assert {name for name in HOLDERS if not found[name]} == set(), "reasons for nothing"


def test_no_workload_is_without_a_check_or_a_floor_but_for_reasons_that_are_known():
    found = {name: list(faults(ast.parse(path.read_text()))) for name, path in PERF.items()}
    assert {name: lines for name, lines in found.items() if lines and name not in EXCEPTIONS} == {}


@pytest.mark.parametrize(
    "code",
    [
        "Workload(run=run, check=lambda: 0.0, floor=exact)",
        "Workload(run=run, floor=exact)",
        "workload.Workload(run=run, check=check)",
        "Floor()",
        "Floor(matmul_dtype='float32')",
        "no_floor('nobody knows')",
        "no_result('nobody knows')",
    ],
)
def test_a_way_around_is_found(code):
    assert list(faults(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "import time\ntime.perf_counter()",
        "from time import perf_counter",
        "from timeit import default_timer",
        "torch.cuda.Event(enable_timing=True)",
        "from perf.harness.clock import visit\nvisit(clock, work, 'warm')",
        "from perf.harness import clock\nclock.alternate(arms, 'warm', 3)",
        "WallClock().batch(work, 'warm', 1)",
        "class Mine(Worker): ...",
        "torch.profiler.profile()",
        "from triton.testing import do_bench",
    ],
)
def test_a_stopwatch_is_known_when_it_is_seen(code):
    assert list(stopwatches(ast.parse(code)))


def work(*, error: float = 0.0, flops: float = 1.0) -> Workload:
    def check() -> float:
        if error:
            raise WrongResult("off")
        return error

    parts = {"only": Part(lambda: None, Floor(flops=flops))}
    return Workload(run=lambda: None, check=check, floor=Floor(flops=flops), parts=parts)


def held(work: Workload) -> dict:
    return dict.fromkeys(("a", "b"), (WallClock(), work))


def taken(bench: Bench, arm: ComparedArm) -> dict:
    """The arm's reply, or its failure raised."""
    (reply,) = bench.take_turns([arm], "warm", lambda round_s: 2).values()
    if reply["status"] == "ok":
        return reply
    assert "samples_s" not in reply
    raise {"wrong": WrongResult, "too_fast": TooFast}[reply["status"]](reply["reason"])


STOP = Stop(min_samples=1, max_samples=2)
WAYS = {
    "batch": lambda bench, work: (bench.check(work), bench.batch(WallClock(), work, "warm", 2)),
    "visit": lambda bench, work: (bench.check(work), bench.visit(WallClock(), work, "warm", STOP)),
    "sample_in_turn": lambda bench, work: (bench.check(work), bench.sample_in_turn(held(work), "warm", 2)),
    "take_turns": lambda bench, work: taken(bench, ComparedArm("a", lambda: work, WallClock)),
    "first_visit": lambda bench, work: bench.first_visit(lambda: work, WallClock(), "warm", STOP),
    "laps": lambda bench, work: bench.laps(work, 2),
}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    slow = {"matmul_flops_per_s": {"float32": 1.0}, "copy_bytes_per_s": 1.0}
    monkeypatch.setattr(ceilings, "measure", lambda clock, kinds=None: slow)
    return Bench("cpu")


@pytest.mark.parametrize("way", WAYS)
def test_a_study_gets_no_time_of_wrong_work_and_none_below_the_floor(way: str, bench: Bench):
    assert WAYS[way](bench, work(flops=1e-12))
    with pytest.raises(WrongResult):
        WAYS[way](bench, work(error=1.0))
    with pytest.raises(TooFast):
        WAYS[way](bench, work(flops=1e6))


def test_a_study_cannot_time_what_it_has_not_checked(bench: Bench):
    for take in (
        lambda: bench.batch(WallClock(), work(), "warm", 1),
        lambda: bench.visit(WallClock(), work(), "warm", STOP),
        lambda: bench.sample_in_turn(held(work()), "warm", 1),
    ):
        with pytest.raises(AssertionError, match="nobody has checked"):
            take()


def test_an_exception_names_its_reason():
    for exception in (no_floor, no_result):
        with pytest.raises(AssertionError):
            exception("")
