"""Which kernels a call of FlashAttention gets, and how they are launched: found once for all calls alike.

`tile_choices` says whether those in Gluon take it (`flash_hopper`, `flash_float32`); the plain ones (`flash_plain`)
take all.
"""

import torch
import triton
from torch import Tensor
from torch.nn.functional import pad

from cs336_systems.attention import flash_plain
from cs336_systems.attention.dropout import Dropout
from cs336_systems.attention.flash_plain import BackwardPlan, ForwardPlan, Options
from cs336_systems.attention.inputs import check_inputs
from cs336_systems.attention.launch import Plans, layout_of, layout_of_saved
from cs336_systems.attention.tile_choices import hopper_backward, hopper_float32, hopper_forward, split_keys
from cs336_systems.attention.triton_kernels.forward import flash_fwd_kernel

# False under Triton's interpreter, which runs on the CPU and multiplies exactly.
IS_COMPILED = isinstance(flash_fwd_kernel, triton.runtime.JITFunction)

# fp32_precision -> how float32 operands are multiplied on tensor cores. For "ieee" each is split into three bfloat16
# ones, and six of their nine products keep 24 bits: at the price of tf32x3 (three TF32 products, 22 bits), whose
# rounding shows where dp and delta cancel. One key of d = 64, where dk is 0: 1.6e-6 on an H200. Plain TF32 keeps 10
# bits: 1000 times the error of eager float32; three of the nine products 16. Kernels that split float32 before they
# begin (`flash_float32`) take those three for "tf32" too.
FP32_PRODUCTS = {"ieee": "bf16x6", "tf32": "tf32", "bf16x3": "bf16x3"}


class Plan:
    """How calls that are alike are launched: forward, and backward for each layout of what was saved."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        is_causal: bool,
        scale: float | None,
        fp32_products: str,
        dropout: Dropout | None,
    ):
        check_inputs(q, k, v, "triton")  # kernels believe these sizes: a mismatch would read another tensor's memory
        self.forward = plan_forward(q, k, v, is_causal, scale, fp32_products, dropout)
        self.backwards: Plans[BackwardPlan] = Plans()
        self._asked = is_causal, scale, fp32_products

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
        """Returns dq, dk, dv, shaped like q, k, v.

        What was saved may come back laid out in another way; torch asks of hooks to keep size, dtype and device.
        """
        seed = None if dropout is None else dropout.seed
        key = deterministic, seed is None or seed.data_ptr() % 16, layout_of_saved(q, k, v, out, lse, grad_out)
        plan = self.backwards.get(key) or self.backwards.keep(
            key, plan_backward(q, k, v, out, grad_out, *self._asked, dropout, deterministic)
        )
        return plan(q, k, v, out, lse, grad_out, seed)


plans: Plans[Plan] = Plans()


def plan_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_causal: bool,
    scale: float | None,
    fp32_products: str = FP32_PRODUCTS["ieee"],
    dropout: Dropout | None = None,
) -> Plan:
    """That of such a call. `scale` is d ** -0.5 if None."""
    of_dropout = dropout and (dropout.p, dropout.seed.data_ptr() % 16)  # what a plan holds, and Triton compiles for
    key = is_causal, scale, fp32_products, of_dropout, layout_of(q, k, v)
    return plans.get(key) or plans.keep(key, Plan(q, k, v, is_causal, scale, fp32_products, dropout))


def forget_plans() -> None:
    """For who changes what plans are made of: the tables of tiles."""
    plans.clear()


def plan_forward(
    q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float | None, fp32_products: str, dropout: Dropout | None
) -> ForwardPlan:
    """The forward's alone, of checked inputs; ValueError where no kernel runs."""
    _check_device(q)
    if q.numel() == 0:
        return _empty_forward
    num_keys, is_causal = _seen_keys(q, k, is_causal)
    options = _options_of(q, is_causal, scale, fp32_products, dropout)
    q4, k4, v4 = as_4d(q), _first_rows(as_4d(k), num_keys), _first_rows(as_4d(v), num_keys)
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
        out, lse = plan(as_4d(q), _first_rows(as_4d(k), num_keys), _first_rows(as_4d(v), num_keys), seed)
        return out.reshape(q.shape), lse.reshape(lse_shape)

    return run


def plan_backward(
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
    """The backward's alone, for what was saved and the gradient of out, as they are laid out."""
    if q.numel() == 0:
        return _empty_backward
    num_keys, is_causal = _seen_keys(q, k, is_causal)
    options = _options_of(q, is_causal, scale, fp32_products, dropout)
    given = q, k, v, out, do
    q4, k4, v4, out4, do4 = map(as_4d, given)
    k4, v4 = _first_rows(k4, num_keys), _first_rows(v4, num_keys)
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
    unseen = k.shape[-2] - num_keys

    def run(
        q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, do: Tensor, seed: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        k4, v4 = _first_rows(as_4d(k), num_keys), _first_rows(as_4d(v), num_keys)
        dq, dk, dv = plan(as_4d(q), k4, v4, as_4d(out), lse, as_4d(do), seed)
        if unseen:
            dk, dv = pad(dk, (0, 0, 0, unseen)), pad(dv, (0, 0, 0, unseen))
        return dq.reshape(q.shape), dk.reshape(k.shape), dv.reshape(v.shape)

    return run


def _seen_keys(q: Tensor, k: Tensor, is_causal: bool) -> tuple[int, bool]:
    """Return how many keys any query sees, and whether these still need the causal mask.

    One query sees one key, and needs none. That also keeps the mask from a kernel in which Triton takes the number of
    queries, 1, for a constant: of its loop over keys ptxas dies (SIGSEGV, triton 3.6 to 3.9, half precisions).
    """
    seq_len_q, seq_len_k = q.shape[-2], k.shape[-2]
    return (min(seq_len_q, seq_len_k), seq_len_q > 1) if is_causal else (seq_len_k, False)


def _first_rows(x: Tensor, rows: int) -> Tensor:
    return x if x.shape[-2] == rows else x[..., :rows, :]


def _empty_forward(q: Tensor, k: Tensor, v: Tensor, seed: Tensor | None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)


def _empty_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, do: Tensor, seed: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Zeros: there may be keys where there are no queries."""
    return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)


def _options_of(
    q: Tensor, is_causal: bool, scale: float | None, fp32_products: str, dropout: Dropout | None
) -> Options:
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return Options(is_causal, scale, input_precision(q, fp32_products), dropout)


def input_precision(q: Tensor, fp32_products: str) -> str:
    """tl.dot's: `fp32_products` for float32 on a GPU."""
    return fp32_products if q.dtype == torch.float32 and IS_COMPILED else "ieee"


def as_4d(x: Tensor) -> Tensor:
    """(batch, heads, seq_len, head_dim) with each head vector in one piece: a view wherever there is one."""
    if x.ndim != 4:
        x = x.flatten(0, -4) if x.ndim > 4 else x[(None,) * (4 - x.ndim)]
    # A copy costs one pass; reading elements that lie apart costs as much again for every tile that visits them.
    # The gradient of a sum comes this way, one number expanded with stride 0.
    return x if x.stride(-1) == 1 else x.contiguous()


def _check_device(q: Tensor) -> None:
    if not q.is_cuda and IS_COMPILED:
        raise ValueError(f"q is on {q.device}; allowed for Triton: CUDA, or the CPU with TRITON_INTERPRET=1")
