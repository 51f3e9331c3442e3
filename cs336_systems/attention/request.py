"""The request of an attention call: its options, built once and passed whole."""

from typing import NamedTuple

import torch
from torch import Tensor

from cs336_systems.attention.constants import LOG2_E

# fp32_precision -> how float32 operands are multiplied on tensor cores. "ieee" splits each operand into three bfloat16
# pieces and takes six of their nine products, which keep 24 bits at the price of tf32x3 (three TF32 products, 22 bits).
# tf32x3's rounding shows where dp and delta cancel: 1.6e-6 in dk for one key of d = 64, where dk is 0 (H200). TF32
# keeps 10 bits, with 1000 times the error of eager float32; three of the nine products keep 16. The Gluon kernels,
# which split float32 beforehand, use those three for "tf32" too.
FP32_PRODUCTS = {"ieee": "bf16x6", "tf32": "tf32", "bf16x3": "bf16x3"}


class Request(NamedTuple):
    """Options of a call; everything that it asks for besides its tensors."""

    is_causal: bool = False
    scale: float | None = None
    """Factor on the scores; head_dim ** -0.5 if None."""

    products: str = "ieee"
    """tl.dot's input_precision for float32, a value of `FP32_PRODUCTS`; "ieee" for 16-bit inputs."""

    dropout: float = 0.0
    """Probability with which a softmax probability is dropped."""

    deterministic: bool = False
    """Whether two backwards must return the same bits."""

    @property
    def scale_log2(self) -> float:
        """Scale of scores in base 2, once `scale` is a number."""
        assert self.scale is not None
        return self.scale * LOG2_E


def products_of(q: Tensor, fp32_precision: str | None) -> str:
    """Return how operands of q's dtype are multiplied; float32 follows torch's setting if `fp32_precision` is None."""
    if q.dtype != torch.float32:
        return "ieee"
    return FP32_PRODUCTS[fp32_precision or torch_fp32_precision()]


def torch_fp32_precision() -> str:
    """Return torch's precision of float32 matmuls on the GPU, "ieee" or "tf32", however it was set."""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"
