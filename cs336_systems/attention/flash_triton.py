"""FlashAttention-2 in Triton: the autograd.Function over `triton_kernels/`, and which of them a call gets.

`tile_choices` says whether those in Gluon take it (`flash_hopper`, `flash_float32`); the plain ones (`flash_plain`)
take all.
"""

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from cs336_systems.attention import flash_plain
from cs336_systems.attention.dropout import Dropout, dropout_of_call
from cs336_systems.attention.flash_plain import BackwardPlan, ForwardPlan, Options
from cs336_systems.attention.inputs import check_inputs
from cs336_systems.attention.launch import Plans, constant_to_compiler, layout_of, layout_of_saved
from cs336_systems.attention.tile_choices import (
    hopper_backward,
    hopper_float32,
    hopper_forward,
    hopper_takes,
    split_keys,
)
from cs336_systems.attention.triton_kernels.forward import flash_fwd_kernel

# False under Triton's interpreter, which runs on the CPU and multiplies exactly.
IS_COMPILED = isinstance(flash_fwd_kernel, triton.runtime.JITFunction)

# fp32_precision -> how float32 operands are multiplied on tensor cores. For "ieee" each is split into three bfloat16
# ones, and six of their nine products keep 24 bits: at the price of tf32x3 (three TF32 products, 22 bits), whose
# rounding shows where dp and delta cancel. One key of d = 64, where dk is 0: 1.6e-6 on an H200. Plain TF32 keeps 10
# bits: 1000 times the error of eager float32; three of the nine products 16. Kernels that split float32 before they
# begin (`flash_float32`) take those three for "tf32" too.
FP32_PRODUCTS = {"ieee": "bf16x6", "tf32": "tf32", "bf16x3": "bf16x3"}


class _Algorithms(torch.autograd.Function):
    """What `FlashAttentionTriton` says of itself, as torch's compiler takes it."""

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
        dropout = dropout_of_call(dropout_p, dropout_seed, q.device)
        out, lse = flash_forward(q, k, v, is_causal, scale, products, dropout)
        seed = () if dropout is None else (dropout.seed,)  # saved are tensors only: the course's tests look at shapes
        ctx.save_for_backward(q, k, v, out, lse, *seed)
        ctx.options = is_causal, scale, products, dropout_p, deterministic
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        """Algorithm 2."""
        if torch.is_grad_enabled():  # with create_graph=True; what it takes is no matter else
            return once_differentiable(_Algorithms.backward)(ctx, grad_out)
        q, k, v, out, lse, *seed = ctx.saved_tensors
        is_causal, scale, products, dropout_p, deterministic = ctx.options
        dropout = Dropout(dropout_p, *seed) if seed else None
        deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
        dq, dk, dv = flash_backward(q, k, v, out, lse, grad_out, is_causal, scale, products, dropout, deterministic)
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
        """torch's own without its look at each argument for what functorch left: 5 % of a short call."""
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return _Algorithms.apply(*args, **kwargs)
        return super(torch.autograd.Function, cls).apply(*args, **kwargs)  # type: ignore[misc]


@constant_to_compiler  # a graph is compiled anew when the setting changes
def torchs_fp32_precision() -> str:
    """How torch multiplies float32 matrices on a GPU: "ieee" or "tf32". May be read however it was set."""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"


forward_plans: Plans[ForwardPlan] = Plans()
backward_plans: Plans[BackwardPlan] = Plans()


def forget_plans() -> None:
    """For who changes what plans are made of: the tables of tiles."""
    forward_plans.clear()
    backward_plans.clear()


def flash_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_causal: bool,
    scale: float | None,
    fp32_products: str = FP32_PRODUCTS["ieee"],
    dropout: Dropout | None = None,
) -> tuple[Tensor, Tensor]:
    """Launches the forward: returns out like q, and lse (..., seq_len_q) in float32. `scale` is d ** -0.5 if None."""
    if torch.compiler.is_compiling():
        check_inputs(q, k, v, "triton")
        if hopper_takes(q, dropout is not None):
            return _opaque_forward(q, k, v, is_causal, scale, fp32_products)
        plan = _plan_forward(q, k, v, is_causal, scale, fp32_products, dropout)
    else:
        key = is_causal, scale, fp32_products, _key_of(dropout), layout_of(q, k, v)
        plan = forward_plans.get(key) or forward_plans.keep(
            key, _plan_forward(q, k, v, is_causal, scale, fp32_products, dropout)
        )
    return plan(q, k, v, None if dropout is None else dropout.seed)


