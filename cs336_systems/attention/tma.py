"""Descriptors for the copy engine (TMA), and memory that it can address."""

from collections.abc import Callable

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from cs336_systems.attention.private import descriptors_like


def describes(like: Tensor, rows: int, columns: int) -> Callable[[Tensor], TensorDescriptor]:
    """Return a function that describes tensors laid out as `like` in tiles of rows x columns.

    What of a tile lies beyond the tensor is loaded as zeros and not stored.
    """
    bits = like.element_size() * 8
    layout = gl.NVMMASharedLayout(swizzle_byte_width=min(128, columns * bits // 8), element_bitwidth=bits, rank=4)
    # A dimension of size 1 may have any stride, and the copy engine's must be multiples of 16 bytes.
    shape = list(like.shape)
    strides = [shape[-1] if size == 1 else stride for size, stride in zip(shape, like.stride(), strict=True)]
    # Not empty_like, whose Python code for this device imports sympy: 2 to 4 s of a first call.
    base = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta")
    checked = TensorDescriptor(base, shape, strides, [1, 1, rows, columns], layout)
    return descriptors_like(checked)


def aligned_copy(x: Tensor) -> Tensor:
    """Clone into TMA-addressable memory: `contiguous()` returns a misaligned contiguous tensor unchanged."""
    return x.clone(memory_format=torch.contiguous_format)
