"""Tensors whose memory is what they hold, as kernels and collectives need."""

from torch import Tensor


def materialized(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy if its memory has gaps, holds conjugates or negatives of its values, or is missing.

    Autograd gives zeros without memory, as the gradient of sgn, which cannot be written to either.
    """
    dense = tensor.contiguous().resolve_conj().resolve_neg()
    return dense if dense.data_ptr() else dense.clone()
