"""FlashAttention-2 in Triton: launches and the autograd.Function over `triton_kernels/`.

Which kernels a call gets, `tile_choices` says: those in Gluon (`flash_hopper`), or the plain ones, which take all.
"""

import math
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from cs336_systems.attention.dropout import Dropout, dropout_of_call
from cs336_systems.attention.launch import cdiv, key_of_tensors, launch, on_device_of
from cs336_systems.attention.tile_choices import (
    DKDV_TILES,
    DQ_TILES,
    FORWARD_TILES,
    SPLIT_TILES,
    Tiles,
    fitting,
    hopper_backward,
    hopper_forward,
    hopper_takes,
    padded_head_dim,
    shared_bytes,
    split_keys,
    tiles_for,
)
from cs336_systems.attention.triton_kernels.backward import (
    flash_bwd_delta_kernel,
    flash_bwd_dkdv_kernel,
    flash_bwd_dq_kernel,
)
from cs336_systems.attention.triton_kernels.forward import flash_fwd_kernel
from cs336_systems.attention.triton_kernels.forward_split import flash_fwd_combine_kernel, flash_fwd_split_kernel

# exp(x) is exp2(x * log2(e)), and exp2 is what the hardware has: folding the factor into the scale of the scores
# saves a multiplication per score.
LOG2_E = math.log2(math.e)

# False under Triton's interpreter, which runs on the CPU and multiplies exactly.
IS_COMPILED = isinstance(flash_fwd_kernel, triton.runtime.JITFunction)

# fp32_precision -> how float32 operands are multiplied on tensor cores. For "ieee" each is split into three bfloat16
# ones, and six of their nine products keep 24 bits: at the price of tf32x3 (three TF32 products, 22 bits), whose
# rounding shows where dp and delta cancel. One key of d = 64, where dk is 0: 1.6e-6 on an H200. Plain TF32 keeps 10
# bits: 1000 times the error of eager float32; three of the nine products 16.
FP32_PRODUCTS = {"ieee": "bf16x6", "tf32": "tf32", "bf16x3": "bf16x3"}


COMBINE_ROWS = 16
DELTA_TILE_ELEMENTS = 4096  # 32 of out and 32 of do a thread: enough loads in flight to be bound by memory


class FlashAttentionTriton(torch.autograd.Function):
    """FlashAttention-2, all of it in Triton: `apply(q, k, v, is_causal=False, softmax_scale=None,
    fp32_precision=None, dropout_p=0.0, dropout_seed=None, deterministic=False) -> out`.

    q is (..., seq_len_q, head_dim), k and v are (..., seq_len_k, head_dim), all float32, bfloat16 or float16,
    with head_dim from 16 to 128 and any strides; out is shaped like q. k and v may have fewer heads, the dimension
    before, of which each serves as many heads of q. Scores, softmax and sums are float32; products of float32 are as
    `flash_attention`'s fp32_precision says, in the forward and its backward. With dropout_p the backward drops what
    the forward dropped, by `dropout_seed`, (1,) and int64, or a new one. Saved for the backward: q, k, v, out, the
    natural-log log-sum-exp, (..., seq_len_q), and the seed if there is one. `deterministic`: the gradients of two calls
    are the same to the bit, as out always is; so too where `torch.use_deterministic_algorithms(True)` was called. CUDA
    tensors, or CPU tensors under Triton's interpreter, else ValueError. `flash_attention` of `api.py` checks the rest.

    Source: FlashAttention-2, Dao 2023, Algorithms 1 and 2.
    """

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
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else float(softmax_scale)
        products = FP32_PRODUCTS["ieee"]
        if q.dtype == torch.float32:
            products = FP32_PRODUCTS[fp32_precision or torchs_fp32_precision()]
        dropout = dropout_of_call(dropout_p, dropout_seed, q.device)
        out, lse = flash_forward(q, k, v, is_causal, scale, products, dropout)
        ctx.save_for_backward(q, k, v, out, lse, *([] if dropout is None else [dropout.seed]))
        ctx.options = is_causal, scale, products
        ctx.dropout_p = dropout_p
        ctx.deterministic = deterministic
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        """Algorithm 2."""
        q, k, v, out, lse, *seed = ctx.saved_tensors
        dropout = Dropout(ctx.dropout_p, *seed) if seed else None
        is_causal, scale, products = ctx.options
        deterministic = ctx.deterministic or torch.are_deterministic_algorithms_enabled()
        grads = flash_backward(q, k, v, out, lse, grad_out, is_causal, scale, products, dropout, deterministic)
        return *grads, None, None, None, None, None, None


