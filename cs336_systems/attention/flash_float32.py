"""How the kernels in Gluon for float32 are launched, over pieces. Imported by `plans` where they run."""

import torch
from torch import Tensor

from cs336_systems.attention.flash_hopper import tiles_of
from cs336_systems.attention.flash_plain import BackwardPlan, ForwardPlan, Options, like, lse_like, plan_delta
from cs336_systems.attention.launch import Launch, cdiv
from cs336_systems.attention.tile_choices import HopperFloat32
from cs336_systems.attention.triton_kernels.backward_hopper_float32 import flash_bwd_hopper_float32_kernel
from cs336_systems.attention.triton_kernels.forward_hopper_float32 import flash_fwd_hopper_float32_kernel
from cs336_systems.attention.triton_kernels.pieces import split_kernel

ROWS = 64  # of any tile
ROWS_OF_FORWARD = 128  # of a program
SPLIT_ROWS = 16


def plan_forward(q: Tensor, k: Tensor, v: Tensor, options: Options, choice: HopperFloat32) -> ForwardPlan:
    """Of (batch, heads, seq_len, d) each, without dropout. Holds 4 or 6 bytes an element of q, k and v meanwhile."""
    batch, num_heads, seq_len_q, d = q.shape
    num_kv_heads, seq_len_k = k.shape[1:3]
    launch = Launch(
        flash_fwd_hopper_float32_kernel,
        cdiv(seq_len_q, ROWS_OF_FORWARD) * batch * num_heads,
        (*like(q).stride()[:-1], seq_len_q, seq_len_k, num_heads, options.scale_log2),
        {
            "HEADS_PER_KV_HEAD": num_heads // num_kv_heads,
            "D": d,
            "STAGES": choice.stages,
            "IS_CAUSAL": options.is_causal,
            "PIECES": choice.pieces,
            "REGISTERS": choice.registers,
            "num_warps": 4,
        },
    )
    q_pieces, k_pieces, v_pieces = (Pieces(x, choice.pieces) for x in (q, k, v))
    like_lse = lse_like(q)

    def run(q: Tensor, k: Tensor, v: Tensor, seed: Tensor | None) -> tuple[Tensor, Tensor]:
        out = like(q)
        lse = torch.empty_like(like_lse)
        launch(q_pieces(q), k_pieces(k), v_pieces(v), out, lse)
        return out, lse

    return run


def plan_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, do: Tensor, options: Options, choice: HopperFloat32
) -> BackwardPlan:
    """Holds 4 or 6 bytes an element of q, k, v and do meanwhile; dq is summed where it is returned."""
    batch, num_heads, seq_len_q, d = q.shape
    num_kv_heads, seq_len_k = k.shape[1:3]
    launch = Launch(
        flash_bwd_hopper_float32_kernel,
        cdiv(seq_len_k, ROWS) * batch * num_kv_heads,
        (
            *(stride for x in (q, k, v) for stride in like(x).stride()[:-1]),
            seq_len_q, seq_len_k, num_kv_heads, options.scale, options.scale_log2,
        ),
        {
            "HEADS_PER_KV_HEAD": num_heads // num_kv_heads,
            "D": d,
            "STAGES": choice.stages,
            "IS_CAUSAL": options.is_causal,
            "PIECES": choice.pieces,
            "EVEN_QUERIES": seq_len_q % ROWS == 0,
            "EVEN_KEYS": seq_len_k % ROWS == 0,
            "REGISTERS": choice.registers,
            "num_warps": 4,
        },
    )  # fmt: skip
    delta_of = plan_delta(out, do)
    q_pieces, k_pieces, v_pieces, do_pieces = (Pieces(x, choice.pieces) for x in (q, k, v, do))

    def run(
        q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, do: Tensor, seed: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        delta = delta_of(out, do, lse)
        dq, dk, dv = like(q).zero_(), like(k), like(v)
        launch(q_pieces(q), k_pieces(k), v_pieces(v), do_pieces(do), lse, delta, dq, dk, dv)
        return dq, dk, dv

    return run


class Pieces:
    """Splits tensors like one of (batch, heads, seq_len, d): a descriptor of tiles of their pieces."""

    def __init__(self, x: Tensor, pieces: int):
        batch, num_heads, seq_len, d = x.shape
        self._shape = batch, num_heads, seq_len, pieces * d
        self._launch = Launch(
            split_kernel,
            cdiv(seq_len, SPLIT_ROWS) * batch * num_heads,
            (*x.stride()[:-1], num_heads, seq_len),
            {"D": d, "ROWS": SPLIT_ROWS, "PIECES": pieces, "num_warps": 4},
        )
        self._tiles = tiles_of(torch.empty(self._shape, dtype=torch.bfloat16, device="meta"), ROWS, d)

    def __call__(self, x: Tensor) -> object:
        """Of x, which is read now."""
        pieces = torch.empty(self._shape, dtype=torch.bfloat16, device=x.device)
        self._launch(x, pieces)
        return self._tiles(pieces)
