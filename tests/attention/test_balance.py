"""How many heads the tiles of which are visited together, and that it is the kernels' own order that is balanced."""

import random
from types import SimpleNamespace

import pytest
import torch

from cs336_systems.attention.balance import balanced_turns, equal_groups, heads_in_turns, longest_program
from tests.attention.gluon_on_cpu import CURRENT, Program, launchers_on_cpu


def causal(tiles: int) -> tuple[int, ...]:
    """Work of a causal head's tiles."""
    return tuple(range(tiles + 1, 1, -1))


@pytest.mark.parametrize(
    ("heads", "fitting", "expected"), [(66, 59, 66), (180, 44, 45), (3, 8, 3), (7, 1, 1), (9, 6, 5)]
)
def test_no_group_is_a_small_rest(heads: int, fitting: int, expected: int) -> None:
    assert equal_groups(heads, fitting) == expected


def test_work_that_fits_whole_turns_is_balanced_as_far_as_it_can_be() -> None:
    for heads, tiles, programs in ((512, 8, 128), (256, 16, 128), (64, 64, 128)):
        at_once = heads_in_turns(heads, heads // 9, causal(tiles), programs)
        assert longest_program(heads, at_once, causal(tiles), programs) * programs == heads * sum(causal(tiles))


def test_any_work_is_balanced_to_a_few_percent() -> None:
    """85 heads of 1778 took 1.26 of cuDNN's time, with 38 heads at once of 75 that fit: as much as the longest did."""
    work = tuple(4 * tile + 1 for tile in range(7, 0, -1))
    ideal = 85 * sum(work) / 132
    assert longest_program(85, 38, work, 132) > 1.25 * ideal
    assert longest_program(85, heads_in_turns(85, 75, work, 132), work, 132) < 1.07 * ideal
    draw = random.Random(0)
    over = []
    for _ in range(50):
        heads, fitting, tiles = draw.randint(20, 600), draw.randint(4, 60), draw.randint(8, 60)
        at_once = heads_in_turns(heads, fitting, causal(tiles), 132)
        assert fitting // 2 <= at_once <= fitting * 3 // 2
        over.append(longest_program(heads, at_once, causal(tiles), 132) / (heads * sum(causal(tiles)) / 132))
    assert sum(over) / len(over) < 1.06 and max(over) < 1.3


@pytest.mark.parametrize(("heads", "fitting", "tiles"), [(1, 1, 512), (32, 3, 128), (512, 50, 8), (64, 25, 32)])
def test_more_programs_are_better_than_the_same_number_of_tiles_for_each(heads: int, fitting: int, tiles: int) -> None:
    """With 128 of 132 programs each would take as many tiles as any other, and 1.03 of the mean of 132."""
    programs, at_once = balanced_turns(heads, fitting, causal(tiles), (128, 132, 131, 130, 129))
    ideal = heads * sum(causal(tiles)) / 132
    assert longest_program(heads, at_once, causal(tiles), programs) < 1.025 * ideal
    assert balanced_turns(256, 16, causal(1), (128, 132)) == (128, 16)  # nothing is gained


@pytest.mark.parametrize(
    ("tiles", "expected"), [(0, 0), (1, 1), (132, 132), (133, 132), (256, 128), (2048, 128), (2560, 128), (16384, 132)]
)
def test_no_program_has_more_tiles_of_the_same_work_than_it_must(tiles: int, expected: int) -> None:
    """16384 tiles are 128 for each of 128 programs, and at most 125 for each of 132."""
    with launchers_on_cpu() as plans:
        assert plans.programs_of(torch.empty(1, 1, 64 * tiles, 64, device="meta"), 64)[0] == expected


@pytest.mark.parametrize(("heads", "at_once", "tiles", "programs"), [(5, 2, 3, 4), (7, 7, 4, 6), (1, 1, 5, 5)])
def test_the_kernels_take_the_tiles_in_the_order_that_is_balanced(
    heads: int, at_once: int, tiles: int, programs: int
) -> None:
    sizes = SimpleNamespace(queries=64 * tiles, heads=heads, all_heads=heads, heads_at_once=at_once)
    work = []
    with launchers_on_cpu() as plans:
        order = plans.flash_fwd_hopper_kernel.function.__globals__
        for number in range(programs):
            CURRENT.program = Program(number, programs)
            turns = range(int(order["turns_of"](sizes, 64)))
            first_rows = [int(order["tile_at"](turn, sizes, 64, True)[0]) for turn in turns]
            work.append(sum(row // 64 + 2 for row in first_rows))
    assert sum(work) == heads * sum(causal(tiles))
    assert max(work) == longest_program(heads, at_once, causal(tiles), programs)


def test_any_two_programs_of_one_tile_on_a_multiprocessor_have_the_same_work() -> None:
    sizes = SimpleNamespace(queries=64 * 8, heads=4, all_heads=4, heads_at_once=4)
    first_rows = []
    with launchers_on_cpu() as plans:
        order = plans.flash_fwd_hopper_kernel.function.__globals__
        for number in range(32):
            CURRENT.program = Program(number, 32)
            row, _, head = order["tile_at"](0, sizes, 64, True, True)
            first_rows.append((int(row), int(head)))
    assert len(set(first_rows)) == 32
    work = [row // 64 for row, _ in first_rows]
    assert {one + other for one, other in zip(work[:16], work[16:], strict=True)} == {7}