@torch.compiler.assume_constant_result  # a graph is compiled anew when the setting changes
def torchs_fp32_precision() -> str:
    """How torch multiplies float32 matrices on a GPU: "ieee" or "tf32". May be read however it was set."""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"


def flash_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_causal: bool,
    scale: float,
    fp32_products: str = FP32_PRODUCTS["ieee"],
    dropout: Dropout | None = None,
) -> tuple[Tensor, Tensor]:
    """Launches the forward: returns out like q, and lse (..., seq_len_q) in float32."""
    if torch.compiler.is_compiling() and hopper_takes(q, dropout is not None):
        return _opaque_forward(q, k, v, is_causal, scale)
    _check_device(q)
    # The kernels believe these sizes: a mismatch would read another tensor's memory.
    assert k.shape == v.shape and q.shape[:-3] == k.shape[:-3] and q.shape[-1] == k.shape[-1]
    assert q.dtype == k.dtype == v.dtype
    q4, k4, v4 = _as_4d(q), _as_4d(k), _as_4d(v)
    batch, num_heads, seq_len_q, _ = q4.shape
    num_kv_heads, seq_len_k = k4.shape[1:3]
    assert num_heads % num_kv_heads == 0
    if choice := hopper_forward(q4, k4, v4, scale, dropout is not None):
        from cs336_systems.attention import flash_hopper

        with on_device_of(q):
            out, lse = flash_hopper.launch_forward(q4, k4, v4, is_causal, scale, choice)
        return _shaped(out, q.shape), _shaped(lse, q.shape[:-1])
    out = torch.empty_like(q4)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    if chunk := split_keys(q4, k4, dropout is not None):
        with on_device_of(q):
            _launch_split_forward(q4, k4, v4, out, lse, is_causal, scale, chunk)
        return _shaped(out, q.shape), lse
    tiles = tiles_for(q, FORWARD_TILES)
    arguments = (
        q4, k4, v4, out, lse, *q4.stride(), *k4.stride(), *v4.stride(), *out.stride(),
        num_heads, seq_len_q, seq_len_k, scale * LOG2_E, *_dropout_arguments(dropout),
    )  # fmt: skip
    constants = _constants(q, is_causal, fp32_products, tiles) | {
        "HEADS_PER_KV_HEAD": num_heads // num_kv_heads,
        "EVEN_KEYS": seq_len_k % tiles.k == 0,
    }
    key = key_of_tensors(q4, k4, v4), _key_of_dropout(dropout)
    with on_device_of(q):
        launch(flash_fwd_kernel, key, cdiv(seq_len_q, tiles.q) * batch * num_heads, arguments, constants)
    return _shaped(out, q.shape), lse


