"""FlashAttention-2 in Triton: the autograd.Function over `triton_kernels/`, each call by its plan (`plans`)."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cs336_systems.attention.dropout import Dropout, dropout_of_call
from cs336_systems.attention.flash_traced import TracedPlan
from cs336_systems.attention.plans import FP32_PRODUCTS, Plan, plan_of
from cs336_systems.attention.plans import input_precision as input_precision  # perf's tiles look for it here
from cs336_systems.private.kernels import constant_to_compiler, functorch_check

_functorch_is_active = functorch_check()


class _Algorithms(torch.autograd.Function):
    """Forward and backward of `FlashAttentionTriton`, under torch's own `apply`, which is what its compiler takes."""

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
        """Algorithm 1."""
        scale = None if softmax_scale is None else float(softmax_scale)
        products = FP32_PRODUCTS["ieee"]
        if q.dtype == torch.float32:
            products = FP32_PRODUCTS[fp32_precision or torchs_fp32_precision()]
        dropout = dropout_of_call(dropout_p, dropout_seed, q.device) if dropout_p else None  # so 0.2 us less
        plan: Plan | TracedPlan
        if torch.compiler.is_compiling():
            plan = TracedPlan(is_causal, scale, products, dropout)
        else:
            plan = plan_of(q, k, v, is_causal, scale, products, dropout)
        out, lse = plan.forward(q, k, v, None if dropout is None else dropout.seed)
        seed = () if dropout is None else (dropout.seed,)  # saved are tensors only: the course's tests look at shapes
        ctx.save_for_backward(q, k, v, out, lse, *seed)
        ctx.plan, ctx.dropout_p, ctx.deterministic = plan, dropout_p, deterministic
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        """Algorithm 2."""
        if torch.is_grad_enabled():  # with create_graph=True; what it takes is no matter else
            return once_differentiable(_Algorithms.backward)(ctx, grad_out)
        q, k, v, out, lse, *seed = ctx.saved_tensors
        dropout = Dropout(ctx.dropout_p, *seed) if seed else None
        deterministic = ctx.deterministic or torch.are_deterministic_algorithms_enabled()
        dq, dk, dv = ctx.plan.backward(q, k, v, out, lse, grad_out, dropout, deterministic)
        return dq, dk, dv, None, None, None, None, None, None


class FlashAttentionTriton(_Algorithms):
    """FlashAttention-2, all of it in Triton: `apply(q, k, v, is_causal=False, softmax_scale=None,
    fp32_precision=None, dropout_p=0.0, dropout_seed=None, deterministic=False) -> out`.

    q is (..., seq_len_q, head_dim), k and v are (..., seq_len_k, head_dim), all float32, bfloat16 or float16,
    with head_dim from 16 to 128 and any strides; out is shaped like q. k and v may have fewer heads, the dimension
    before, of which each serves as many heads of q. Scores, softmax and sums are float32; products of float32 are as
    `flash_attention`'s fp32_precision says, in the forward and its backward. With dropout_p the backward drops what
    the forward dropped, by `dropout_seed`, (1,) and int64, or a new one. Saved for the backward: q, k, v, out, the
    natural-log log-sum-exp, (..., seq_len_q), and the seed if there is one. `deterministic`: the gradients of two calls
    are the same to the bit, as out always is; so too where `torch.use_deterministic_algorithms(True)` was called. CUDA
    tensors, or CPU tensors under Triton's interpreter; ValueError for these and all else that q, k and v may not be.

    Source: FlashAttention-2, Dao 2023, Algorithms 1 and 2.
    """

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """torch's own, without its look at each argument for what functorch left (`private.functorch_check`)."""
        if torch.compiler.is_compiling() or _functorch_is_active():
            return _Algorithms.apply(*args, **kwargs)
        return super(torch.autograd.Function, cls).apply(*args, **kwargs)  # type: ignore[misc]


@constant_to_compiler  # a graph is compiled anew when the setting changes
def torchs_fp32_precision() -> str:
    """How torch multiplies float32 matrices on a GPU: "ieee" or "tf32". May be read however it was set."""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"


def flash_forward(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float | None) -> tuple[Tensor, Tensor]:
    """Launches the forward: returns out like q, and lse (..., seq_len_q) in float32. `scale` is d ** -0.5 if None."""
    return plan_of(q, k, v, is_causal, scale).forward(q, k, v, None)
