"""How the kernels in Gluon, for compute capability 9.0, are launched. Imported by `plans` where they run."""

from collections.abc import Callable

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from cs336_systems.attention.flash_plain import BackwardPlan, ForwardPlan, Options, lse_like, plan_delta
from cs336_systems.attention.launch import Launch, cdiv
from cs336_systems.attention.tile_choices import HopperBackward, HopperForward, suits_tma
from cs336_systems.attention.triton_kernels.backward import flash_bwd_round_dq_kernel
from cs336_systems.attention.triton_kernels.backward_hopper_64 import flash_bwd_hopper_64_kernel
from cs336_systems.attention.triton_kernels.backward_hopper_128 import flash_bwd_hopper_128_kernel
from cs336_systems.attention.triton_kernels.forward_hopper import flash_fwd_hopper_kernel
from cs336_systems.private.kernels import descriptors_like

KEYS = 128  # of a program of the backward
CONSUMER_KEYS = 64
DQ_COLUMNS = 64  # of a tile of dq: all of head dimension 64, half of 128
ROUND_TILE_ELEMENTS = 4096


def plan_forward(q: Tensor, k: Tensor, v: Tensor, options: Options, choice: HopperForward) -> ForwardPlan:
    """Of (batch, heads, seq_len, d) each, without dropout."""
    batch, num_heads, seq_len_q, d = q.shape
    num_kv_heads, seq_len_k = k.shape[1:3]
    rows = choice.rows // choice.consumers
    launch = Launch(
        flash_fwd_hopper_kernel,
        cdiv(seq_len_q, choice.rows) * batch * num_heads,
        (seq_len_q, seq_len_k, num_heads, options.scale_log2),
        {
            "HEADS_PER_KV_HEAD": num_heads // num_kv_heads,
            "D": d,
            "K_TILE_SIZE": choice.k_tile,
            "STAGES": choice.stages,
            "CONSUMERS": choice.consumers,
            "IS_CAUSAL": options.is_causal,
            "REGISTERS": choice.registers,
            "num_warps": 4,
        },
    )
    q_tiles = tiles_of(q, rows)
    k_tiles, v_tiles = tiles_of(k, choice.k_tile), tiles_of(v, choice.k_tile)
    out_tiles = tiles_of(torch.empty_like(q), rows)
    like_lse = lse_like(q)

    def run(q: Tensor, k: Tensor, v: Tensor, seed: Tensor | None) -> tuple[Tensor, Tensor]:
        out = torch.empty_like(q)
        lse = torch.empty_like(like_lse)
        launch(q_tiles(q), k_tiles(k), v_tiles(v), out_tiles(out), lse)
        return out, lse

    return run


def plan_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, do: Tensor, options: Options, choice: HopperBackward
) -> BackwardPlan:
    """One float32 dq is held besides its gradients."""
    batch, num_heads, seq_len_q, d = q.shape
    num_kv_heads, seq_len_k = k.shape[1:3]
    copies_do = not suits_tma(do)
    do = _copied(do) if copies_do else do
    constants = {
        "HEADS_PER_KV_HEAD": num_heads // num_kv_heads,
        "D": d,
        "Q_TILE_SIZE": choice.q_tile,
        "STAGES": choice.stages,
        "DS_STAGES": choice.ds_stages,
        "IS_CAUSAL": options.is_causal,
        "EVEN_QUERIES": seq_len_q % choice.q_tile == 0,
        "EVEN_KEYS": seq_len_k % KEYS == 0,
        "REGISTERS": choice.registers,
        "num_warps": 4,
    }
    kernel = flash_bwd_hopper_128_kernel
    if choice.dq_registers is not None:
        kernel, constants["DQ_REGISTERS"] = flash_bwd_hopper_64_kernel, choice.dq_registers
    scalars = seq_len_q, seq_len_k, num_kv_heads, options.scale, options.scale_log2
    launch = Launch(kernel, cdiv(seq_len_k, KEYS) * batch * num_kv_heads, scalars, constants)
    delta_of = plan_delta(out, do)
    round_dq = Launch(
        flash_bwd_round_dq_kernel,
        cdiv(q.numel(), ROUND_TILE_ELEMENTS),
        (q.numel(), options.scale),
        {"TILE_ELEMENTS": ROUND_TILE_ELEMENTS},
    )
    q_tiles, do_tiles = tiles_of(q, choice.q_tile), tiles_of(do, choice.q_tile)
    k_tiles, v_tiles = tiles_of(k, CONSUMER_KEYS), tiles_of(v, CONSUMER_KEYS)
    dk_tiles, dv_tiles = (tiles_of(torch.empty_like(x), CONSUMER_KEYS) for x in (k, v))
    sums_tiles = tiles_of(torch.empty_like(q, dtype=torch.float32), choice.q_tile, DQ_COLUMNS)

    def run(
        q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, do: Tensor, seed: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        do = _copied(do) if copies_do else do
        delta = delta_of(out, do, lse)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        sums = torch.zeros_like(q, dtype=torch.float32)
        launch(
            q_tiles(q), k_tiles(k), v_tiles(v), do_tiles(do), sums_tiles(sums), dk_tiles(dk), dv_tiles(dv), lse, delta
        )
        round_dq(sums, dq)
        return dq, dk, dv

    return run


def _copied(x: Tensor) -> Tensor:
    """To where the copy engine can address it: `contiguous` would leave one piece at an odd address there."""
    return x.clone(memory_format=torch.contiguous_format)


def tiles_of(like: Tensor, rows: int, columns: int | None = None) -> Callable[[Tensor], TensorDescriptor]:
    """For the copy engine: such a (batch, heads, seq_len, d) in tiles of rows x columns (None: all)."""
    columns = columns or like.shape[-1]
    bits = like.element_size() * 8
    layout = gl.NVMMASharedLayout(swizzle_byte_width=min(128, columns * bits // 8), element_bitwidth=bits, rank=4)
    # A dimension of one may have any stride, and the copy engine's must be multiples of 16 bytes.
    shape = list(like.shape)
    strides = [shape[-1] if size == 1 else stride for size, stride in zip(shape, like.stride(), strict=True)]
    checked = TensorDescriptor(torch.empty_like(like, device="meta"), shape, strides, [1, 1, rows, columns], layout)

    return descriptors_like(checked)
