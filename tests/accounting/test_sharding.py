"""Memory and traffic of training with divided states, at the course's sizes."""

from functools import partial

import pytest

from cs336_systems.accounting import sharding
from cs336_systems.accounting.compute import parameters
from cs336_systems.configs import MODEL_CONFIGS

GIB = 2**30
XL, BIG = (parameters(MODEL_CONFIGS[size]) for size in ("xl", "2.7B"))


@pytest.mark.parametrize(
    ("num_parameters", "expected"),
    [(XL, (7.444, 14.888, 22.332, 29.776)), (BIG, (12.691, 25.38, 38.07, 50.77))],
    ids=["xl", "2.7B"],
)
def test_memory_at_the_three_moments(num_parameters, expected):
    results = sharding.states_by_phase(num_parameters, 2, "moments")
    whole = sharding.states_by_phase(num_parameters, 2, "nothing")
    assert list(results)[:2] == list(whole)[:2] == ["after init", "before step"]
    assert results["after init"] == whole["after init"] and results["before step"] == whole["before step"]
    every = [*results.values(), whole["after step"]]
    assert [one / GIB for one in every] == pytest.approx(expected, abs=5.5e-3)


@pytest.mark.parametrize(
    ("num_ranks", "expected"), [(2, (29.78, 22.33, 18.61, 14.89)), (8, (29.78, 16.75, 10.24, 3.72))]
)
def test_what_is_divided_decides_the_memory_of_a_rank(num_ranks, expected):
    results = [
        sharding.state_bytes(XL, num_ranks, divided) / GIB
        for divided in ("nothing", "moments", "gradients", "parameters")
    ]
    assert results == pytest.approx(expected, abs=5.1e-3)


def test_fsdp_saves_four_bytes_a_parameter_on_two_ranks():
    saved = sharding.state_bytes(BIG, 2, "moments") - sharding.state_bytes(BIG, 2, "parameters")
    assert saved == 4 * BIG
    assert (saved / GIB, saved / 1e9) == (pytest.approx(12.69, abs=5e-3), pytest.approx(13.63, abs=5e-3))
    assert sharding.state_bytes(BIG, 2, "parameters") / GIB == pytest.approx(25.38, abs=5e-3)
    for num_ranks in (2, 4, 8):
        less = sharding.state_bytes(BIG, num_ranks, "moments") - sharding.state_bytes(BIG, num_ranks, "parameters")
        assert less == pytest.approx(8 * BIG * (1 - 1 / num_ranks))


def test_the_courses_form_sends_half_as_much_again_as_zero():
    assert sharding.exchanged_elements(XL, "nothing") == 2 * XL
    assert sharding.exchanged_elements(XL, "moments", reduces_gradients=False) == 3 * XL
    assert sharding.exchanged_elements(XL, "moments") == 2 * XL
    assert sharding.exchanged_elements(XL, "parameters") == 3 * XL


@pytest.mark.parametrize(
    ("form", "divided"),
    [
        (partial(sharding.state_bytes, XL, 2), "weights"),
        (partial(sharding.exchanged_elements, XL), "weights"),
        (partial(sharding.states_by_phase, XL, 2), "weights"),
        (partial(sharding.states_by_phase, XL, 2), "parameters"),  # which are less than 4P from the start
    ],
)
def test_what_is_not_modelled_is_refused(form, divided):
    with pytest.raises(ValueError, match=f"divided='{divided}' was given; allowed: nothing, moments"):
        form(divided=divided)
