"""FlashAttention-2 in Triton and Gluon as opaque operators, for what records calls: graphs, checkpoints, fake tensors.

torch.compile can trace neither Gluon kernels nor Triton kernels with tuples among their arguments. It gets operators
with known shapes, which plan and launch at run time, as calls outside of graphs do.
"""

import math
from typing import Any

import torch
from torch import Size, Tensor
from torch.utils.flop_counter import register_flop_formula

from cs336_systems.attention.inputs import check_inputs
from cs336_systems.attention.launch import new_lse
from cs336_systems.attention.planning import new_like, plan_for
from cs336_systems.attention.request import Request, products_of

_NAMESPACE = __name__.replace(".", "_")  # the module's, since two checkouts may be imported side by side


@torch.library.custom_op(f"{_NAMESPACE}::forward", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seed: Tensor | None,
    is_causal: bool,
    scale: float | None,
    fp32_precision: str | None,
    dropout: float,
    deterministic: bool,
) -> tuple[Tensor, Tensor]:
    request = Request(is_causal, scale, products_of(q, fp32_precision), dropout, deterministic)
    return plan_for(request, q, k, v, seed).forward(q, k, v, seed)


@_forward.register_fake
def _forward_shapes(q: Tensor, k: Tensor, v: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    check_inputs(q, k, v, "triton")  # not while dynamo traces: it would trace no later call of the code that raised
    return new_like(q), new_lse(q)


@torch.library.custom_op(f"{_NAMESPACE}::backward", mutates_args=())
def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    seed: Tensor | None,
    is_causal: bool,
    scale: float | None,
    fp32_precision: str | None,
    dropout: float,
    deterministic: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    request = Request(is_causal, scale, products_of(q, fp32_precision), dropout, deterministic)
    return plan_for(request, q, k, v, seed).backward(q, k, v, out, lse, grad_out, seed)


@_backward.register_fake
def _backward_shapes(q: Tensor, k: Tensor, v: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    return new_like(q), new_like(k), new_like(v)


FORWARD = getattr(torch.ops, _NAMESPACE).forward.default
"""The operator that returns out and lse, for the policy of a selective checkpoint that keeps both."""

BACKWARD = getattr(torch.ops, _NAMESPACE).backward.default


@register_flop_formula(getattr(torch.ops, _NAMESPACE).forward)
def _forward_flops(q: Size, k: Size, *_: object, **__: object) -> int:
    """FLOPs of two products of every query and key, as torch counts its own attention, causal or not."""
    return 4 * math.prod(q) * k[-2]


@register_flop_formula(getattr(torch.ops, _NAMESPACE).backward)
def _backward_flops(q: Size, k: Size, *_: object, **__: object) -> int:
    """FLOPs of five products."""
    return 10 * math.prod(q) * k[-2]


class RecordedPlan:
    """Stand-in for a `Plan` where calls are recorded; `options` are the operators' last five arguments."""

    def __init__(self, *options: Any):
        self.options = options

    def forward(self, q: Tensor, k: Tensor, v: Tensor, seed: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return out and lse, as `Plan.forward`."""
        return FORWARD(q, k, v, seed, *self.options)

    def backward(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, grad_out: Tensor, seed: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return dq, dk, dv, as `Plan.backward`."""
        return BACKWARD(q, k, v, out, lse, grad_out, seed, *self.options)
