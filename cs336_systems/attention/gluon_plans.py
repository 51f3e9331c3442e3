"""Launches of the Gluon kernels, for compute capability 9.0; imported only where these run. None takes dropout."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from cs336_systems.attention import gpu
from cs336_systems.attention.balance import balanced_turns
from cs336_systems.attention.constants import DQ_COLUMNS, WGMMA_ROWS
from cs336_systems.attention.gluon_kernels.backward_64 import flash_bwd_hopper_64_kernel
from cs336_systems.attention.gluon_kernels.backward_128 import flash_bwd_hopper_128_kernel
from cs336_systems.attention.gluon_kernels.backward_float32 import flash_bwd_hopper_float32_kernel
from cs336_systems.attention.gluon_kernels.forward import flash_fwd_hopper_kernel
from cs336_systems.attention.gluon_kernels.forward_float32 import flash_fwd_hopper_float32_kernel
from cs336_systems.attention.gluon_kernels.pieces import split_kernel
from cs336_systems.attention.hopper import backward_heads_at_once, columns_of_16_bits, suits_tma
from cs336_systems.attention.hopper_tables import HopperBackward, HopperFloat32, HopperForward
from cs336_systems.attention.launch import (
    Backward,
    Call,
    Forward,
    Launch,
    allocates,
    allocates_float32,
    cdiv,
    launch_in_turn,
    like,
    num_tiles,
    stride_unit,
    strides,
)
from cs336_systems.attention.request import Request
from cs336_systems.attention.tiles import padded_head_dim
from cs336_systems.attention.tma import aligned_copy, describes
from cs336_systems.attention.triton_kernels.backward import flash_bwd_round_kernel
from cs336_systems.attention.triton_plans import delta_launch

CONSUMERS = 2  # warp groups of a backward that compute
ROUND_TILE_ELEMENTS = 4096
SPLIT_ROWS = 16
MAX_PROGRAMS = 132  # where there is no GPU to ask
WARP_GROUP, MAX_REGISTERS = 128, 2**16  # threads, and registers of a multiprocessor


def gluon_forward(request: Request, q: Tensor, k: Tensor, v: Tensor, choice: HopperForward) -> Forward:
    """Plan a 16-bit forward."""
    columns = columns_of_16_bits(q)
    constants = _constants(request, q, k, columns, choice.stages, choice.registers)
    constants |= {
        "K_TILE_SIZE": choice.k_tile,
        "Q_STAGES": choice.q_stages,
        "CONSUMERS": choice.consumers,
        "HALVES": choice.halves and request.is_causal and q.shape[2] <= k.shape[2],
        "ONE_TILE": choice.one_tile,
        "PAIRED": choice.at_once == 2 and request.is_causal,
        "PING_PONG": choice.ping_pong,
    }
    if choice.at_once > 1:
        constants["maxnreg"] = MAX_REGISTERS // (choice.at_once * (choice.consumers + 1) * WARP_GROUP) // 8 * 8
    numbers = (num_tiles(q, choice.rows),) if choice.one_tile else programs_of(q, choice.rows)
    programs = numbers[0]
    *sizes, all_heads, heads_at_once = _forward_sizes(request, q, k)
    if choice.balanced and request.is_causal:
        programs, heads_at_once = balanced_turns(all_heads, heads_at_once, _work_of_tiles(q, k, choice), numbers)
    scalars = *sizes, all_heads, heads_at_once, request.scale_log2
    launch = Launch(flash_fwd_hopper_kernel, programs, scalars, constants)
    q_tiles, out_tiles = (describes(x, WGMMA_ROWS, columns) for x in (q, torch.empty_like(q)))
    k_tiles, v_tiles = (describes(x, choice.k_tile, columns) for x in (k, v))
    new_lse = allocates_float32(q.shape[:-1], q.device)

    def run(q: Tensor, k: Tensor, v: Tensor, seed: Tensor | None) -> tuple[Tensor, Tensor]:
        out, lse = torch.empty_like(q), new_lse()
        launch(q_tiles(q), k_tiles(k), v_tiles(v), out_tiles(out), lse)
        return out, lse

    return run


def gluon_backward(
    request: Request, q: Tensor, k: Tensor, v: Tensor, out: Tensor, do: Tensor, choice: HopperBackward
) -> Backward:
    """Plan a 16-bit backward.

    Besides the gradients it allocates a float32 dq, and where programs share keys (`choice.splits`) float32 dk and dv.
    """
    program_keys, splits = CONSUMERS * WGMMA_ROWS, choice.splits
    copies_do = not suits_tma(do)
    do = aligned_copy(do) if copies_do else do
    columns = columns_of_16_bits(q)
    constants = _constants(request, q, k, columns, choice.stages, choice.registers) | {
        "SPLITS": splits,
        "Q_TILE_SIZE": choice.q_tile,
        "DS_STAGES": choice.ds_stages,
        "EVEN_QUERIES": q.shape[2] % choice.q_tile == 0,
        "EVEN_KEYS": k.shape[2] % program_keys == 0,
    }
    kernel: Any = flash_bwd_hopper_128_kernel
    if columns == 64:
        kernel = flash_bwd_hopper_64_kernel
        constants["DQ_REGISTERS"] = choice.dq_registers
    heads_at_once = choice.heads_at_once or backward_heads_at_once(request, q, k, splits)
    scalars = *_backward_sizes(q, k, splits, heads_at_once), request.scale, request.scale_log2
    launch = Launch(kernel, num_tiles(k, program_keys) * splits, scalars, constants)
    over_rows = delta_launch(out, do)
    is_split = splits > 1
    q_tiles, do_tiles = (describes(x, choice.q_tile, columns) for x in (q, do))
    k_tiles, v_tiles = (describes(x, WGMMA_ROWS, columns) for x in (k, v))
    dq_tiles = describes(torch.empty_like(q, dtype=torch.float32), choice.q_tile, DQ_COLUMNS)
    # A tile of float32 sums takes the place of 64 x D of 16 bits.
    kv_dtype, kv_columns = (torch.float32, columns // 2) if is_split else (k.dtype, columns)
    dk_tiles, dv_tiles = (describes(torch.empty_like(x, dtype=kv_dtype), WGMMA_ROWS, kv_columns) for x in (k, v))
    round_dq, round_dk, round_dv = rounding(q, request.scale), rounding(k, request.scale), rounding(v, 1.0)

    def run(
        q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, do: Tensor, seed: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        do = aligned_copy(do) if copies_do else do
        new = torch.zeros_like if is_split else torch.empty_like
        dq, dk, dv = torch.empty_like(q, dtype=torch.float32), new(k, dtype=kv_dtype), new(v, dtype=kv_dtype)
        delta = torch.empty_like(lse)
        inputs = q_tiles(q), k_tiles(k), v_tiles(v), do_tiles(do)
        launch_in_turn(
            (over_rows, (out, do, delta, dq)),
            (launch, (*inputs, dq_tiles(dq), dk_tiles(dk), dv_tiles(dv), lse, delta)),
        )
        dq = round_dq(dq)  # and the sums are free, since nothing else holds them
        return (dq, round_dk(dk), round_dv(dv)) if is_split else (dq, dk, dv)

    return run


def rounding(like: Tensor, scale: float | None) -> Callable[[Tensor], Tensor]:
    """Return a function that multiplies a float32 sum, laid out as `like`, with `scale`, and rounds it."""
    dtype, numel = like.dtype, like.numel()
    launch = Launch(
        flash_bwd_round_kernel,
        cdiv(numel, ROUND_TILE_ELEMENTS),
        (numel, scale),
        {"TILE_ELEMENTS": ROUND_TILE_ELEMENTS},
    )

    def run(sums: Tensor) -> Tensor:
        out = torch.empty_like(sums, dtype=dtype)
        launch(sums, out)
        return out

    return run


def pieces_forward(request: Request, q: Tensor, k: Tensor, v: Tensor, choice: HopperFloat32) -> Forward:
    """Plan a float32 forward over pieces, 4 or 6 bytes an element of q, k and v padded to 16, 32, 64 or 128 columns."""
    constants = _constants(request, q, k, padded_head_dim(q), choice.stages, choice.registers)
    constants |= {"PIECES": choice.pieces, "CONSUMERS": choice.consumers}
    scalars = *strides(like(q)), *_forward_sizes(request, q, k), request.scale_log2
    programs = programs_of(q, choice.consumers * WGMMA_ROWS)[0]
    launch = Launch(flash_fwd_hopper_float32_kernel, programs, scalars, constants)
    split = Pieces(choice.pieces, q, k, v)
    new_out, new_lse = allocates(q), allocates_float32(q.shape[:-1], q.device)

    def run(q: Tensor, k: Tensor, v: Tensor, seed: Tensor | None) -> tuple[Tensor, Tensor]:
        out, lse = new_out(q), new_lse()
        splitting, pieces = split(q, k, v)
        launch_in_turn(splitting, (launch, (*pieces, out, lse)))
        return out, lse

    return run


def pieces_backward(
    request: Request, q: Tensor, k: Tensor, v: Tensor, out: Tensor, do: Tensor, choice: HopperFloat32
) -> Backward:
    """Plan a float32 backward over pieces, 4 or 6 bytes an element of q, k, v and do; dq is summed in its output.

    So are dk and dv where programs share keys (`choice.splits`).
    """
    splits = choice.splits
    sizes = _backward_sizes(q, k, splits, backward_heads_at_once(request, q, k, splits))
    launch = Launch(
        flash_bwd_hopper_float32_kernel,
        num_tiles(k, WGMMA_ROWS) * splits,
        (*strides(like(q), like(k), like(v)), *sizes, request.scale, request.scale_log2),
        _constants(request, q, k, padded_head_dim(q), choice.stages, choice.registers)
        | {
            "PIECES": choice.pieces,
            "SPLITS": splits,
            "EVEN_QUERIES": q.shape[2] % WGMMA_ROWS == 0,
            "EVEN_KEYS": k.shape[2] % WGMMA_ROWS == 0,
        },
    )
    over_rows = delta_launch(out, do)
    split = Pieces(choice.pieces, q, k, v, do)
    new_dq, new_dk, new_dv = map(allocates, (q, k, v))

    def run(
        q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, do: Tensor, seed: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        dq, dk, dv, delta = new_dq(q), new_dk(k), new_dv(v), torch.empty_like(lse)
        if splits > 1:
            dk, dv = dk.zero_(), dv.zero_()
        splitting, pieces = split(q, k, v, do)
        launch_in_turn(
            (over_rows, (out, do, delta, dq)),
            splitting,
            (launch, (*pieces, lse, delta, dq, dk, dv)),
        )
        return dq, dk, dv

    return run


class Pieces:
    """Split q, k, v and, in a backward, do into bfloat16 pieces, and describe these in tiles."""

    def __init__(self, pieces: int, q: Tensor, k: Tensor, v: Tensor, do: Tensor | None = None):
        columns = padded_head_dim(q)
        given = (q, k, v) if do is None else (q, k, v, do)
        self._shapes = [(*x.shape[:-1], pieces * columns) for x in given]
        constants = {"HEAD_DIM": q.shape[-1], "D": columns, "ROWS": SPLIT_ROWS, "PIECES": pieces}
        self._launch = Launch(
            split_kernel,
            sum(num_tiles(x, SPLIT_ROWS) for x in given),
            (*strides(q, k, v, q if do is None else do), *q.shape[:2], k.shape[1], q.shape[2], k.shape[2]),
            constants | {"STRIDE_UNIT": stride_unit(*given), "num_warps": 4},
        )
        self._tiles = [
            describes(torch.empty(shape, dtype=torch.bfloat16, device="meta"), WGMMA_ROWS, columns)
            for shape in self._shapes
        ]

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, do: Tensor | None = None
    ) -> tuple[Call, list[TensorDescriptor]]:
        """Allocate pieces; return the call that splits the tensors into them, and their descriptors."""
        pieces = [torch.empty(shape, dtype=torch.bfloat16, device=q.device) for shape in self._shapes]
        tensors = (q, k, v, do, *pieces, *([None] if do is None else []))
        return (self._launch, tensors), [tiles(x) for tiles, x in zip(self._tiles, pieces, strict=True)]


def programs_of(q: Tensor, rows: int) -> tuple[int, ...]:
    """Return numbers of programs for a forward, which take tiles of so many rows of q in turn.

    They are as many as multiprocessors, or nearly. First come those of which none takes more tiles than it must, and
    among these those that all take the same number.
    """
    tiles, most = num_tiles(q, rows), gpu.multiprocessors(q.device) or MAX_PROGRAMS
    if tiles <= most:
        return (tiles,)
    nearly = range(most, most - most // 32 - 1, -1)
    return tuple(sorted(nearly, key=lambda programs: (cdiv(tiles, programs), tiles % programs != 0)))


def _work_of_tiles(q: Tensor, k: Tensor, choice: HopperForward) -> tuple[int, ...]:
    """Return what each tile of a causal head visits, the heaviest first: key tiles, and one for its start and end."""
    ends = range(choice.rows, q.shape[2] + choice.rows, choice.rows)
    return tuple(cdiv(min(end, k.shape[2]), choice.k_tile) + 1 for end in reversed(ends))


def _forward_sizes(request: Request, q: Tensor, k: Tensor) -> tuple[int, ...]:
    """Return queries, keys, heads, all heads, and the heads of which k and v stay in the cache."""
    bytes_of_head = max(1, 2 * k[0, 0].numel() * k.element_size() * k.shape[1] // q.shape[1])
    return q.shape[2], k.shape[2], *_heads(request, q, gpu.l2_bytes(q.device) // 2 // bytes_of_head)


def _backward_sizes(q: Tensor, k: Tensor, splits: int, heads_at_once: int) -> tuple[int, ...]:
    """Return queries, keys, groups of query heads (of one program each), all of the batch, and those at once."""
    groups = k.shape[1] * splits
    return q.shape[2], k.shape[2], groups, q.shape[0] * groups, heads_at_once


def _heads(request: Request, x: Tensor, fitting: int) -> tuple[int, int, int]:
    """Return x's heads, all of the batch, and how many of these are visited together: if causal, as many as fit.

    The tiles of a causal head differ in work, and the more heads share one order the better it is balanced.
    """
    batch, heads = x.shape[:2]
    return heads, batch * heads, min(batch * heads, max(1, fitting)) if request.is_causal else 1


def _constants(request: Request, q: Tensor, k: Tensor, columns: int, stages: int, registers: int) -> dict[str, Any]:
    return {
        "HEADS_PER_KV_HEAD": q.shape[1] // k.shape[1],
        "HEAD_DIM": q.shape[-1],
        "D": columns,
        "STAGES": stages,
        "IS_CAUSAL": request.is_causal,
        "REGISTERS": registers,
        "num_warps": 4,
    }
