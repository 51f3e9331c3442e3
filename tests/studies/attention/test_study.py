"""Attention side by side: which cells, who is asked, what fails, what the samples of several processes say."""

import json
import math
from dataclasses import replace

import click
import pytest
import torch

from perf.harness.comparison import Comparer
from perf.harness.instruments import Instruments
from perf.harness.status import describe
from perf.studies.attention import arms, comparing, results
from perf.studies.attention.cells import SCORES_BYTES, Cell, cells_of, min_bytes, narrowed, peers_of, scores_bytes
from perf.studies.attention.groups import GROUPS, document_of, groups_of
from perf.studies.speedups import FEWEST, Effort
from perf.workloads import attention_impls, build
from perf.workloads.attention import problem_of
from perf.workloads.attention_check import TOLERANCES
from tests.studies.running import invoke, run_study

GIB = 2**30
TINY = Cell("grid", 4, 2, 64, 16, "float32", True, "forward", "wall", "warm")
FOREIGN = """
import os
import torch
import torch.nn.functional as F

def attend(q, k, v, is_causal):
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

def wrong(q, k, v, is_causal):
    return attend(q, k, 1.5 * v, is_causal)

def without_memory(q, k, v, is_causal):
    raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB")

def deadly(q, k, v, is_causal):
    os._exit(1)

def silent(q, k, v, is_causal):
    attend(q, k, v, is_causal)
"""


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """The name of a module of a user's own."""
    folder = tmp_path / "somewhere"
    folder.mkdir()
    (folder / "throw_away_kernels.py").write_text(FOREIGN)
    monkeypatch.syspath_prepend(folder)
    return "throw_away_kernels"


def on_gpu(*groups, **wanted):
    return narrowed(list(cells_of({name: GROUPS[name] for name in groups})), **wanted)


def arm(impl, *samples_s, cell=TINY, role="against", status="ok"):
    """A row as measured: seconds of each process."""
    row = cell.axes() | {"impl": impl, "role": role, "status": status, "flops": 1e9}
    return row | {"samples_s": [list(process) for process in samples_s]}


def compared(ours_s, against_s, cell=TINY, against="sdpa_cudnn", ours="triton"):
    """Two rows of three processes in which each arm takes the same time."""
    mine, others = ([[seconds] * 2] * 3 for seconds in (ours_s, against_s))
    return [arm(ours, *mine, cell=cell, role="ours"), arm(against, *others, cell=cell)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="its defaults are a GPU's here")
