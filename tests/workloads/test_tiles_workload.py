"""Kernels with given tiles are right and checked, and the tables name their entries."""

from types import SimpleNamespace

import pytest
import torch

from cs336_systems.attention import gpu, triton_plans
from cs336_systems.attention.hopper_tables import (
    HOPPER_BACKWARD,
    HOPPER_FLOAT32,
    HOPPER_FORWARD_FEW,
    HOPPER_FORWARD_LONG,
)
from perf.studies.attention.tiles.kernels import checked
from perf.workloads import attention_launches, attention_tiles, build
from perf.workloads.attention_kernels import KERNELS
from perf.workloads.attention_problem import BYTES, AttentionProblem, floor
from perf.workloads.attention_tiles import choice
from perf.workloads.workload import Unavailable, WrongResult

PLAIN = {"forward": "16x32x4x1", "dkdv": "32x16x4x1", "dq": "16x16x4x1", "at-once": "32x32x4x1", "split": "16x16x4x1x2"}
PARAMS = {"tokens": 64, "seq_len": 64, "d_model": 32, "d": 16, "dtype": "float32", "is_causal": True}

on_a_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="launches plain kernels in Triton's interpreter")


def work_of(kernel, numbers=None, **other):
    return build("attention_tiles", PARAMS | {"kernel": kernel, "tiles": numbers or PLAIN[kernel]} | other, "cpu")


@on_a_cpu
@pytest.mark.parametrize("kernel", PLAIN)  # all of them on the inputs of one mask, and then of the other
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
def test_every_plain_kernel_is_right_in_any_tiles(kernel, is_causal):
    work = work_of(kernel, is_causal=is_causal, d_model=16)  # one head
    expected = {"forward": {"out"}, "split": {"out"}, "dkdv": {"dk", "dv"}, "dq": {"dq"}, "at-once": {"dq", "dk", "dv"}}
    assert work.run().keys() == expected[kernel]
    assert 0 < work.check() < 1e-5


@on_a_cpu
@pytest.mark.parametrize("way", [0, 1])
@pytest.mark.parametrize(("kernel", "outputs"), [("forward-choice", {"out"}), ("backward-choice", {"dq", "dk", "dv"})])
def test_every_way_of_the_plain_kernels_is_right(kernel, outputs, way):
    work = work_of(kernel, str(way), tokens=128, seq_len=128, dtype="float16")
    assert work.run().keys() == outputs
    assert 0 < work.check() < 5e-3


@on_a_cpu
@pytest.mark.parametrize(("kernel", "way"), [*(("forward-choice", way) for way in "234"), ("backward-choice", "2")])
def test_a_way_that_this_machine_does_not_have_is_unavailable(kernel, way):
    with pytest.raises(Unavailable, match=r"compute capability 9\.0"):
        work_of(kernel, way)


@on_a_cpu
def test_the_tiles_are_those_that_were_given(monkeypatch):
    launched = []

    class Noting(triton_plans.Launch):
        def __init__(self, kernel, num_programs, scalars, constants):
            super().__init__(kernel, num_programs, scalars, constants)
            if "K_TILE_SIZE" in constants:
                sizes = [constants[name] for name in ("Q_TILE_SIZE", "K_TILE_SIZE", "num_warps", "num_stages")]
                launched.append((*sizes, constants.get("CHUNK_KEYS")))

    work_of("dq").run()  # the inputs are made in the tables' tiles, once
    monkeypatch.setattr(triton_plans, "Launch", Noting)
    for kernel in PLAIN:
        work_of(kernel)
    assert launched == [
        (16, 32, 4, 1, None),
        (32, 16, 4, 1, None),
        (16, 16, 4, 1, None),
        (32, 32, 4, 1, None),
        (16, 16, 4, 1, 32),
    ]


@on_a_cpu
def test_what_writes_nothing_is_wrong_though_the_memory_held_the_answer(monkeypatch):
    work_of("dq").check()
    monkeypatch.setattr(triton_plans.Launch, "__call__", lambda self, *tensors: None)
    with pytest.raises(WrongResult, match=r"dq .*nan"):
        work_of("dq").check()
    assert not torch.are_deterministic_algorithms_enabled()


@on_a_cpu
def test_parts_that_no_tile_divides_are_refused_and_one_part_is_not_split(monkeypatch):
    with pytest.raises(Unavailable, match="16 keys"):
        work_of("split", "32x16x4x1x4")
    monkeypatch.setattr(triton_plans, "split_forward", None)
    assert work_of("split", "16x16x4x1x1").check() < 1e-5


