"""Shapes drawn at random, a tenth of them of one query: every kernel choice, held to the float64 oracle."""

import random
from functools import partial

import pytest
import torch

from cs336_systems.attention.flash_triton import FlashAttentionTriton
from tests.attention.gate import DEVICE, Shape, assert_as_exact_as_eager, run_flash

ON_GPU = DEVICE == "cuda"
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if ON_GPU else [])]  # Triton's interpreter has no bfloat16
LONGEST = 2500 if ON_GPU else 70


def drawn(seed: int) -> tuple[Shape, torch.dtype, bool]:
    """Shape, dtype and is_causal. Every tenth seed has one query; of one key, dk is rounding alone, so none has."""
    draw = random.Random(seed)
    kv_heads, group = draw.choice((1, 2, 3)), draw.choice((1, 1, 1, 2, 4))
    seq_len_q = 1 if seed % 10 == 0 else round(2 ** draw.uniform(1, 1.01 * torch.tensor(LONGEST).log2().item()))
    seq_len_k = round(2 ** draw.uniform(1, torch.tensor(LONGEST).log2().item()))
    head_dim = draw.choice((16, 32, 64, 128, draw.randint(16, 128)))
    layout = draw.choice(("contiguous", "contiguous", "heads_inside", "sliced", "transposed"))
    shape = Shape((draw.choice((1, 2, 5)), kv_heads * group), seq_len_q, seq_len_k, head_dim, layout, group)
    return shape, draw.choice(DTYPES), draw.random() < 0.5


def check(seed: int) -> None:
    assert_as_exact_as_eager(partial(run_flash, FlashAttentionTriton), *drawn(seed))


@pytest.mark.parametrize("seed", range(11))
def test_a_few_random_shapes(seed: int) -> None:
    check(seed)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(100, 400))
def test_random_shapes(seed: int) -> None:
    check(seed)
