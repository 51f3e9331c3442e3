"""Rings, and the maximum devices of each form of parallelism (Spring 2026, section 8), at the check values."""

from functools import partial

import pytest

from cs336_systems.accounting import collectives, parallelism

FLOPS, BANDWIDTH, D_MODEL, D_FF, TOKENS = 989e12, 450e9, 2560, 10_240, 65_536


def test_a_ring_sends_each_rank_nearly_the_tensor_once_or_twice():
    assert collectives.all_gather_bytes(8e9, 4) == 6e9
    assert collectives.all_reduce_bytes(8e9, 4) == 12e9
    assert collectives.bus_bandwidth(1e9, 2, 0.5) == 2e9
    assert collectives.bus_bandwidth(1e9, 4, 0.5) == 3e9


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_the_alternate_ring_takes_half_as_many_times_as_long_as_there_are_ranks(num_ranks):
    ring = collectives.all_reduce_seconds(1e9, num_ranks, BANDWIDTH)
    alternate = collectives.alternate_all_reduce_seconds(1e9, num_ranks, BANDWIDTH)
    assert alternate == pytest.approx(ring * num_ranks / 2)
    assert alternate == pytest.approx((num_ranks - 1) * 1e9 / BANDWIDTH)


def test_the_limits_are_those_of_the_check_values():
    assert parallelism.data_parallel_limit(TOKENS, FLOPS, BANDWIDTH) == pytest.approx(30.82, abs=5e-3)
    assert parallelism.tensor_parallel_limit(D_FF, FLOPS, BANDWIDTH, "backward") == pytest.approx(14.98, abs=5e-3)
    assert parallelism.tensor_parallel_limit(D_FF, FLOPS, BANDWIDTH, "forward") == pytest.approx(7.99, abs=5e-3)
    assert parallelism.two_dimensional_limit(TOKENS, D_FF, FLOPS, BANDWIDTH) == pytest.approx(246.2, abs=0.05)
    assert parallelism.two_dimensional_limit_in_sequence(TOKENS, D_FF, FLOPS, BANDWIDTH) == pytest.approx(
        72.1, abs=0.05
    )
    assert parallelism.data_parallel_limit(2048, FLOPS, BANDWIDTH) == pytest.approx(1.93, abs=5e-3)


@pytest.mark.parametrize(("tokens", "d_ff"), [(256, D_FF), (2048, D_FF), (TOKENS, D_FF), (TOKENS, 512), (10**7, 768)])
def test_no_split_with_a_device_along_each_axis_hides_more_in_sequence(tokens, d_ff):
    budget = 6 * tokens * d_ff * BANDWIDTH / FLOPS  # for 6f(N_F - 1) + 4B(N_T - 1)
    shares = [share / 10_000 for share in range(10_001)]
    best = max((1 + share * budget / (6 * d_ff)) * (1 + (1 - share) * budget / (4 * tokens)) for share in shares)
    limit = parallelism.two_dimensional_limit_in_sequence(tokens, d_ff, FLOPS, BANDWIDTH)
    assert limit == pytest.approx(best, rel=1e-6)
    assert limit <= parallelism.two_dimensional_limit(tokens, d_ff, FLOPS, BANDWIDTH)


def test_at_its_limit_communication_takes_as_long_as_the_math():
    def math(num_devices, which):
        return parallelism.math_seconds(TOKENS, D_MODEL, D_FF, num_devices, FLOPS, which)

    limit = parallelism.data_parallel_limit(TOKENS, FLOPS, BANDWIDTH)
    assert parallelism.data_parallel_seconds(D_MODEL, D_FF, limit, BANDWIDTH) == pytest.approx(math(limit, "backward"))
    for which in ("forward", "backward"):
        assert parallelism.fsdp_seconds(D_MODEL, D_FF, limit, BANDWIDTH, which) == pytest.approx(math(limit, which))
        limit_of_pass = parallelism.tensor_parallel_limit(D_FF, FLOPS, BANDWIDTH, which)
        assert parallelism.tensor_parallel_seconds(TOKENS, D_MODEL, limit_of_pass, BANDWIDTH) == pytest.approx(
            math(limit_of_pass, which)
        )


def test_both_axes_in_turn_take_as_long_as_the_math_and_no_other_split_allows_more_devices():
    limit = parallelism.two_dimensional_limit_in_sequence(TOKENS, D_FF, FLOPS, BANDWIDTH)
    budget = 6 * TOKENS * D_FF * BANDWIDTH / FLOPS + 6 * D_FF + 4 * TOKENS
    fsdp, tensor = budget / (12 * D_FF), budget / (8 * TOKENS)
    assert fsdp * tensor == pytest.approx(limit)

    def communication(fsdp, tensor):
        weights = parallelism.fsdp_seconds(D_MODEL, D_FF, fsdp, BANDWIDTH, "forward") / tensor
        outputs = parallelism.tensor_parallel_seconds(TOKENS, D_MODEL, tensor, BANDWIDTH) / fsdp
        return weights + outputs

    math = parallelism.math_seconds(TOKENS, D_MODEL, D_FF, limit, FLOPS, "forward")
    assert communication(fsdp, tensor) == pytest.approx(math)
    for factor in (0.8, 1.25):
        assert communication(fsdp * factor, tensor / factor) > math


@pytest.mark.parametrize(
    "form",
    [
        partial(parallelism.math_seconds, TOKENS, D_MODEL, D_FF, 8, FLOPS),
        partial(parallelism.fsdp_seconds, D_MODEL, D_FF, 8, BANDWIDTH),
        partial(parallelism.tensor_parallel_limit, D_FF, FLOPS, BANDWIDTH),
    ],
)
def test_a_pass_is_forward_or_backward(form):
    with pytest.raises(ValueError, match="which='both' was given; allowed: forward, backward"):
        form("both")