def test_the_floor_is_that_of_the_pass():
    problem = attention_tiles.problem_of(PARAMS)
    tensor = 64 * 32 * BYTES["float32"]
    for kernel, products in {"forward": 2, "dkdv": 4, "dq": 3, "at-once": 5}.items():
        found = attention_tiles._floor(KERNELS[kernel], problem)
        assert found.flops == pytest.approx(floor(problem, "forward").flops * products / 2)
        assert found.bytes_read >= 3 * tensor
    assert attention_tiles._floor(KERNELS["dkdv"], problem).bytes_written == 2 * tensor


@pytest.fixture
def hopper(monkeypatch):
    """The tables answer as on an H200."""
    monkeypatch.setattr(gpu, "multiprocessors", lambda device: 132)
    monkeypatch.setattr(gpu, "runs_gluon", lambda device: True)
    monkeypatch.setattr(gpu, "shared_bytes", lambda device: 227 * 2**10)


def problem(batch, heads, seq_len, d, dtype="bfloat16", kv_heads=None):
    return AttentionProblem((batch, heads), seq_len, d, dtype, is_causal=True, kv_heads=kv_heads)


@pytest.mark.usefixtures("hopper")
def test_the_entry_and_the_tiles_of_a_cell():
    assert choice("forward", problem(2, 16, 16384, 64), "meta") == ("FORWARD_TILES[64] bfloat16", "64x64x4x3")
    assert choice("dkdv", problem(2, 16, 512, 64, "float32"), "meta") == ("DKDV_TILES[64] float32", "32x128x8x1")
    assert choice("dq", problem(2, 16, 16384, 128), "meta") == ("DQ_TILES[128] bfloat16", "128x64x8x3")
    assert choice("dq", problem(1, 1, 4096, 128), "meta") == ("DQ_TILES[128] bfloat16, short grid", "64x64x4x3")
    assert choice("split", problem(1, 1, 4096, 64), "meta") == ("SPLIT_TILES", "64x64x4x3x4")
    assert choice("split", problem(1, 1, 4096, 16), "meta") == ("SPLIT_TILES", "64x64x4x3x8")
    assert choice("split", problem(1, 1, 1024, 64), "meta") == ("SPLIT_TILES", "64x64x4x3x4")
    assert choice("at-once", problem(1, 1, 1024, 64), "meta") == ("AT_ONCE_TILES", "64x64x4x3")
    for shape, table, numbers in (
        ((2, 32, 2048, 64), "HOPPER_FORWARD_MANY[64]", "64x4x2x4x0x0x1x0x1"),
        ((2, 16, 16384, 64), "HOPPER_FORWARD_LONG[64]", "128x2x1x3x0x1x0x0x1"),
        ((1, 16, 2048, 64), "HOPPER_FORWARD[64]", "128x2x2x2x1x0x1x0x1"),
        ((1, 8, 2048, 64), "HOPPER_FORWARD_FEW[64, True][3]", "128x2x1x1x0x1x0x0x2"),
    ):
        assert choice("hopper-forward", problem(*shape), "meta") == (table, numbers)
    assert choice("hopper-backward", problem(2, 16, 16384, 128), "meta") == ("HOPPER_BACKWARD[128]", "64x2x2")
    one_head = problem(1, 16, 4096, 128, "float32")
    assert choice("float32-backward", one_head, "meta") == ("HOPPER_FLOAT32[128, 3]", "1x232")
    assert choice("hopper-backward", one_head, "meta") is None
    assert choice("float32-forward", one_head, "meta") == ("HOPPER_FLOAT32[128, 3], alone", "1x232x1")
    four = problem(4, 16, 4096, 128, "float32")
    assert choice("float32-forward", four, "meta") == ("HOPPER_FLOAT32[128, 3]", "1x232x2")
    few_tiles = problem(1, 1, 8192, 128, "float32")
    assert choice("float32-forward", few_tiles, "meta") == ("HOPPER_FLOAT32[128, 3], alone", "1x232x1")
    for mode in ("forward", "backward"):
        few, many = ("8", "3") if mode == "forward" else ("1", "2")
        for cell, way in ((problem(1, 4, 512, 64), few), (problem(1, 32, 4096, 64), many)):
            entry = f"{mode}-choice 1x{cell.shape[1]}x{cell.seq_len}x64 bfloat16"
            assert choice(f"{mode}-choice", cell, "meta") == (entry, way)
        for cell, way in ((problem(1, 16, 64, 64, "float32"), "0"), (problem(1, 16, 2048, 64, "float32"), "2")):
            assert choice(f"{mode}-choice", cell, "meta")[1] == way
    assert choice("forward-choice", problem(1, 8, 1024, 80), "meta")[1] == "7"
    assert choice("forward-choice", problem(1, 32, 256, 64), "meta")[1] == "0"  # the plain one is faster there
    assert choice("forward-choice", problem(1, 1, 4096, 80), "meta")[1] == "1"
    assert choice("forward-choice", problem(1, 16, 8192, 64), "meta")[1] == "4"
    assert choice("forward-choice", problem(1, 8, 2048, 80), "meta")[1] == "7"
    assert choice("forward-choice", problem(1, 10, 2048, 80), "meta")[1] == "5"
    assert choice("backward-choice", problem(1, 8, 1024, 80), "meta")[1] == "2"
    assert choice("backward-choice", problem(1, 16, 4096, 16), "meta")[1] == "1"
    assert choice("backward-choice", problem(1, 16, 8192, 32), "meta")[1] == "0"
    few_rows = problem(1, 1, 256, 64, "float32")
    assert choice("forward-choice", few_rows, "meta")[1] == "0"
    assert choice("backward-choice", few_rows, "meta")[1] == "2"
    assert choice("float32-forward", problem(1, 16, 4096, 128), "meta") is None


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("name", KERNELS)
def test_what_the_tables_say_is_a_candidate(name):
    kernel = KERNELS[name]
    for batch, heads, seq_len, *kv_heads in kernel.shapes:
        for d in kernel.dims:
            for dtype in kernel.dtypes:
                _, present = choice(name, problem(batch, heads, seq_len, d, dtype, *kv_heads), "meta")
                assert checked(name, present) == present


