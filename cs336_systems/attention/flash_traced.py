"""FlashAttention-2 in the graphs of `torch.compile`: Triton kernels traced, Gluon kernels as opaque operators."""

import torch
from torch import Tensor

from cs336_systems.attention.hopper import hopper_takes
from cs336_systems.attention.inputs import check_inputs
from cs336_systems.attention.launch import like
from cs336_systems.attention.planning import as_4d, backward_request, choose_backward, choose_forward, plan_for
from cs336_systems.attention.request import Request


class TracedPlan:
    """Stand-in for a `Plan` while a graph is traced."""

    def __init__(self, request: Request):
        self.request = request

    def forward(self, q: Tensor, k: Tensor, v: Tensor, seed: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return out and lse, as `Plan.forward`."""
        check_inputs(q, k, v, "triton")
        if hopper_takes(self.request, q):
            return _opaque_forward(q, k, v, *self.request[:3])
        return choose_forward(self.request, q, k, v)(q, k, v, seed)

    def backward(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, grad_out: Tensor, seed: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return dq, dk, dv, as `Plan.backward`."""
        request = backward_request(self.request)
        if not request.deterministic and hopper_takes(request, q):
            return _opaque_backward(q, k, v, out, lse, grad_out, *request[:3])
        return choose_backward(request, q, k, v, out, grad_out)(q, k, v, out, lse, grad_out, seed)


# torch.compile traces plain Triton kernels into its own code, which it cannot do for Gluon: it gets an operator with
# known shapes. The operator is named after the module, since two checkouts may be imported side by side.
_OPERATORS = __name__.replace(".", "_")


@torch.library.custom_op(f"{_OPERATORS}::forward", mutates_args=())
def _opaque_forward(
    q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float | None, products: str
) -> tuple[Tensor, Tensor]:
    return plan_for(Request(is_causal, scale, products), q, k, v, None).forward(q, k, v, None)


@_opaque_forward.register_fake
def _forward_shapes(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    out = like(as_4d(q)).reshape(q.shape)
    return out, torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)


@torch.library.custom_op(f"{_OPERATORS}::backward", mutates_args=())
def _opaque_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    is_causal: bool,
    scale: float | None,
    products: str,
) -> tuple[Tensor, Tensor, Tensor]:
    plan = plan_for(Request(is_causal, scale, products), q, k, v, None)
    return plan.backward(q, k, v, out, lse, grad_out, None)


@_opaque_backward.register_fake
def _backward_shapes(q: Tensor, k: Tensor, v: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (like(as_4d(x)).reshape(x.shape) for x in (q, k, v))
    return dq, dk, dv
