"""Cross-entropy of rows of logits, and its gradient in their place, by one Triton kernel."""

import triton
import triton.language as tl
from torch import Tensor

from cs336_systems.launching import launching

BLOCK = 4096
"""Logits per iteration, 16 per thread: 44 registers on Hopper, so five programs of a multiprocessor cover each other's
reductions."""

NUM_WARPS = 8
LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def cross_entropy_kernel(
    logits_ptr,
    targets_ptr,
    losses_ptr,
    stride,
    vocab_size,
    ignore_index,
    NEEDS_GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute the loss of one row, its statistics in float32, online over blocks of the vocabulary.

    With NEEDS_GRADIENT, then replace its logits by softmax - one-hot of the target, or by 0 if that is ignored.
    """
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * stride
    target = tl.load(targets_ptr + row)
    is_counted = target != ignore_index
    is_valid = (target >= 0) & (target < vocab_size)
    target_logit = tl.load(logits_ptr + target, mask=is_valid, other=float("nan")).to(tl.float32)

    # Finite, so that a block of -inf leaves exp(-inf - maximum) = 0 and not exp(-inf + inf).
    maximum = LOWEST
    total = 0.0
    for start in range(0, vocab_size, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        logits = tl.load(logits_ptr + columns, mask=columns < vocab_size, other=float("-inf")).to(tl.float32)
        larger = tl.maximum(maximum, tl.max(logits, 0))
        total = total * tl.exp(maximum - larger) + tl.sum(tl.exp(logits - larger), 0)
        maximum = larger

    loss = tl.log(total) - (target_logit - maximum)
    tl.store(losses_ptr + row, tl.where(is_counted, loss, 0.0))
    if NEEDS_GRADIENT:
        inverse = 1.0 / total
        for start in range(0, vocab_size, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            inside = columns < vocab_size
            logits = tl.load(logits_ptr + columns, mask=inside, other=0.0).to(tl.float32)
            gradient = tl.exp(logits - maximum) * inverse - tl.where(columns == target, 1.0, 0.0)
            gradient = tl.where(is_counted, gradient, 0.0)
            tl.store(logits_ptr + columns, gradient.to(logits_ptr.dtype.element_ty), mask=inside)


def cross_entropy_triton_(
    logits: Tensor, targets: Tensor, losses: Tensor, ignore_index: int, needs_gradient: bool
) -> None:
    """Run `linear_cross_entropy.cross_entropy_` as a kernel. The loss of a target outside the vocabulary is NaN."""
    if logits.shape[0]:
        with launching(cross_entropy_kernel, logits):
            cross_entropy_kernel[(logits.shape[0],)](
                logits,
                targets,
                losses,
                logits.stride(0),
                logits.shape[1],
                ignore_index,
                NEEDS_GRADIENT=needs_gradient,
                BLOCK=BLOCK,
                num_warps=NUM_WARPS,
            )
