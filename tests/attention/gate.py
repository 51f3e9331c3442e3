"""The correctness gate of the attention kernels: inputs, a float64 oracle, and a tolerance with a reason."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cs336_systems.attention.dropout import Dropout
from cs336_systems.attention.reference import attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Shape:
    """(*leading, seq_len_q, head_dim) against (*leading, seq_len_k, head_dim), laid out as `layout` says.

    Each head of k and v serves `heads_per_kv_head` of q.
    """

    leading: tuple[int, ...]
    seq_len_q: int
    seq_len_k: int
    head_dim: int
    layout: str = "contiguous"
    heads_per_kv_head: int = 1

    def __str__(self) -> str:
        leading = "x".join(map(str, self.leading)) or "none"
        groups = f"-grouped{self.heads_per_kv_head}" if self.heads_per_kv_head > 1 else ""
        return f"{leading}-{self.seq_len_q}x{self.seq_len_k}-d{self.head_dim}-{self.layout}{groups}"


LONG = 1000 if DEVICE == "cuda" else 263  # three tiles of 128, more of any smaller, and no tile divides it
GPU_SHAPES = (  # the same lengths at the other head sizes, more heads, and more tiles
    Shape((1,), 113, 113, 40),
    Shape((1,), 113, 113, 64),
    Shape((1,), 113, 113, 80),
    Shape((1,), 203, 203, 16),
    Shape((1,), 203, 203, 40),
    Shape((1,), 203, 203, 80),
    Shape((1,), 203, 203, 128),
    Shape((1,), 256, 256, 32),
    Shape((1,), 256, 256, 64),
    Shape((1,), 256, 256, 128),
    Shape((1,), LONG, LONG, 64),
    Shape((2,), 67, 33, 136),
    Shape((1,), 33, 130, 256),
    Shape((2,), 113, 203, 64),
    Shape((3,), 113, 113, 64, "expanded"),
    Shape((2, 3), 113, 113, 64, "heads_inside"),
    Shape((2, 3), 33, 33, 32),
    Shape((2, 1, 2), 33, 65, 16),
    Shape((2, 2, 3), 33, 33, 16, "heads_inside"),
)
SHAPES = (
    # One query, one key, and lengths below, at and just beyond a tile.
    Shape((1,), 1, 1, 16),
    Shape((2,), 1, 1, 64),
    Shape((1,), 1, 1, 80),
    Shape((1,), 7, 7, 16),
    Shape((2,), 7, 7, 40),
    Shape((1,), 7, 7, 128),
    Shape((2,), 16, 16, 16),
    Shape((1,), 63, 63, 32),
    Shape((1,), 64, 64, 64),
    Shape((1,), 65, 65, 64),
    Shape((1,), 127, 127, 16),
    Shape((1,), 128, 128, 128),
    Shape((1,), 129, 129, 40),
    # Lengths that no tile divides.
    Shape((2,), 113, 113, 16),
    Shape((1,), 113, 113, 128),
    Shape((1,), 203, 203, 64),
    Shape((1,), LONG, LONG, 16),
    Shape((1,), LONG, LONG, 128),
    # Beyond 128 columns, whose kernels are not tuned.
    Shape((1,), 35, 33, 136),
    Shape((1,), 17, 66, 256),
    # Unequal lengths: causal rows without a diagonal, causal keys that no query sees.
    Shape((2,), 1, 113, 16),
    Shape((1,), 7, 1, 40),
    Shape((1,), 113, 203, 64),
    Shape((1,), 203, 113, 64),
    Shape((1,), 203, 113, 128),
    Shape((1,), 64, 256, 64),
    Shape((1,), 256, 64, 80),
    Shape((1,), 7, LONG, 40),
    Shape((1,), LONG, 7, 16),
    Shape((1,), 128, 384, 32),
    # Memory layouts.
    Shape((2,), 113, 113, 64, "transposed"),
    Shape((1,), 203, 113, 40, "transposed"),
    Shape((2,), 70, 70, 64, "expanded"),
    Shape((2,), 65, 70, 16, "expanded"),
    Shape((2,), 113, 113, 64, "sliced"),
    Shape((1,), 130, 67, 80, "sliced"),
    Shape((2, 2), 67, 130, 40, "heads_inside"),
    # Leading dimensions: none and three, of which test_api.py has more.
    Shape((), 113, 113, 64),
    Shape((2, 1, 3), 33, 35, 16, "heads_inside"),
    *(GPU_SHAPES if DEVICE == "cuda" else ()),
)


GROUPED_SHAPES = (
    Shape((1, 2), 64, 64, 64, heads_per_kv_head=2),
    Shape((1, 6), 33, 33, 32, heads_per_kv_head=3),
    Shape((1, 5), 33, 70, 16, heads_per_kv_head=5),
    Shape((2, 4), 70, 35, 40, "heads_inside", 2),
    Shape((1, 2, 4), 33, 33, 16, "sliced", 2),
    Shape((1, 2), 113, 67, 128, heads_per_kv_head=2),
)


def make_inputs(shape: Shape, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v (which require gradients) and grad_out, drawn from N(0, 1) by the shape alone."""
    generator = torch.Generator().manual_seed(0)

    def draw(n: int, heads_per: int = 1) -> Tensor:
        leading = (*shape.leading[:-1], *(heads // heads_per for heads in shape.leading[-1:]))
        d = shape.head_dim
        full = (*leading, n, d)
        if shape.layout == "transposed":
            return torch.randn(*leading, d, n, generator=generator).to(DEVICE, dtype).transpose(-1, -2)
        if shape.layout == "expanded":
            return torch.randn(1, n, d, generator=generator).to(DEVICE, dtype).expand(full)
        if shape.layout == "sliced":  # odd offset and odd row stride: nothing is aligned
            return torch.randn(*leading, n + 1, d + 3, generator=generator).to(DEVICE, dtype)[..., 1:, 1 : d + 1]
        if shape.layout == "heads_inside":  # (batch, seq_len, heads, head_dim), as a linear layer leaves it
            return (
                torch.randn(*leading[:-1], n, leading[-1], d, generator=generator).to(DEVICE, dtype).transpose(-3, -2)
            )
        return torch.randn(full, generator=generator).to(DEVICE, dtype)

    q, (k, v) = draw(shape.seq_len_q), (draw(shape.seq_len_k, shape.heads_per_kv_head) for _ in range(2))
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), draw(shape.seq_len_q)


def exact_and_eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad_out: Tensor,
    is_causal: bool,
    softmax_scale: float | None = None,
    dropout: Dropout | None = None,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """out, lse, dq, dk and dv of the reference: in float64, and in the inputs' own dtype."""

    def run(dtype: torch.dtype) -> dict[str, Tensor]:
        leaves = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
        out, lse = attention(*leaves, is_causal, softmax_scale=softmax_scale, dropout=dropout)
        grads = torch.autograd.grad(out, leaves, grad_out.to(dtype))
        return dict(zip(("out", "lse", "dq", "dk", "dv"), (out.detach(), lse.detach(), *grads), strict=True))

    return run(torch.float64), run(q.dtype)


def tolerance(exact: Tensor, eager: Tensor, dtype: torch.dtype) -> float:
    """The largest error allowed: twice that of eager attention in the same dtype, plus a floor.

    The floor is for shapes at which eager attention makes no error at all (one key: its softmax is exactly
    1) or nearly none, while a right kernel still rounds: 4e-6 of the largest value in float32, and 8 units
    in the last place of it in bfloat16 and float16. Values below 0.25 count as 0.25, for they are sums of
    inputs of size 1 that cancel. (It does not stretch to many queries of one key: there dk is exactly 0, eager
    attention finds that, and any backward by way of delta sums one rounding error per query.)
    """
    eager_error = (eager.double() - exact).abs().max().item()
    relative_floor = 4e-6 if dtype == torch.float32 else 8 * torch.finfo(dtype).eps
    return 2 * eager_error + relative_floor * max(exact.abs().max().item(), 0.25)


def assert_within_gate(
    got: dict[str, Tensor], exact: dict[str, Tensor], eager: dict[str, Tensor], dtype: torch.dtype
) -> None:
    """Each tensor of `got` is as near to the oracle as `tolerance` demands, and finite."""
    for name, value in got.items():
        assert value.shape == exact[name].shape, f"{name} has shape {tuple(value.shape)}"
        error = (value.double() - exact[name]).abs().max().item()
        allowed = tolerance(exact[name], eager[name], dtype)
        assert error <= allowed, f"{name}: error {error:.3g} is not within {allowed:.3g}"  # a NaN fails too


def run_flash(
    function: type[torch.autograd.Function],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad_out: Tensor,
    *options: object,
) -> dict[str, Tensor]:
    """out, lse (from the saved tensors), dq, dk and dv of an autograd.Function."""
    out = function.apply(q, k, v, *options)
    grads = torch.autograd.grad(out, (q, k, v), grad_out, retain_graph=True)
    return dict(zip(("out", "lse", "dq", "dk", "dv"), (out.detach(), saved_lse(out, q), *grads), strict=True))


def assert_as_exact_as_eager(
    run: Callable[[Tensor, Tensor, Tensor, Tensor, bool], dict[str, Tensor]],
    shape: Shape,
    dtype: torch.dtype,
    is_causal: bool,
) -> None:
    """Hold what `run` makes of q, k, v, grad_out and is_causal to the gate."""
    q, k, v, grad_out = make_inputs(shape, dtype)
    exact, eager = exact_and_eager(q, k, v, grad_out, is_causal)
    assert_within_gate(run(q, k, v, grad_out, is_causal), exact, eager, dtype)


def saved_lse(out: Tensor, q: Tensor) -> Tensor:
    """The one saved tensor of shape q.shape[:-1]."""
    assert out.grad_fn is not None
    saved = [x for x in out.grad_fn.saved_tensors if x.shape == q.shape[:-1]]
    assert len(saved) == 1, f"{len(saved)} saved tensors have shape {tuple(q.shape[:-1])}"
    return saved[0]
