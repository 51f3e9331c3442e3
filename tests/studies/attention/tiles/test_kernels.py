"""What is tried of each kernel, in which cells, and what is not worth a second sample."""

import pytest

from perf.studies.attention.tiles.kernels import (
    TileCell,
    candidates_of,
    cells_of,
    checked,
    problems_of,
    shape_of,
)
from perf.workloads.attention import problem_of
from perf.workloads.attention_kernels import KERNELS

CELL = TileCell("dq", 2, 16, 512, 64, "bfloat16", True, "backward", "cuda_events", "cold", "DQ_TILES[64]", "a")


@pytest.mark.parametrize("tiny", [False, True])
def test_every_kernel_has_candidates_that_can_be(tiny):
    for name in KERNELS:
        found = candidates_of(name, tiny=tiny)
        assert 1 < len(set(found)) == len(found) <= 100
        assert [checked(name, one) for one in found] == list(found)


@pytest.mark.parametrize(
    ("name", "candidate"),
    [
        ("forward", "64x64x4"),
        ("forward", "64x64x4x3x2"),
        ("forward", "64x64xfour"),
        ("forward", "64x64x4x-3"),
        ("forward", "64x64x4x0"),
        ("forward", "48x64x4x3"),
        ("forward", "64x8x4x3"),
        ("forward", "64x64x3x3"),
        ("forward", ""),
        ("split", "64x64x4x3x3"),
        ("hopper-forward", "128x2x1"),  # its one consumer would wait for others
        ("hopper-backward", "64x1x2"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(name, candidate):
    with pytest.raises(ValueError, match=f"^--candidate {candidate} was given; allowed for {name}: ") as refused:
        checked(name, candidate)
    assert f"{KERNELS[name].form}, as {KERNELS[name].candidates[0]}" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_cell_is_read_as_a_shape():
    assert shape_of("2x16x16384") == (2, 16, 16384)
    assert shape_of("1x64x2048x8") == (1, 64, 2048, 8)
    for wrong in ("2x16", "2x0x16", "axbxc", "1x2x3x4", "1x4x3x3", "1x4x3x2x1"):
        with pytest.raises(ValueError, match=f"--cell {wrong} was given; allowed: batch x heads x seq_len"):
            shape_of(wrong)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("name", KERNELS)
def test_a_cell_is_a_case_of_its_workload(name, device):
    for cell in cells_of(name, problems_of(name, [], [], device), device):
        case = cell.case("64x64x4x3", device)
        assert (case.workload, case.clock, case.cache) == ("attention_tiles", cell.clock, cell.cache)
        assert (case.params["kernel"], case.params["tiles"]) == (name, "64x64x4x3")
        assert problem_of(case.params).shape == (cell.batch, cell.num_heads, cell.seq_len, cell.d)
        assert problem_of(case.params).kv_shape == (cell.batch, cell.kv_heads, cell.seq_len, cell.d)


def test_shapes_that_are_given_take_the_place_of_a_kernels_own():
    forward, split = (list(problems_of(name, [(3, 4, 640)], [], "cuda")) for name in ("forward", "split"))
    assert {(*problem[:2], problem.seq_len) for problem in forward + split} == {(3, 4, 640)}
    assert {problem.dtype for problem in split} == {"bfloat16"}


def test_half_as_slow_again_is_too_slow_but_never_what_all_are_compared_with():
    first_s = {"a": 4e-3, "b": 1e-3, "c": 1.4e-3, "d": 1.6e-3}
    assert CELL.too_slow(first_s) == {"d": "1.6 ms at first, 1.60 of the fastest"}
    assert CELL.too_slow({}) == {}
    assert CELL.too_slow({"a": 4e-5, "b": 2e-4}) == {}  # the host may have been late
