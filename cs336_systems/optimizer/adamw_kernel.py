"""Update one parameter by AdamW in one Triton kernel that reads and writes every element once."""

import math

import triton
import triton.language as tl
from torch import Tensor

from cs336_systems.launching import launching
from cs336_systems.memory import materialized
from cs336_systems.optimizer.adamw import AdamWRule

BLOCK = 2048
"""Elements per program: 16 of each tensor per thread, enough loads in flight to saturate memory bandwidth."""


@triton.jit
def adamw_kernel(
    weight_ptr,
    gradient_ptr,
    master_ptr,
    exp_avg_ptr,
    exp_avg_sq_ptr,
    step_ptr,
    n,
    lr,
    keep,  # 1 - lr * weight_decay; the host subtracts from 1 in float64
    one_minus_beta1,
    beta2,
    one_minus_beta2,
    log2_beta1,
    log2_beta2,
    eps,
    HAS_MASTER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Update one block. All tensors are float32, except `weight` and `gradient` in bfloat16 if there is a master."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    gradient = tl.load(gradient_ptr + offsets, mask=inside).to(tl.float32)
    value_ptr = master_ptr if HAS_MASTER else weight_ptr
    value = tl.load(value_ptr + offsets, mask=inside)
    exp_avg = tl.load(exp_avg_ptr + offsets, mask=inside)
    exp_avg_sq = tl.load(exp_avg_sq_ptr + offsets, mask=inside)

    # Computed in float64, because 1 - beta^step cancels in the first steps.
    step = tl.load(step_ptr).to(tl.float64)
    correction1 = (1.0 - tl.exp2(step * log2_beta1)).to(tl.float32)
    correction2 = (1.0 - tl.exp2(step * log2_beta2)).to(tl.float32)

    difference = gradient - exp_avg  # as torch.lerp: exact at either end
    nearer = one_minus_beta1 < 0.5
    exp_avg = tl.where(nearer, exp_avg + difference * one_minus_beta1, gradient - difference * (1 - one_minus_beta1))
    exp_avg_sq = exp_avg_sq * beta2 + gradient * gradient * one_minus_beta2
    root = tl.sqrt(exp_avg_sq) / tl.sqrt(correction2) + eps
    value = value * keep - lr / correction1 * exp_avg / root

    tl.store(exp_avg_ptr + offsets, exp_avg, mask=inside)
    tl.store(exp_avg_sq_ptr + offsets, exp_avg_sq, mask=inside)
    tl.store(value_ptr + offsets, value, mask=inside)
    if HAS_MASTER:
        tl.store(weight_ptr + offsets, value.to(weight_ptr.dtype.element_ty), mask=inside)


def adamw_update_triton(weight: Tensor, gradient: Tensor, state: dict[str, Tensor], rule: AdamWRule) -> None:
    """Run `adamw.adamw_update` as a kernel. It reads the step on the device, so it can be captured in a CUDA graph."""
    beta1, beta2 = rule.betas
    n = weight.numel()
    with launching(adamw_kernel, weight):
        adamw_kernel[(triton.cdiv(n, BLOCK),)](
            weight,
            materialized(gradient),
            state.get("master", weight),
            state["exp_avg"],
            state["exp_avg_sq"],
            state["step"],
            n,
            rule.lr,
            1 - rule.lr * rule.weight_decay,
            1 - beta1,
            beta2,
            1 - beta2,
            _log2(beta1),
            _log2(beta2),
            rule.eps,
            HAS_MASTER="master" in state,
            BLOCK=BLOCK,
        )


def _log2(beta: float) -> float:
    return math.log2(beta) if beta else -math.inf
