"""Launchers of the kernels in Gluon, for compute capability 9.0. Imported by `flash_triton` where they run."""

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from cs336_systems.attention.flash_triton import LOG2_E, launch_delta
from cs336_systems.attention.launch import cdiv, key_of_tensors, launch
from cs336_systems.attention.tile_choices import HopperBackward, HopperForward, suits_tma
from cs336_systems.attention.triton_kernels.backward import flash_bwd_round_dq_kernel
from cs336_systems.attention.triton_kernels.backward_hopper_64 import flash_bwd_hopper_64_kernel
from cs336_systems.attention.triton_kernels.backward_hopper_128 import flash_bwd_hopper_128_kernel
from cs336_systems.attention.triton_kernels.forward_hopper import flash_fwd_hopper_kernel

KEYS = 128  # of a program of the backward
CONSUMER_KEYS = 64
DQ_COLUMNS = 64  # of a tile of dq: all of head dimension 64, half of 128
ROUND_TILE_ELEMENTS = 4096


def launch_forward(
    q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float, choice: HopperForward
) -> tuple[Tensor, Tensor]:
    """(batch, heads, seq_len, d) each: out, like q, and lse, (batch, heads, seq_len_q) in float32."""
    batch, num_heads, seq_len_q, d = q.shape
    num_kv_heads, seq_len_k = k.shape[1:3]
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    rows = choice.rows // choice.consumers
    arguments = (
        _in_tiles(q, rows), _in_tiles(k, choice.k_tile), _in_tiles(v, choice.k_tile), _in_tiles(out, rows), lse,
        seq_len_q, seq_len_k, num_heads, scale * LOG2_E,
    )  # fmt: skip
    constants = {
        "HEADS_PER_KV_HEAD": num_heads // num_kv_heads,
        "D": d,
        "K_TILE_SIZE": choice.k_tile,
        "STAGES": choice.stages,
        "CONSUMERS": choice.consumers,
        "IS_CAUSAL": is_causal,
        "REGISTERS": choice.registers,
        "num_warps": 4,
    }
    num_programs = cdiv(seq_len_q, choice.rows) * batch * num_heads
    launch(flash_fwd_hopper_kernel, key_of_tensors(q, k, v), num_programs, arguments, constants)
    return out, lse


def launch_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    is_causal: bool,
    scale: float,
    choice: HopperBackward,
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk, dv, like q, k, v, of which one float32 dq is held besides."""
    batch, num_heads, seq_len_q, d = q.shape
    num_kv_heads, seq_len_k = k.shape[1:3]
    do = grad_out if suits_tma(grad_out) else grad_out.contiguous()
    delta = launch_delta(out, do, lse)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    sums = torch.zeros_like(q, dtype=torch.float32)
    constants = {
        "HEADS_PER_KV_HEAD": num_heads // num_kv_heads,
        "D": d,
        "Q_TILE_SIZE": choice.q_tile,
        "STAGES": choice.stages,
        "DS_STAGES": choice.ds_stages,
        "IS_CAUSAL": is_causal,
        "EVEN_QUERIES": seq_len_q % choice.q_tile == 0,
        "EVEN_KEYS": seq_len_k % KEYS == 0,
        "REGISTERS": choice.registers,
        "num_warps": 4,
    }
    kernel = flash_bwd_hopper_128_kernel
    if choice.dq_registers is not None:
        kernel, constants["DQ_REGISTERS"] = flash_bwd_hopper_64_kernel, choice.dq_registers
    arguments = (
        _in_tiles(q, choice.q_tile), _in_tiles(k, CONSUMER_KEYS), _in_tiles(v, CONSUMER_KEYS),
        _in_tiles(do, choice.q_tile), _in_tiles(sums, choice.q_tile, DQ_COLUMNS),
        _in_tiles(dk, CONSUMER_KEYS), _in_tiles(dv, CONSUMER_KEYS), lse, delta,
        seq_len_q, seq_len_k, num_kv_heads, scale, scale * LOG2_E,
    )  # fmt: skip
    launch(kernel, key_of_tensors(q, k, v, do), cdiv(seq_len_k, KEYS) * batch * num_kv_heads, arguments, constants)
    num_programs = cdiv(dq.numel(), ROUND_TILE_ELEMENTS)
    rounding = {"TILE_ELEMENTS": ROUND_TILE_ELEMENTS}
    launch(flash_bwd_round_dq_kernel, key_of_tensors(dq), num_programs, (sums, dq, dq.numel(), scale), rounding)
    return dq, dk, dv


def _in_tiles(x: Tensor, rows: int, columns: int | None = None) -> TensorDescriptor:
    """For the copy engine: x, (batch, heads, seq_len, d), in tiles of rows x columns (None: all)."""
    columns = columns or x.shape[-1]
    bits = x.element_size() * 8
    layout = gl.NVMMASharedLayout(swizzle_byte_width=min(128, columns * bits // 8), element_bitwidth=bits, rank=4)
    # A dimension of one may have any stride, and the copy engine's must be multiples of 16 bytes.
    strides = [x.shape[-1] if size == 1 else stride for size, stride in zip(x.shape, x.stride(), strict=True)]
    return TensorDescriptor(x, list(x.shape), strides, [1, 1, rows, columns], layout)