def flash_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    is_causal: bool,
    scale: float,
    fp32_products: str,
    dropout: Dropout | None = None,
    deterministic: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Launches the backward: returns dq, dk, dv, shaped like q, k, v."""
    if torch.compiler.is_compiling() and not deterministic and hopper_takes(q, dropout is not None):
        return _opaque_backward(q, k, v, out, lse, grad_out, is_causal, scale)
    q4, k4, v4, out4, do4 = (_as_4d(x) for x in (q, k, v, out, grad_out))
    if choice := hopper_backward(q4, k4, v4, dropout is not None, deterministic):
        from cs336_systems.attention import flash_hopper

        with on_device_of(q):
            dq, dk, dv = flash_hopper.launch_backward(q4, k4, v4, out4, lse, do4, is_causal, scale, choice)
        return _shaped(dq, q.shape), _shaped(dk, k.shape), _shaped(dv, v.shape)
    batch, num_heads, seq_len_q, _ = q4.shape
    num_kv_heads, seq_len_k = k4.shape[1:3]
    dq, dk, dv = torch.empty_like(q4), torch.empty_like(k4), torch.empty_like(v4)
    strides = (*q4.stride(), *k4.stride(), *v4.stride(), *do4.stride())
    sizes = (num_heads, seq_len_q, seq_len_k, scale, scale * LOG2_E, *_dropout_arguments(dropout))
    key = key_of_tensors(q4, k4, v4, do4), _key_of_dropout(dropout)
    with on_device_of(q):
        inputs = (q4, k4, v4, do4, lse, launch_delta(out4, do4, lse))
        tiles = tiles_for(q, DKDV_TILES)
        arguments = (*inputs, dk, dv, *strides, *dk.stride(), *dv.stride(), *sizes)
        constants = _constants(q, is_causal, fp32_products, tiles) | {
            "HEADS_PER_KV_HEAD": num_heads // num_kv_heads,
            "EVEN_QUERIES": seq_len_q % tiles.q == 0,
            "EVEN_KEYS": seq_len_k % tiles.k == 0,
        }
        num_programs = cdiv(seq_len_k, tiles.k) * batch * num_kv_heads
        launch(flash_bwd_dkdv_kernel, key, num_programs, arguments, constants)
        tiles = tiles_for(q, DQ_TILES)
        constants = _constants(q, is_causal, fp32_products, tiles) | {
            "HEADS_PER_KV_HEAD": num_heads // num_kv_heads,
            "EVEN_KEYS": seq_len_k % tiles.k == 0,
        }
        num_programs = cdiv(seq_len_q, tiles.q) * batch * num_heads
        launch(flash_bwd_dq_kernel, key, num_programs, (*inputs, dq, *strides, *dq.stride(), *sizes), constants)
    return _shaped(dq, q.shape), _shaped(dk, k.shape), _shaped(dv, v.shape)


def _launch_split_forward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, is_causal: bool, scale: float, chunk: int
) -> None:
    """Of (batch, heads, seq_len, d): parts over `chunk` keys each, held in float32, then their sum in out and lse."""
    batch, num_heads, seq_len_q, d = q.shape
    num_kv_heads, seq_len_k = k.shape[1:3]
    num_chunks = cdiv(seq_len_k, chunk)
    parts = torch.empty((num_chunks, *q.shape), dtype=torch.float32, device=q.device)
    part_lse = torch.empty((num_chunks, *q.shape[:-1]), dtype=torch.float32, device=q.device)
    key = key_of_tensors(q, k, v)
    tiles = fitting(SPLIT_TILES, shared_bytes(q.device))
    arguments = (
        q, k, v, parts, part_lse, *q.stride(), *k.stride(), *v.stride(),
        num_heads, seq_len_q, seq_len_k, scale * LOG2_E,
    )  # fmt: skip
    constants = _constants(q, is_causal, "ieee", tiles) | {
        "HEADS_PER_KV_HEAD": num_heads // num_kv_heads,
        "EVEN_KEYS": seq_len_k % tiles.k == 0,
        "CHUNK_KEYS": chunk,
    }
    num_programs = num_chunks * cdiv(seq_len_q, tiles.q) * batch * num_heads
    launch(flash_fwd_split_kernel, key, num_programs, arguments, constants)
    arguments = (parts, part_lse, out, lse, *out.stride(), num_heads, seq_len_q, seq_len_k)
    constants = {
        "D": d,
        "D_PADDED": padded_head_dim(q),
        "ROWS": COMBINE_ROWS,
        "CHUNK_KEYS": chunk,
        "IS_CAUSAL": is_causal,
    }
    launch(flash_fwd_combine_kernel, key, cdiv(seq_len_q, COMBINE_ROWS) * batch * num_heads, arguments, constants)


def launch_delta(out: Tensor, do: Tensor, lse: Tensor) -> Tensor:
    """rowsum(out * do) of (batch, heads, seq_len, d), like lse."""
    batch, num_heads, seq_len, d = out.shape
    delta = torch.empty_like(lse)
    rows = DELTA_TILE_ELEMENTS // padded_head_dim(out)
    arguments = (out, do, delta, *out.stride(), *do.stride(), num_heads, seq_len)
    constants = {"D": d, "D_PADDED": padded_head_dim(out), "Q_TILE_SIZE": rows}
    num_programs = cdiv(seq_len, rows) * batch * num_heads
    launch(flash_bwd_delta_kernel, key_of_tensors(out, do), num_programs, arguments, constants)
    return delta


# torch.compile writes plain Triton kernels into its own code, and cannot write those in Gluon: to it they are an
# operator whose shapes it knows. Named after the module, since two checkouts may be imported side by side.
_OPERATORS = __name__.replace(".", "_")


@torch.library.custom_op(f"{_OPERATORS}::forward", mutates_args=())
def _opaque_forward(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    return flash_forward(q, k, v, is_causal, scale)


@_opaque_forward.register_fake
def _forward_shapes(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    out = torch.empty_like(_as_4d(q)).reshape(q.shape)
    return out, torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)


@torch.library.custom_op(f"{_OPERATORS}::backward", mutates_args=())
def _opaque_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, grad_out: Tensor, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return flash_backward(q, k, v, out, lse, grad_out, is_causal, scale, FP32_PRODUCTS["ieee"])


@_opaque_backward.register_fake
def _backward_shapes(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, grad_out: Tensor, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (torch.empty_like(_as_4d(x)).reshape(x.shape) for x in (q, k, v))
    return dq, dk, dv


def _constants(q: Tensor, is_causal: bool, fp32_products: str, tiles: Tiles) -> dict[str, Any]:
    return {
        "D": q.shape[-1],
        "D_PADDED": padded_head_dim(q),
        "Q_TILE_SIZE": tiles.q,
        "K_TILE_SIZE": tiles.k,
        "IS_CAUSAL": is_causal,
        "INPUT_PRECISION": fp32_products if q.dtype == torch.float32 and IS_COMPILED else "ieee",
        "num_warps": tiles.num_warps,
        "num_stages": tiles.num_stages,
    }


def _dropout_arguments(dropout: Dropout | None) -> tuple[Any, Any, Any]:
    """Seed_ptr, drop_below, keep_probability: Triton compiles None away, so that no dropout costs nothing."""
    if dropout is None:
        return None, None, None
    return dropout.seed, dropout.drop_below, dropout.keep_probability


def _key_of_dropout(dropout: Dropout | None) -> tuple[int, int] | None:
    """What Triton compiles for of `_dropout_arguments`."""
    if dropout is None or torch.compiler.is_compiling():
        return None
    return dropout.drop_below, dropout.seed.data_ptr() % 16


def _as_4d(x: Tensor) -> Tensor:
    """(batch, heads, seq_len, head_dim) with each head vector in one piece: a view wherever there is one."""
    if x.ndim != 4:
        x = x.reshape(-1, *x.shape[-3:]) if x.ndim > 4 else x[(None,) * (4 - x.ndim)]
    # A copy costs one pass; reading elements that lie apart costs as much again for every tile that visits them.
    # The gradient of a sum comes this way, one number expanded with stride 0.
    return x if x.stride(-1) == 1 else x.contiguous()


def _shaped(x: Tensor, shape: torch.Size) -> Tensor:
    return x if x.shape == shape else x.reshape(shape)


def _check_device(q: Tensor) -> None:
    if not q.is_cuda and IS_COMPILED:
        raise ValueError(f"q is on {q.device}; allowed for Triton: CUDA, or the CPU with TRITON_INTERPRET=1")
