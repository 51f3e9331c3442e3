"""The forward over chunks of keys: against the oracle, and where it is taken."""

import itertools
from functools import partial

import pytest
import torch

from cs336_systems.attention import flash_triton, gpu, tiles
from cs336_systems.attention.flash_triton import FlashAttentionTriton
from cs336_systems.attention.request import Request
from cs336_systems.attention.tiles import split_keys
from tests.attention.gate import DEVICE, Shape, assert_as_exact_as_eager, exact_and_eager, make_inputs, run_flash

SHAPES = (
    Shape((2,), 130, 130, 64),
    Shape((2, 2), 67, 130, 40, "heads_inside"),
    Shape((1, 4), 33, 130, 16, heads_per_kv_head=2),
    Shape((1,), 7, 256, 128, "sliced"),
    Shape((1,), 129, 3, 80),
)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "split_keys", lambda request, q, k: 64)


@pytest.mark.usefixtures("taken")
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_as_exact_as_eager(shape: Shape, is_causal: bool) -> None:
    dtype = torch.float16 if DEVICE == "cuda" else torch.float32  # of which Triton asks three products on a GPU
    assert_as_exact_as_eager(partial(run_flash, FlashAttentionTriton), shape, dtype, is_causal)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, in Triton's interpreter
@pytest.mark.usefixtures("taken")
@pytest.mark.parametrize("hidden", [slice(0, 100), slice(60, 192), slice(0, 192)])
def test_a_chunk_of_scores_of_minus_infinity_counts_for_nothing(hidden: slice) -> None:
    q, k, v, grad_out = (x.half() for x in make_inputs(Shape((1,), 192, 192, 16), torch.float32))
    q[..., 3] = 1
    k[:, hidden, 3] = float("-inf")
    out, lse = flash_triton.flash_forward(q, k, v, False, 0.25)
    _, eager = exact_and_eager(q, k, v, grad_out, False, softmax_scale=0.25)
    assert torch.equal(out.isnan(), eager["out"].isnan())
    torch.testing.assert_close(out.nan_to_num(), eager["out"].nan_to_num(), rtol=0, atol=8e-3)
    torch.testing.assert_close(lse, eager["lse"].float(), rtol=0, atol=8e-3)


def test_a_few_long_heads_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "multiprocessors", lambda device: 132)

    def chunk(heads: int, n: int, d: int, dtype: torch.dtype = torch.bfloat16, dropout: bool = False) -> int | None:
        q = torch.empty(1, heads, n, d, dtype=dtype, device="meta")
        return split_keys(Request(dropout=0.1 if dropout else 0.0), q, q)

    assert [chunk(1, n, 64) for n in (1024, 2048, 4096, 8192, 16384)] == [256, 512, 1024, 2048, None]
    assert [chunk(1, n, 16) for n in (1024, 2048, 4096, 8192, 32768)] == [256, 256, 512, 1024, None]
    assert chunk(2, 1024, 80) == 256 and chunk(3, 1024, 80) is None
    assert chunk(4, 2048, 128) == 512 and chunk(8, 2048, 128) is None
    assert chunk(1, 8192, 64, torch.float32) is None and chunk(1, 8192, 64, dropout=True) is None


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("n", "d"), [(1024, 64), (1100, 128), *itertools.product((2048, 2500, 4096, 8192), (16, 64, 128))]
)
def test_it_is_as_exact_as_eager_where_it_is_taken(n: int, d: int) -> None:
    shape = Shape((1, 1), n, n, d)
    q, k, *_ = make_inputs(shape, torch.bfloat16)
    assert split_keys(Request(), q, k)
    assert_as_exact_as_eager(partial(run_flash, FlashAttentionTriton), shape, q.dtype, True)