@pytest.mark.usefixtures("hopper")
def test_the_numbers_of_a_candidate_reach_the_launchers_in_gluon(monkeypatch):
    plans = ("gluon_forward", "gluon_backward", "pieces_forward", "pieces_backward")
    launchers = SimpleNamespace(**{name: lambda *given: given[-1] for name in plans})
    monkeypatch.setattr(attention_launches, "gluon_plans", lambda: launchers)
    monkeypatch.setattr(attention_launches, "_forward_run", lambda plan, on: plan)
    monkeypatch.setattr(attention_launches, "_backward_run", lambda plan, on: plan)

    def told(kernel, numbers, dtype="bfloat16", d=64, kv_heads=None):
        of = problem(1, 4, 512, d, dtype, kv_heads)
        return KERNELS[kernel].make(of, attention_tiles._tensors(of, "meta"), numbers)

    assert told("hopper-forward", (128, 2, 1, 3, 0, 1, 0, 0, 1)) == HOPPER_FORWARD_LONG[64]
    assert told("hopper-forward", (128, 2, 1, 1, 0, 1, 0, 0, 2)) == HOPPER_FORWARD_FEW[64, True][3]
    assert told("forward-choice", (4,)) == HOPPER_FORWARD_LONG[64]
    assert told("forward-choice", (8,)) == HOPPER_FORWARD_FEW[64, True][3]
    assert told("hopper-backward", (64, 2, 1)) == HOPPER_BACKWARD[64]._replace(stages=2, ds_stages=1)
    shared = HOPPER_BACKWARD[64]._replace(splits=2, heads_at_once=16)
    assert told("backward-programs", (2, 16), kv_heads=2) == shared
    assert told("backward-programs", (2, 16)) == shared
    assert told("backward-programs", (2, 0), "float32") == HOPPER_FLOAT32[64, 3]._replace(splits=2)
    with pytest.raises(Unavailable, match="backward_heads_at_once"):
        told("backward-programs", (2, 16), "float32")
    assert told("float32-backward", (2, 216), "float32") == HOPPER_FLOAT32[64, 3]
    assert told("float32-forward", (2, 216, 1), "float32") == HOPPER_FLOAT32[64, 3]._replace(consumers=1)


def test_a_small_gpu_is_told_its_smaller_tiles_and_has_no_hopper_kernels(monkeypatch):
    monkeypatch.setattr(gpu, "shared_bytes", lambda device: 99 * 2**10)
    assert choice("forward", problem(2, 16, 512, 64), "meta") == ("FORWARD_TILES[64] bfloat16", "64x64x4x2")
    assert choice("hopper-forward", problem(2, 16, 16384, 64), "meta") is None
