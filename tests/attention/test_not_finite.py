"""NaN and infinities: what they reach in eager attention they reach here, and nothing else."""

import pytest
import torch
from torch import Tensor

from cs336_systems.attention.api import flash_attention
from tests.attention.gate import DEVICE

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, in Triton's interpreter

NOT_FINITE = [float("nan"), float("inf"), float("-inf")]
BFLOAT16 = pytest.mark.gpu  # Triton's interpreter multiplies its bit patterns
DTYPES = [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=BFLOAT16)]
NAMES = ("q", "k", "v", "grad_out")
ROW = 70  # in the second tile of 64, and in the first of 128


def inputs(n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(1, n, 16, generator=generator).to(DEVICE, dtype) for name in NAMES}


def not_finite(impl: str, tensors: dict[str, Tensor], is_causal: bool) -> dict[str, Tensor]:
    """Of out, dq, dk and dv: where they are NaN or infinite, (seq_len, head_dim)."""
    q, k, v = (tensors[name].clone().requires_grad_() for name in "qkv")
    out = flash_attention(q, k, v, is_causal, impl=impl)
    values = (out, *torch.autograd.grad(out, (q, k, v), tensors["grad_out"]))
    return {name: ~value.detach()[0].isfinite() for name, value in zip(("out", "dq", "dk", "dv"), values, strict=True)}


@pytest.mark.parametrize(
    ("dtype", "n"),
    [  # lengths that tiles divide and do not
        (torch.float32, 128),
        (torch.float16, 150),
        *(pytest.param(torch.bfloat16, n, marks=BFLOAT16) for n in (128, 150)),
    ],
)
@pytest.mark.parametrize("value", NOT_FINITE, ids=str)
@pytest.mark.parametrize("where", NAMES)
@pytest.mark.parametrize("impl", ["pytorch", "triton"])
def test_without_a_mask_they_reach_what_they_reach_in_eager(
    impl: str, where: str, value: float, dtype: torch.dtype, n: int
) -> None:
    tensors = inputs(n, dtype)
    tensors[where][0, ROW, 3] = value
    eager, ours = (not_finite(one, tensors, False) for one in ("reference", impl))
    for name, expected in eager.items():
        assert torch.equal(ours[name], expected), name


@pytest.mark.parametrize("value", NOT_FINITE, ids=str)
@pytest.mark.parametrize("where", NAMES)
@pytest.mark.parametrize("impl", ["pytorch", "triton"])
def test_causally_they_reach_all_that_sees_them_and_no_output_before(impl: str, where: str, value: float) -> None:
    """What the mask hides may be NaN or not: eager multiplies it by 0, which keeps a NaN, and a tile is skipped."""
    tensors = inputs(100, torch.float32)
    tensors[where][0, ROW, 3] = value
    eager, ours = (not_finite(one, tensors, True) for one in ("reference", impl))
    for name in ("out", "dq"):
        assert torch.equal(ours[name][ROW:], eager[name][ROW:]), name
    seen = slice(0, ROW + 1)  # by the bad query; all keys are seen by queries that see a bad key
    for name in ("dk", "dv"):
        assert torch.equal(ours[name][seen], eager[name][seen]), name
    if where in "qk":
        assert not ours["out"][:ROW].any()


@pytest.mark.parametrize("hidden", [1, 128, 140])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("impl", ["pytorch", "triton"])
def test_scores_of_minus_infinity_count_for_nothing(impl: str, dtype: torch.dtype, hidden: int) -> None:
    """Whole tiles of them too, first or last: the softmax is over the other keys."""
    tensors = inputs(192, dtype)
    tensors |= {name: tensors[name][:, :64] for name in ("q", "grad_out")}
    tensors["q"][..., 3] = 1
    for keys in (slice(0, hidden), slice(192 - hidden, 192)):
        k, v = tensors["k"].clone(), tensors["v"]
        k[:, keys, 3] = float("-inf")
        seen = torch.ones(192, dtype=torch.bool, device=DEVICE)
        seen[keys] = False
        out = flash_attention(tensors["q"], k, v, impl=impl)
        expected_out = flash_attention(tensors["q"], k[:, seen], v[:, seen], impl=impl)
        atol = 1e-5 if dtype == torch.float32 else 8 * torch.finfo(dtype).eps
        torch.testing.assert_close(out, expected_out, rtol=0, atol=atol)
        eager, ours = (not_finite(one, tensors | {"k": k}, False) for one in ("reference", impl))
        for name, expected in eager.items():
            assert torch.equal(ours[name], expected), name


@pytest.mark.parametrize("impl", ["pytorch", "triton"])
def test_a_query_without_a_key_is_nan_as_in_eager(impl: str) -> None:
    tensors = inputs(150, torch.float32)
    tensors["q"][..., 3] = 1
    tensors["k"][:, :100, 3] = float("-inf")
    eager, ours = (not_finite(one, tensors, True)["out"] for one in ("reference", impl))
    assert eager[:100].all() and not eager[100:].any()
    assert torch.equal(ours, eager)