def test_every_group_runs_on_a_cpu_and_says_so(tmp_path):
    done = invoke("attention", "--mask", "causal", "--rounds", "2", "--processes", "2", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "Measured on a CPU" in done.output
    rows = []
    for group in GROUPS:
        mine = json.loads((tmp_path / f"{document_of(group)}.json").read_text())["rows"]
        assert {row["group"] for row in mine} == {group}
        rows += mine
    assert {row["impl"] for row in rows} == {"pytorch", "sdpa_flash", "reference"}
    assert {row["status"] for row in rows} == {"ok"}
    assert all(0 < row["error"] <= TOLERANCES[row["dtype"]].row for row in rows)
    assert {row["dtype"] for row in rows if row["group"] == "random"} == {"bfloat16", "float32"}
    assert {(row["num_heads"], row["kv_heads"]) for row in rows if row["group"] == "gqa"} == {(4, 2)}
    assert {tuple(map(len, row["samples_s"])) for row in rows} == {(2, 2)}
    pictures = {path.stem for path in tmp_path.glob("*.png")}
    assert pictures == {f"attention-{name}-{mode}" for name, group in GROUPS.items() for mode in group.modes}


@pytest.mark.skipif(torch.cuda.is_available(), reason="its clock is a CPU's here")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_one_s_own_is_beside_the_others_and_what_fails_costs_them_nothing(tmp_path, foreign):
    one_cell = ["--group", "grid", "--seq-len", "64", "--mode", "forward", "--mask", "causal"]
    others = [f"{foreign}:{name}" for name in ("wrong", "deadly", "without_memory", "silent")] + [
        "sdpa_cudnn",
        "reference",
    ]
    arms = ["--impl", f"{foreign}:attend", *(word for name in others for word in ("--against", name))]
    rows, _ = run_study(
        tmp_path, "attention", *one_cell, *arms, "--rounds", "2", "--processes", "2", document="attention-grid"
    )
    assert [row["impl"] for row in rows] == [f"{foreign}:attend", *others]
    status = {row["impl"].rpartition(":")[2]: describe(row) for row in rows}
    assert (status["attend"], status["reference"]) == ("ok", "ok")
    failed = {"wrong": "wrong", "deadly": "crashed", "without_memory": "out of memory", "sdpa_cudnn": "unavailable"}
    assert status["silent"] == f"wrong: {foreign}:silent returned NoneType; allowed: out, a tensor shaped like q"
    assert {name: status[name].partition(":")[0] for name in failed} == failed
    assert [len(row["samples_s"]) for row in rows] == [2, 0, 0, 0, 0, 0, 2]


def test_the_grid_has_the_same_tokens_and_width_everywhere():
    cells = on_gpu("grid")
    assert len(set(cells)) == len(cells) == 5 * 2 * 2 * 3
    assert {cell.batch * cell.seq_len for cell in cells} == {32768}
    assert {cell.num_heads * cell.d for cell in cells} == {2048}
    assert {(cell.clock, cell.cache) for cell in cells} == {("cuda_events", "cold")}


@pytest.mark.parametrize("name", GROUPS)
def test_a_cell_is_a_case_of_its_workload(name):
    for cell in on_gpu(name):
        case = cell.case("triton", "cuda")
        assert (case.workload, case.clock, case.cache) == (GROUPS[name].workload, cell.clock, cell.cache)
        if name != "leaderboard":
            problem = problem_of(case.params)
            assert problem.shape == (cell.batch, cell.num_heads, cell.seq_len, cell.d)
            assert problem.kv_shape == (cell.batch, cell.kv_heads, cell.seq_len, cell.d)
            assert (problem.dtype, problem.is_causal) == (cell.dtype, cell.is_causal)
    for cell in cells_of({name: groups_of("cpu")[name]}):
        build(cell.case("pytorch", "cpu").workload, cell.case("pytorch", "cpu").params, "cpu").run()


def test_a_tiny_size_on_a_gpu_asks_the_same_of_fewer_and_shorter_cells():
    tiny = groups_of("cuda", tiny=True)
    assert tiny.keys() == GROUPS.keys()
    for name, group in GROUPS.items():
        few, all_of_it = list(cells_of({name: tiny[name]})), list(cells_of({name: group}))
        assert len(few) <= len(all_of_it)
        assert max(cell.seq_len for cell in few) <= 512
        for axis in ("dtype", "clock", "cache", "mode"):
            assert {getattr(cell, axis) for cell in few} <= {getattr(cell, axis) for cell in all_of_it}


def test_who_is_asked_by_default():
    (small,) = on_gpu("grid", seq_len=(2048,), d=(64,), mode=("forward",), mask=("full",))
    flash = ("sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "flex")
    eager = ("reference", "reference_compiled")
    assert scores_bytes(small, "reference") == 4 * GIB
    assert peers_of(small, "cuda") == (*flash, *eager)
    (large,) = on_gpu("grid", seq_len=(4096,), d=(64,), mode=("forward",), mask=("full",))
    assert peers_of(large, "cuda") == flash
    assert peers_of(on_gpu("leaderboard")[0], "cuda") == flash
    assert peers_of(on_gpu("float32")[0], "cuda") == ("sdpa_efficient", "flex", *eager)
    assert peers_of(on_gpu("short")[0], "cuda") == ("sdpa", *flash, *eager)
    assert {peers_of(cell, "cuda") for cell in on_gpu("gqa")} == {("sdpa_flash", "sdpa_cudnn")}
    for cell in on_gpu("random"):
        fused = ("sdpa_efficient",) if cell.dtype == "float32" else ("sdpa_flash", "sdpa_cudnn", "sdpa_efficient")
        is_short = 4 * cell.batch * cell.num_heads * cell.seq_len**2 <= SCORES_BYTES
        assert peers_of(cell, "cuda") == (*fused, *(["sdpa_math"] if is_short else []))
    for device in ("cuda", "cpu"):
        assert {impl for cell in on_gpu(*GROUPS) for impl in peers_of(cell, device)} <= set(attention_impls.IMPLS)


def test_eager_is_refused_by_its_bytes(monkeypatch):
    (cell,) = on_gpu("grid", seq_len=(16384,), d=(64,), mode=("forward_backward",), mask=("causal",))
    assert min_bytes(cell, "reference") == 4 * 32 * GIB
    assert min_bytes(replace(cell, mode="forward"), "reference") == 2 * 32 * GIB
    assert min_bytes(cell, "triton") == 0
    monkeypatch.setattr(arms, "memory_bytes", lambda: 100 * GIB)
    reply = arms.compared(Comparer(Instruments("cpu")), "cpu", cell, ["reference"], ["reference"], 2)["reference"]
    assert reply == {"status": "out_of_memory", "reason": "its scores take 128 GiB at least, this GPU has 100"}


@pytest.fixture
def worker(monkeypatch):
    """A measuring process' state without its greeting: ceilings so high that nothing is too fast."""
    worker = Comparer(Instruments("cpu"))
    worker.instruments.ceilings = {"matmul_flops_per_s": {"float32": math.inf}, "copy_bytes_per_s": math.inf}
    return worker


@pytest.fixture
def log(monkeypatch):
    """Implementations a, b, c, each writing its name wherever it is called."""
    calls: list[str] = []

    def named(name):
        def make(problem, device):
            attend = attention_impls.IMPLS["reference"](problem, device)
            return lambda *qkv: (calls.append(name), attend(*qkv))[1]

        return make

    for name in "abc":
        monkeypatch.setitem(attention_impls.IMPLS, name, named(name))
    return calls


def test_arms_are_built_warmed_up_and_then_sampled_in_turn_and_turned_round(worker, log):
    replies = arms.compared(worker, "cpu", TINY, ["b", "c", "a"], [], 4)
    assert "".join(log[-12:]) == "bcaacbbcaacb"
    assert "".join(log[:3]) == "bca", "each runs once, which may compile, before any is warmed up"
    assert {impl: len(reply["samples_s"]) for impl, reply in replies.items()} == {"b": 4, "c": 4, "a": 4}
    assert all("error" not in reply and reply["flops"] > 0 for reply in replies.values())


def test_rounds_in_which_the_gpu_slowed_itself_down_do_not_count(worker, log):
    class Nvml:
        calls = 0

        def sm_mhz(self):
            return 1980

        def throttling(self):
            self.calls += 1
            return ["power brake"] if self.calls in self.bad else []

    worker.instruments.nvml = Nvml()
    worker.instruments.nvml.bad = (3, 5)  # of two arms: rounds 1 and 2
    replies = arms.compared(worker, "cpu", TINY, ["a", "b"], [], 4)
    assert [len(reply["samples_s"]) for reply in replies.values()] == [2, 2]
    assert replies["a"]["sm_mhz"] == 1980
    worker.instruments.nvml.bad = range(100)
    for reply in arms.compared(worker, "cpu", TINY, ["a", "b"], [], 4).values():
        assert (reply["status"], reply["reason"]) == ("throttled", "the GPU slowed itself down: power brake")
        assert "samples_s" not in reply


def test_an_arm_that_breaks_the_device_is_answered_alone(worker, log, monkeypatch):
    def breaks(problem, device):
        worker.instruments.usable = False
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setitem(attention_impls.IMPLS, "b", breaks)
    replies = arms.compared(worker, "cpu", TINY, ["a", "b", "c"], [], 2)
    assert list(replies) == ["b"]
    assert replies["b"]["reason"] == "RuntimeError: an illegal memory access was encountered"


class FakeProcess:
    """A measuring process that logs its calls; `replies` overrides the reply of an arm."""

    device = "cpu"

    def __init__(self, **replies):
        self.log, self.replies = [], replies

    def take_turns(self, cell, impls, unchecked, rounds):
        self.log.append((cell.mode, "".join(impls), "".join(unchecked)))
        good = {"status": "ok", "reason": "", "flops": 1.0, "samples_s": [1.0] * rounds}
        replies = {impl: good | {"error": 1e-7} if impl in unchecked else good for impl in impls}
        return {impl: self.replies.get(impl, reply) for impl, reply in replies.items()}

    def end(self):
        self.log.append("end")


def plan_of(*modes):
    cells = [replace(TINY, mode=mode) for mode in modes]
    return {
        cell: [arm("a", cell=cell, role="ours", status="not_measured")]
        + [arm(impl, cell=cell, status="not_measured") for impl in "bc"]
        for cell in cells
    }


def test_every_process_visits_all_cells_with_another_arm_first_and_checks_once():
    plan, process = plan_of("forward", "backward"), FakeProcess()
    assert len(list(comparing.measure(process, plan, Effort(2, 9, 0.02)))) == FEWEST * 2
    assert process.log == [
        *[("forward", "abc", "abc"), ("backward", "abc", "abc"), "end"],
        *[("forward", "bca", ""), ("backward", "bca", ""), "end"],
        *[("forward", "cab", ""), ("backward", "cab", ""), "end"],
    ]
    for row in (row for rows in plan.values() for row in rows):
        assert (row["status"], row["samples_s"]) == ("ok", [[1.0, 1.0]] * 3)


def test_an_arm_that_failed_is_asked_no_more_and_a_hot_gpu_fails_nothing():
    hot = {"status": "throttled", "reason": "the GPU slowed itself down: power brake"}
    plan, process = plan_of("forward"), FakeProcess(b={"status": "wrong", "reason": "dq differs"}, c=hot)
    list(comparing.measure(process, plan, Effort(2, 3, 0.02)))
    (rows,) = plan.values()
    assert [describe(row) for row in rows] == [
        "ok",
        "wrong: dq differs",
        "throttled: the GPU slowed itself down: power brake",
    ]
    assert [entry[1] for entry in process.log if entry != "end"] == ["abc", "ca", "ac"]
    process.replies = {"c": {"status": "ok", "reason": "", "samples_s": [1.0]}}
    comparing.visit(process, TINY, rows, 2, 0)
    assert rows[2]["status"] == "ok"
    process.replies = {"c": hot}
    comparing.visit(process, TINY, rows, 2, 0)
    assert (rows[2]["status"], rows[2]["samples_s"]) == ("ok", [[1.0]])
    process.log.clear()
    rows[0]["status"] = "error"
    comparing.visit(process, TINY, rows, 2, 0)
    assert not process.log, "nothing is left to compare"


def test_nothing_is_measured_beside_other_work(monkeypatch):
    monkeypatch.delenv("PERF_PREFLIGHT", raising=False)
    process = FakeProcess()
    process.greeting = lambda: {"troubles": ["process 7 uses GPU 0: stop it first"]}
    with pytest.raises(click.ClickException, match="nothing is measured: process 7 uses GPU 0"):
        comparing.start(process, [])


def test_pairs_are_ours_with_each_of_the_others_of_the_same_cell():
    other = replace(TINY, mode="backward")
    rows = [arm("x", [1.0], role="ours"), arm("y", [2.0], role="ours"), arm("b", [3.0]), arm("c", status="wrong: no")]
    rows += compared(1.0, 2.0, cell=other)
    pairs = list(results.pairs(rows))
    assert [(pair["mode"], pair["ours"], pair["against"], pair["status"]) for pair in pairs] == [
        ("forward", "x", "b", "ok"),
        ("forward", "x", "c", "wrong: no"),
        ("forward", "y", "b", "ok"),
        ("forward", "y", "c", "wrong: no"),
        ("backward", "triton", "sdpa_cudnn", "ok"),
    ]
    assert (pairs[2]["ours_s"], pairs[2]["against_s"]) == ([[2.0]], [[3.0]])


def test_rows_of_a_file_without_kv_heads_are_of_as_many_as_q_has():
    rows = compared(1.0, 2.0)
    older = [{name: value for name, value in row.items() if name != "kv_heads"} for row in rows]
    assert list(results.pairs(older)) == list(results.pairs(rows))


def refused(q, k, v, is_causal):
    raise RuntimeError("no")


def test_a_study_that_compares_nothing_replaces_no_file(tmp_path):
    (tmp_path / "attention-leaderboard.json").write_text("earlier")
    ours = ["--impl", f"{__name__}:refused", "--against", "reference"]
    done = invoke("attention", "--size", "tiny", "--group", "leaderboard", *ours, "--out", str(tmp_path))
    assert done.exit_code == 1 and done.output.splitlines()[-1].startswith("Error: ")
    assert (tmp_path / "attention-leaderboard.json").read_text() == "earlier"


@pytest.mark.gpu
def test_ours_beside_the_others_on_a_gpu(tmp_path):
    cell = ["--group", "short", "--seq-len", "256", "--d", "64"]
    rows, _ = run_study(tmp_path, "attention", *cell, "--processes", "2", "--rounds", "4", document="attention-short")
    assert {row["impl"]: row["status"] for row in rows}["triton"] == "ok"
    assert sum(row["status"] == "ok" for row in rows) >= 5
    assert all(row["clock"] == "gpu_wall" for row in rows)


def test_what_the_cell_finds_too_slow_has_no_sample(worker, log):
    class Race(Cell):
        def too_slow(self, first_s):
            assert first_s.keys() == {"a", "b"} and min(first_s.values()) > 0
            return {"b": "slow"}

    cell = Race(**TINY.axes())
    replies = arms.compared(worker, "cpu", cell, ["a", "b"], ["b"], 2)
    assert "error" not in replies["a"], "it was checked in another process"
    assert len(replies["a"]["samples_s"]) == 2
    assert (replies["b"]["status"], replies["b"]["reason"]) == ("too_slow", "slow")
    assert 0 < replies["b"]["error"] < 1e-4 and "samples_s" not in replies["b"]
    assert "".join(log[-2:]) == "aa"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--impl", "magic"], "--impl 'magic' was given; allowed: "),
        (["--against", "json:no_such"], "--against 'json:no_such' was given; allowed: "),
        (["--impl", "sdpa", "--against", "sdpa"], "'sdpa' was given as --impl and as --against"),
        (["--seq-len", "3"], "--seq-len 3 was given; allowed here: "),
        (["--group", "short", "--group", "grid", "--mode", "forward", "--seq-len", "16"], "no cell is left: "),
        (["--group", "short", "--group", "grid", "--mode", "forward"], "no cell is left with --group short"),
        (["--group", "grid", "--seed", "0"], "--seed 0 was given; allowed: with --group random"),
        (["--group", "grid", "--count", "7"], "--count 7 was given; allowed: with --group random"),
        (["--clock", "cuda_graph"], "--clock cuda_graph was given; "),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="the groups of a CPU are meant")
def test_what_cannot_be_is_one_line_before_anything_is_measured(arguments, words, studies_folder):
    done = invoke("attention", *arguments)
    assert (done.exit_code, len(done.output.splitlines())) == (1, 1)
    assert done.output.startswith(f"Error: {words}")
    assert not list(studies_folder.glob("*"))


def test_the_best_of_the_others_and_the_means_are_those_of_the_pairs():
    grid = on_gpu("grid", seq_len=(1024, 2048), d=(64,), mode=("forward_backward",), mask=("full",))
    (board,) = on_gpu("leaderboard")
    rows = []
    for cell, cudnn_s, flash_s in zip([*grid, board], (1.0, 4.0, 0.8), (2.0, 0.5, 3.0), strict=True):
        rows += [*compared(1.0, cudnn_s, cell=cell), arm("sdpa_flash", *[[flash_s] * 2] * 3, cell=cell)]
    worst, mean, leaderboard = results.answers(rows, 0.02)
    assert "grid 16x32x2048x64 bfloat16, full, forward_backward: 0.500\u00d7" in worst
    assert "geometric mean of 2 cells: 2.000\u00d7" in mean
    assert "0.800\u00d7" in leaderboard and "sdpa_cudnn" in leaderboard
    assert list(results.answers(compared(1.0, 2.0), 0.02)) == [], "other modes are not in the mean over the grid"
    scattered = [*compared(1.0, 2.0), arm("flex", [1.0, 1.0], [1.02, 1.02], [1.05, 1.05])]
    assert "flex in grid 4x2x64x16 float32, causal, forward" in list(results.answers(scattered, 0.02))[-1]


def test_the_tables_have_the_best_of_the_others_and_each_failure_once():
    rows = []
    for mode in ("forward", "backward"):
        cell = replace(TINY, mode=mode)
        rows += [*compared(0.02, 0.04, cell=cell), arm("flex", *[[0.025] * 2] * 3, cell=cell)]
        rows += [arm("sdpa_flash", cell=cell, status="unavailable") | {"reason": "no"}]
    text = [" ".join(line.split()) for line in "\n".join(results.shown(rows)).splitlines()]
    assert [line.rpartition(" ")[2] for line in text if line.startswith("4x2x64x16 causal")] == ["flex", "flex"]
    (failure,) = (line for line in text if "sdpa_flash" in line)
    assert failure.startswith("sdpa_flash has no time in grid 4x2x64x16 float32, causal, forward and 1 more")


def test_a_lost_device_is_another_process_and_the_others_go_on():
    """The process answers for the arm that broke its device, alone."""
    good = {"status": "ok"}
    replies = [({"b": {"status": "error"}}, False), ({"a": good, "c": good}, True)]
    calls = []

    class Process(arms.Process):
        def ask(self, function, device, cell, impls, unchecked, rounds):
            calls.append(list(impls))
            return replies.pop(0)

        def end(self):
            calls.append("end")

    assert Process("cpu").take_turns(TINY, ["a", "b", "c"], [], 2) == {"a": good, "b": {"status": "error"}, "c": good}
    assert calls == [["a", "b", "c"], "end", ["a", "c"]]
