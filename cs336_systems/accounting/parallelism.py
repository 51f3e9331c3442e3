"""Up to how many devices each form of parallelism hides its communication: a feed-forward of three matrices d x f.

B tokens a step, 16-bit numbers, rings (`collectives`), W bytes/s out of each device, C FLOP/s. Computation and
communication overlap unless a name says otherwise. Source: the course (Spring 2026, data_parallel_calcs, fsdp_calcs,
tp_calcs, fsdp_tp_calcs).
"""

from typing import Literal

from cs336_systems.accounting.collectives import all_gather_seconds, all_reduce_seconds

Pass = Literal["forward", "backward"]


def math_seconds(tokens: float, d_model: int, d_ff: int, num_devices: int, flops_per_s: float, which: Pass) -> float:
    """6 Bdf/N/C forward, three products; 12 Bdf/N/C backward, six. However the work is divided."""
    return (6 if which == "forward" else 12) * tokens * d_model * d_ff / num_devices / flops_per_s


def data_parallel_seconds(d_model: int, d_ff: int, num_devices: int, bandwidth: float) -> float:
    """12 (N - 1)/N df/W: the all-reduce of 6 df bytes of gradients, in the backward."""
    return all_reduce_seconds(6 * d_model * d_ff, num_devices, bandwidth)


def fsdp_seconds(d_model: int, d_ff: int, num_devices: int, bandwidth: float, which: Pass) -> float:
    """Forward 6 (N - 1)/N df/W, the weights' all-gather; backward twice that, with the gradients' reduce-scatter."""
    return (1 if which == "forward" else 2) * all_gather_seconds(6 * d_model * d_ff, num_devices, bandwidth)


def tensor_parallel_seconds(tokens: float, d_model: int, num_devices: int, bandwidth: float) -> float:
    """4 (N - 1)/N Bd/W in each pass: the all-reduce of 2 Bd bytes of outputs, or of the inputs' gradients."""
    return all_reduce_seconds(2 * tokens * d_model, num_devices, bandwidth)


def data_parallel_limit(tokens: float, flops_per_s: float, bandwidth: float) -> float:
    """1 + BW/C devices; FSDP's limit too, in both passes."""
    return 1 + tokens * bandwidth / flops_per_s


def tensor_parallel_limit(d_ff: int, flops_per_s: float, bandwidth: float, which: Pass) -> float:
    """1 + 3fW/(2C) devices forward, 1 + 3fW/C backward: whatever the batch."""
    return 1 + (1.5 if which == "forward" else 3) * d_ff * bandwidth / flops_per_s


def two_dimensional_limit(tokens: float, d_ff: int, flops_per_s: float, bandwidth: float) -> float:
    """(1 + BW/C)(1 + 3fW/(2C)) devices: FSDP along one axis, tensor parallelism along the other, forward."""
    return data_parallel_limit(tokens, flops_per_s, bandwidth) * tensor_parallel_limit(
        d_ff, flops_per_s, bandwidth, "forward"
    )


def two_dimensional_limit_in_turn(tokens: float, d_ff: int, flops_per_s: float, bandwidth: float) -> float:
    """K^2/(96 Bf) devices, K = 6 BfW/C + 6f + 4B: the two axes communicate one after the other.

    6f(N_F - 1) + 4B(N_T - 1) <= 6 BfW/C; the product N_F N_T is largest where each term is half of K:
    N_F = K/(12f), N_T = K/(8B).
    """
    budget = 6 * tokens * d_ff * bandwidth / flops_per_s + 6 * d_ff + 4 * tokens
    return budget**2 / (96 * tokens * d_ff)