def flash_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    is_causal: bool,
    scale: float | None,
    fp32_products: str,
    dropout: Dropout | None = None,
    deterministic: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Launches the backward: returns dq, dk, dv, shaped like q, k, v."""
    options = is_causal, scale, fp32_products, dropout, deterministic
    if torch.compiler.is_compiling():
        if not deterministic and hopper_takes(q, dropout is not None):
            return _opaque_backward(q, k, v, out, lse, grad_out, is_causal, scale, fp32_products)
        plan = _plan_backward(q, k, v, out, grad_out, *options)
    else:
        layout = layout_of_saved(q, k, v, out, lse, grad_out)
        key = is_causal, scale, fp32_products, _key_of(dropout), deterministic, layout
        plan = backward_plans.get(key) or backward_plans.keep(key, _plan_backward(q, k, v, out, grad_out, *options))
    return plan(q, k, v, out, lse, grad_out, None if dropout is None else dropout.seed)


def _plan_forward(
    q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float | None, fp32_products: str, dropout: Dropout | None
) -> ForwardPlan:
    check_inputs(q, k, v, "triton")  # the kernels believe these sizes: a mismatch would read another tensor's memory
    _check_device(q)
    options = _options_of(q, is_causal, scale, fp32_products, dropout)
    q4, k4, v4 = _as_4d(q), _as_4d(k), _as_4d(v)
    if hopper := hopper_forward(q4, k4, v4, options.scale, dropout is not None):
        from cs336_systems.attention import flash_hopper

        plan = flash_hopper.plan_forward(q4, k4, v4, options, hopper)
    elif float32 := hopper_float32(q4, k4, fp32_products, dropout is not None):
        from cs336_systems.attention import flash_float32

        plan = flash_float32.plan_forward(q4, k4, v4, options, float32)
    elif chunk := split_keys(q4, k4, dropout is not None):
        plan = flash_plain.plan_split_forward(q4, k4, v4, options, chunk)
    else:
        plan = flash_plain.plan_forward(q4, k4, v4, options)
    if q is q4 and k is k4 and v is v4:
        return plan
    lse_shape = q.shape[:-1]

    def run(q: Tensor, k: Tensor, v: Tensor, seed: Tensor | None) -> tuple[Tensor, Tensor]:
        out, lse = plan(_as_4d(q), _as_4d(k), _as_4d(v), seed)
        return out.reshape(q.shape), lse.reshape(lse_shape)

    return run


def _plan_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    do: Tensor,
    is_causal: bool,
    scale: float | None,
    fp32_products: str,
    dropout: Dropout | None,
    deterministic: bool,
) -> BackwardPlan:
    options = _options_of(q, is_causal, scale, fp32_products, dropout)
    given = q, k, v, out, do
    q4, k4, v4, out4, do4 = map(_as_4d, given)
    if hopper := hopper_backward(q4, k4, v4, dropout is not None, deterministic):
        from cs336_systems.attention import flash_hopper

        plan = flash_hopper.plan_backward(q4, k4, v4, out4, do4, options, hopper)
    elif not deterministic and (float32 := hopper_float32(k4, q4, fp32_products, dropout is not None)):
        from cs336_systems.attention import flash_float32

        plan = flash_float32.plan_backward(q4, k4, v4, out4, do4, options, float32)
    else:
        plan = flash_plain.plan_backward(q4, k4, v4, out4, do4, options)
    if all(x is x4 for x, x4 in zip(given, (q4, k4, v4, out4, do4), strict=True)):
        return plan

    def run(
        q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, do: Tensor, seed: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        dq, dk, dv = plan(_as_4d(q), _as_4d(k), _as_4d(v), _as_4d(out), lse, _as_4d(do), seed)
        return dq.reshape(q.shape), dk.reshape(k.shape), dv.reshape(v.shape)

    return run


# torch.compile writes plain Triton kernels into its own code, and cannot write those in Gluon: to it they are an
# operator whose shapes it knows. Named after the module, since two checkouts may be imported side by side.
_OPERATORS = __name__.replace(".", "_")


@torch.library.custom_op(f"{_OPERATORS}::forward", mutates_args=())
def _opaque_forward(
    q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float | None, fp32_products: str
) -> tuple[Tensor, Tensor]:
    return flash_forward(q, k, v, is_causal, scale, fp32_products)


@_opaque_forward.register_fake
def _forward_shapes(
    q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float | None, fp32_products: str
) -> tuple[Tensor, Tensor]:
    out = flash_plain.like(_as_4d(q)).reshape(q.shape)
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
    return flash_backward(q, k, v, out, lse, grad_out, is_causal, scale, fp32_products)


@_opaque_backward.register_fake
def _backward_shapes(
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
    dq, dk, dv = (flash_plain.like(_as_4d(x)).reshape(x.shape) for x in (q, k, v))
    return dq, dk, dv


def _options_of(
    q: Tensor, is_causal: bool, scale: float | None, fp32_products: str, dropout: Dropout | None
) -> Options:
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return Options(is_causal, scale, input_precision(q, fp32_products), dropout)


def input_precision(q: Tensor, fp32_products: str) -> str:
    """tl.dot's: `fp32_products` for float32 on a GPU."""
    return fp32_products if q.dtype == torch.float32 and IS_COMPILED else "ieee"


def _key_of(dropout: Dropout | None) -> tuple[float, int] | None:
    """What a plan holds of it, and what Triton compiles for."""
    return None if dropout is None else (dropout.p, dropout.seed.data_ptr() % 16)


def _as_4d(x: Tensor) -> Tensor:
    """(batch, heads, seq_len, head_dim) with each head vector in one piece: a view wherever there is one."""
    if x.ndim != 4:
        x = x.reshape(-1, *x.shape[-3:]) if x.ndim > 4 else x[(None,) * (4 - x.ndim)]
    # A copy costs one pass; reading elements that lie apart costs as much again for every tile that visits them.
    # The gradient of a sum comes this way, one number expanded with stride 0.
    return x if x.stride(-1) == 1 else x.contiguous()


def _check_device(q: Tensor) -> None:
    if not q.is_cuda and IS_COMPILED:
        raise ValueError(f"q is on {q.device}; allowed for Triton: CUDA, or the CPU with TRITON_INTERPRET=1")
