"""Tensors whose memory is what they hold, as kernels and collectives need."""

import torch
from torch import Tensor


def holds_its_values(tensor: Tensor) -> bool:
    """Whether there is memory, and in it neither conjugates nor negatives of the tensor's values.

    Autograd gives zeros without memory, as the gradient of sgn, which cannot be written to either.
    """
    return tensor.data_ptr() != 0 and not tensor.is_conj() and not tensor.is_neg()


def materialized(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy if its memory has gaps or does not hold its values."""
    dense = tensor.contiguous()
    return dense if holds_its_values(dense) else dense.clone()


def laid_out_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Return a parameter's gradient, or a copy, in the memory layout of the parameter, as autograd does.

    Torch's fused optimizers pair their elements by their places in memory.
    """
    if tensor.stride() == parameter.stride():
        return tensor
    return torch.empty_like(parameter, dtype=tensor.dtype).copy_(tensor)
