"""Both passes of the backward in one launch: against the oracle, the same every time, and where it is taken."""

from functools import partial

import pytest
import torch

from cs336_systems.attention import gpu, triton_plans
from cs336_systems.attention.api import flash_attention
from cs336_systems.attention.flash_triton import FlashAttentionTriton
from cs336_systems.attention.planning import plans
from cs336_systems.attention.tiles import AT_ONCE_TILES, tiles_at_once
from tests.attention.gate import DEVICE, Shape, assert_as_exact_as_eager, make_inputs, run_flash

SHAPES = (
    Shape((2,), 128, 128, 64),
    Shape((2, 2), 67, 130, 40, "heads_inside"),
    Shape((1, 2), 130, 67, 16, heads_per_kv_head=2),
    Shape((1, 6), 33, 33, 32, "heads_inside", 3),
    Shape((1,), 7, 200, 128, "sliced"),
    Shape((1,), 129, 3, 80),
    Shape((2,), 65, 65, 64, "expanded"),
)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_plans, "tiles_at_once", lambda q, k: AT_ONCE_TILES)


@pytest.mark.usefixtures("taken")
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_as_exact_as_eager(shape: Shape, is_causal: bool) -> None:
    dtype = torch.float16 if DEVICE == "cuda" else torch.float32
    assert_as_exact_as_eager(partial(run_flash, FlashAttentionTriton), shape, dtype, is_causal)


@pytest.mark.usefixtures("taken")
def test_it_drops_what_the_forward_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the two passes do, which are held to eager."""
    q, k, v, grad_out = make_inputs(Shape((1, 2), 70, 67, 32), torch.float32)

    def gradients() -> tuple[torch.Tensor, ...]:
        torch.manual_seed(0)
        out = flash_attention(q, k, v, True, impl="triton", dropout_p=0.3)
        return torch.autograd.grad(out, (q, k, v), grad_out)

    at_once = gradients()
    monkeypatch.setattr(triton_plans, "tiles_at_once", lambda q, k: None)
    plans.clear()
    torch.testing.assert_close(at_once, gradients(), rtol=1e-5, atol=1e-5)


def test_a_short_head_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "multiprocessors", lambda device: 132)

    def taken(heads: int, n: int, d: int, dtype: torch.dtype = torch.bfloat16) -> bool:
        q = torch.empty(1, heads, n, d, dtype=dtype, device="meta")
        return tiles_at_once(q, q) is not None

    assert [taken(1, n, 64) for n in (128, 1024, 4096, 8192)] == [True, True, True, False]
    assert [taken(1, n, 128) for n in (128, 1024, 4096, 8192, 16384)] == [True, True, True, True, False]
    assert taken(33, 512, 64) and not taken(34, 512, 64)  # many programs, but few scores
    assert taken(1, 32768, 16) and taken(256, 4096, 32) and not taken(256, 4097, 32)  # however many
    assert taken(8, 1024, 64) and not taken(9, 1024, 64)
    assert not taken(1, 1024, 64, torch.float32) and not taken(1, 1, 64)
    monkeypatch.setattr(gpu, "shared_bytes", lambda device: 99 * 2**10)
    assert not taken(1, 1024, 64)


@pytest.mark.gpu
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("d", [16, 32, 64, 80, 128])
@pytest.mark.parametrize("n", [128, 1000, 1024])
def test_it_is_as_exact_as_eager_where_it_is_taken(n: int, d: int, is_causal: bool) -> None:
    shape = Shape((1, 1), n, n, d)
    q, k, *_ = make_inputs(shape, torch.bfloat16)
    assert tiles_at_once(q, k)
    assert_as_exact_as_eager(partial(run_flash, FlashAttentionTriton), shape, q.dtype, is_causal)
