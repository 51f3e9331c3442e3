"""FlashAttention-2 in Triton and Gluon: the autograd.Function, which runs each call by its plan."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from cs336_systems.attention.dropout import seed_of_call
from cs336_systems.attention.inputs import check_inputs
from cs336_systems.attention.operators import RecordedPlan
from cs336_systems.attention.planning import Plan, plan_for
from cs336_systems.attention.private import dispatch_mode_check, functorch_check, tracing_check
from cs336_systems.attention.request import Request, products_of
from cs336_systems.differentiation import require_one_derivative

_functorch_is_active = functorch_check()
_dispatch_mode_is_active = dispatch_mode_check()
_jit_traces = tracing_check()
_PLAIN = {Tensor, Parameter}


def _is_recorded(*tensors: Tensor) -> bool:
    """Whether a call is to run as an operator: in a graph, under a dispatch mode, or of tensors without storage."""
    if torch.compiler.is_compiling() or _dispatch_mode_is_active() or _jit_traces():
        return True
    return not _PLAIN.issuperset(map(type, tensors))


class _Algorithms(torch.autograd.Function):
    """Forward and backward of `FlashAttentionTriton` under torch's own `apply`, which torch's compiler takes."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        is_causal: bool = False,
        softmax_scale: float | None = None,
        fp32_precision: str | None = None,
        dropout_p: float = 0.0,
        dropout_seed: Tensor | None = None,
        deterministic: bool = False,
    ) -> Tensor:
        """Run Algorithm 1."""
        scale = None if softmax_scale is None else float(softmax_scale)
        seed = seed_of_call(dropout_p, dropout_seed, q.device)
        ctx.options = is_causal, scale, fp32_precision, dropout_p, deterministic
        plan: Plan | RecordedPlan
        if _is_recorded(q, k, v):
            if q.is_nested or k.is_nested or v.is_nested:
                check_inputs(q, k, v, "triton")  # no operator takes them
            plan = RecordedPlan(*ctx.options)
        else:
            request = Request(is_causal, scale, products_of(q, fp32_precision), dropout_p, deterministic)
            plan = plan_for(request, q, k, v, seed)
        out, lse = plan.forward(q, k, v, seed)
        # Only tensors are saved: the course's tests look at the shape of everything that is.
        ctx.save_for_backward(q, k, v, out, lse, *(() if seed is None else (seed,)))
        ctx.plan = plan
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        """Run Algorithm 2."""
        require_one_derivative("flash attention", "impl='reference'")
        q, k, v, out, lse, *seed = ctx.saved_tensors
        # Compiled autograd records the backward of a forward that was not.
        plan = RecordedPlan(*ctx.options) if _is_recorded(q, k, v, grad_out) else ctx.plan
        dq, dk, dv = plan.backward(q, k, v, out, lse, grad_out, *(seed or (None,)))
        return dq, dk, dv, None, None, None, None, None, None


class FlashAttentionTriton(_Algorithms):
    """FlashAttention-2 in Triton and Gluon: `apply(q, k, v, is_causal=False, softmax_scale=None, fp32_precision=None,
    dropout_p=0.0, dropout_seed=None, deterministic=False) -> out`.

    q is (..., seq_len_q, head_dim), k and v are (..., seq_len_k, head_dim), all float32, bfloat16 or float16, with
    head_dim from 16 to 256 and any strides; out is shaped like q. k and v may have fewer heads, the dimension before,
    each of which serves as many heads of q. Scores, softmax and sums are float32; float32 products follow
    `flash_attention`'s fp32_precision, forward and backward. The backward drops what the forward dropped, by
    `dropout_seed`, (1,) and int64, or a new seed. Saved for the backward: q, k, v, out, the natural-log log-sum-exp,
    (..., seq_len_q), and the seed if there is one. With `deterministic`, or after
    `torch.use_deterministic_algorithms(True)`, the gradients of two calls are the same to the bit, as out always is.
    Tensors are on CUDA, or on the CPU under Triton's interpreter; other q, k and v raise ValueError.

    Source: FlashAttention-2, Dao 2023, Algorithms 1 and 2.
    """

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Call the C++ `apply` without torch's inspection of each argument for functorch (`private`)."""
        if torch.compiler.is_compiling() or _functorch_is_active():
            return _Algorithms.apply(*args, **kwargs)
        return super(torch.autograd.Function, cls).apply(*args, **kwargs)  # type: ignore[misc]


def flash_forward(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float | None) -> tuple[Tensor, Tensor]:
    """Run the forward alone: return out like q, and lse (..., seq_len_q) in float32; `scale` None is d ** -0.5."""
    return plan_for(Request(is_causal, scale, products_of(q, "ieee")), q, k, v, None).forward(q, k, v, None)
