"""FlashAttention-2 in Triton as `torch.compile` takes it into its graphs."""

import torch
from torch import Tensor

from cs336_systems.attention.dropout import Dropout
from cs336_systems.attention.flash_plain import like
from cs336_systems.attention.inputs import check_inputs
from cs336_systems.attention.plans import as_4d, plan_backward, plan_forward, plan_of
from cs336_systems.attention.tile_choices import hopper_takes


class TracedPlan:
    """A `Plan` of one call, while its graph is traced."""

    def __init__(self, is_causal: bool, scale: float | None, fp32_products: str, dropout: Dropout | None):
        self._asked = is_causal, scale, fp32_products
        self._dropout = dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor, seed: Tensor | None) -> tuple[Tensor, Tensor]:
        """As `Plan`'s."""
        check_inputs(q, k, v, "triton")
        if hopper_takes(q, seed is not None):
            return _opaque_forward(q, k, v, *self._asked)
        return plan_forward(q, k, v, *self._asked, self._dropout)(q, k, v, seed)

    def backward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        grad_out: Tensor,
        dropout: Dropout | None,
        deterministic: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As `Plan`'s."""
        if not deterministic and hopper_takes(q, dropout is not None):
            return _opaque_backward(q, k, v, out, lse, grad_out, *self._asked)
        plan = plan_backward(q, k, v, out, grad_out, *self._asked, dropout, deterministic)
        return plan(q, k, v, out, lse, grad_out, None if dropout is None else dropout.seed)


# torch.compile writes plain Triton kernels into its own code, and cannot write those in Gluon: to it they are an
# operator whose shapes it knows. Named after the module, since two checkouts may be imported side by side.
_OPERATORS = __name__.replace(".", "_")


@torch.library.custom_op(f"{_OPERATORS}::forward", mutates_args=())
def _opaque_forward(
    q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float | None, fp32_products: str
) -> tuple[Tensor, Tensor]:
    return plan_of(q, k, v, is_causal, scale, fp32_products).forward(q, k, v, None)


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
    fp32_products: str,
) -> tuple[Tensor, Tensor, Tensor]:
    plan = plan_of(q, k, v, is_causal, scale, fp32_products)
    return plan.backward(q, k, v, out, lse, grad_out, None, deterministic=False)


@_opaque_backward.register_fake
def _backward_shapes(q: Tensor, k: Tensor, v: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (like(as_4d(x)).reshape(x.shape) for x in (q, k, v))
    return dq, dk, dv
