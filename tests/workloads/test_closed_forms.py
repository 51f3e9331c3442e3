"""The closed forms that studies and pages share, against numbers of the handout and of a calculation by hand."""

import math

import pytest

from perf.workloads import closed_forms
from perf.workloads.sharded_optimizer import SHARDINGS


def test_the_bus_bandwidth_of_four_ranks_is_three_halves_of_the_algorithms() -> None:
    assert closed_forms.bandwidths(1e9, 4, 0.5) == (2e9, 3e9)


def test_the_bucket_model_is_recovered_from_what_follows_it() -> None:
    sweep = [(8e9, calls, 8e9 / (calls * 200e9) + calls * 20e-6) for calls in (8, 80, 320, 800)]
    fit = closed_forms.fit_buckets(sweep)
    assert fit == pytest.approx((200e9, 20e-6), rel=1e-6)
    assert closed_forms.fit_buckets(sweep[:2]) is None
    assert closed_forms.exposed_seconds(8e9, 40, (200e9, 20e-6)) == pytest.approx(1.8e-3)
    assert closed_forms.best_bucket_bytes(8e9, (200e9, 20e-6)) == pytest.approx(math.sqrt(8e9 * 200e9 * 20e-6))


def test_a_sweep_may_show_no_transfer_or_no_overhead() -> None:
    assert closed_forms.fit_buckets([(8e9, calls, calls * 20e-6) for calls in (8, 80, 800)]) == (
        math.inf,
        pytest.approx(20e-6),
    )
    bandwidth, overhead = closed_forms.fit_buckets([(8e9, calls, 8e9 / calls / 200e9) for calls in (8, 80, 800)]) or ()
    assert (bandwidth, overhead) == (pytest.approx(200e9), 0)


def test_the_formula_of_the_states() -> None:
    gib = {name: closed_forms.peak_state_bytes("xl", 2, name) / 2**30 for name in SHARDINGS}
    assert gib["none"] == pytest.approx(29.776, abs=1e-3)
    assert gib["sharded"] == gib["sharded_reducing"] == gib["torch"] == pytest.approx(22.33, abs=1e-2)
    assert closed_forms.fully_sharded_bytes("xl", 2) / 2**30 == pytest.approx(14.89, abs=1e-2)
    assert (
        closed_forms.gathered_bytes("xl", 2, "bfloat16", 2)
        == 2 * closed_forms.scattered_bytes("xl", 2, "bfloat16") - 64e6
    )
