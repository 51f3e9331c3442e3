"""Maximum number of devices at which each form of parallelism hides its communication.

The model is a feed-forward of three matrices d x f in 16 bits on B tokens per step; collectives are rings
(`collectives`), W is the bandwidth out of each device and C its FLOP/s. Computation and communication overlap, except
in `two_dimensional_limit_in_sequence`. Source: the course (Spring 2026, data_parallel_calcs, fsdp_calcs,
tp_calcs, fsdp_tp_calcs).
"""

from typing import Literal, get_args

from cs336_systems.accounting.collectives import all_gather_seconds, all_reduce_seconds
from cs336_systems.checks import require_one_of

Pass = Literal["forward", "backward"]


def math_seconds(tokens: float, d_model: int, d_ff: int, num_devices: int, flops_per_s: float, which: Pass) -> float:
    """Time of the matmuls, however they are divided: 6 Bdf/N/C forward, 12 Bdf/N/C backward."""
    require_one_of(get_args(Pass), which=which)
    return (6 if which == "forward" else 12) * tokens * d_model * d_ff / num_devices / flops_per_s


def data_parallel_seconds(d_model: int, d_ff: int, num_devices: int, bandwidth: float) -> float:
    """Time of the backward's all-reduce of 6 df bytes of gradients: 12 (N - 1)/N df/W."""
    return all_reduce_seconds(6 * d_model * d_ff, num_devices, bandwidth)


def fsdp_seconds(d_model: int, d_ff: int, num_devices: int, bandwidth: float, which: Pass) -> float:
    """Time of the weights' all-gather, 6 (N - 1)/N df/W; the backward adds the gradients' reduce-scatter."""
    require_one_of(get_args(Pass), which=which)
    return (1 if which == "forward" else 2) * all_gather_seconds(6 * d_model * d_ff, num_devices, bandwidth)


def tensor_parallel_seconds(tokens: float, d_model: int, num_devices: int, bandwidth: float) -> float:
    """Time of a pass's all-reduce of 2 Bd bytes, of outputs or of the inputs' gradients: 4 (N - 1)/N Bd/W."""
    return all_reduce_seconds(2 * tokens * d_model, num_devices, bandwidth)


def data_parallel_limit(tokens: float, flops_per_s: float, bandwidth: float) -> float:
    """Maximum devices of data parallelism, and of FSDP in both passes: 1 + BW/C."""
    return 1 + tokens * bandwidth / flops_per_s


def tensor_parallel_limit(d_ff: int, flops_per_s: float, bandwidth: float, which: Pass) -> float:
    """Maximum devices at any batch: 1 + 3fW/(2C) forward, 1 + 3fW/C backward."""
    require_one_of(get_args(Pass), which=which)
    return 1 + (1.5 if which == "forward" else 3) * d_ff * bandwidth / flops_per_s


def two_dimensional_limit(tokens: float, d_ff: int, flops_per_s: float, bandwidth: float) -> float:
    """Maximum devices of FSDP along one axis and tensor parallelism along the other: (1 + BW/C)(1 + 3fW/(2C))."""
    return data_parallel_limit(tokens, flops_per_s, bandwidth) * tensor_parallel_limit(
        d_ff, flops_per_s, bandwidth, "forward"
    )


def two_dimensional_limit_in_sequence(tokens: float, d_ff: int, flops_per_s: float, bandwidth: float) -> float:
    """Maximum devices if the two axes communicate in sequence: K^2/(96 Bf) with K = 6 BfW/C + 6f + 4B.

    The condition is 6f(N_F - 1) + 4B(N_T - 1) <= 6 BfW/C. The product N_F N_T is largest if each term is half of K:
    N_F = K/(12f), N_T = K/(8B). An axis has at least one device: where its half of K allows less, the other axis alone
    allows the most.
    """
    budget = 6 * tokens * d_ff * bandwidth / flops_per_s + 6 * d_ff + 4 * tokens
    fsdp, tensor = budget / (12 * d_ff), budget / (8 * tokens)
    if min(fsdp, tensor) < 1:
        return max(
            data_parallel_limit(tokens, flops_per_s, bandwidth),
            tensor_parallel_limit(d_ff, flops_per_s, bandwidth, "forward"),
        )
    return fsdp * tensor
