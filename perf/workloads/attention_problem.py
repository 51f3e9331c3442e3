"""An attention problem: its tensors, and its minimum work."""

import functools
import math
from dataclasses import dataclass
from typing import Any

from perf.workloads.workload import Floor, require_allowed

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
PARTS = 8  # parts into which kernels split the keys


@dataclass(frozen=True)
class AttentionProblem:
    """All parameters of a case's tensors and answer, except the device."""

    leading: tuple[int, ...]
    """Leading dimensions before (seq_len, d): (batch,), (heads,) or (batch, heads)."""

    seq_len: int
    d: int
    dtype: str
    is_causal: bool
    grad_out: str = "random"
    """random, or ones: the gradient of a sum."""

    keys: str = "random"
    """random, or ends: the last key of each part of the sequence dominates its rows (`_with_ends`)."""

    kv_heads: int | None = None
    """Heads of k and v, each for as many consecutive heads of q; None for as many as q has."""

    def __post_init__(self):
        require_allowed(vars(self), dtype=BYTES, grad_out=("random", "ones"), keys=("random", "ends"))
        for value in (*self.leading, self.seq_len, self.d):
            if value < 1:
                raise ValueError(f"a dimension of {value} was given; allowed: 1 and more")
        if self.kv_heads is not None and (self.kv_heads < 1 or self.leading[-1] % self.kv_heads):
            raise ValueError(f"kv_heads={self.kv_heads} was given; allowed: divisors of the {self.leading[-1]} heads")

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of q and out."""
        return (*self.leading, self.seq_len, self.d)

    @property
    def kv_shape(self) -> tuple[int, ...]:
        """Return the shape of k and v."""
        return (*self.leading[:-1], self.kv_heads, self.seq_len, self.d) if self.kv_heads else self.shape

    @property
    def is_grouped(self) -> bool:
        """Return whether k and v have fewer heads than q."""
        return self.kv_shape != self.shape


def inputs(problem: AttentionProblem, device: str) -> tuple[Any, ...]:
    """Return q, k, v, grad_out: the same random numbers for the same shape."""
    import torch

    generator = torch.Generator(device).manual_seed(0)
    kind = getattr(torch, problem.dtype)
    shapes = (problem.shape, problem.kv_shape, problem.kv_shape, problem.shape)
    drawn = functools.partial(torch.randn, dtype=torch.float32, device=device, generator=generator)
    tensors = [drawn(shape).to(kind) for shape in shapes]
    if problem.keys == "ends":
        _with_ends(tensors[0], tensors[1], problem)
    if problem.grad_out == "ones":
        tensors[3] = torch.ones_like(tensors[3])
    return tuple(tensor.requires_grad_(index < 3) for index, tensor in enumerate(tensors))


def floor(problem: AttentionProblem, mode: str) -> Floor:
    """Return the minimum work: two matmuls forward, five backward, over half the scores if causal; inputs read once.

    The fifth matmul recomputes the scores. Storing them instead takes two passes over n x n numbers, which is slower.
    """
    n = problem.seq_len
    pairs = math.prod(problem.leading) * (n * (n + 1) / 2 if problem.is_causal else n * n)
    q, kv = (math.prod(shape) * BYTES[problem.dtype] for shape in (problem.shape, problem.kv_shape))
    matmuls = {"forward": 2, "backward": 5, "forward_backward": 7}[mode]
    read = 2 * kv + (q if mode == "forward" else 2 * q)
    written = q if mode == "forward" else q + 2 * kv
    return Floor(
        flops=matmuls * 2 * problem.d * pairs,
        matmul_dtype=problem.dtype,
        bytes_read=read,
        bytes_written=written,
    )


def _with_ends(q: Any, k: Any, problem: AttentionProblem) -> None:
    """Give the last key of each of `PARTS` equal parts of the sequence about 3/4 of the softmax weight of its rows.

    A causal row attends to the last of these keys that it sees; without a mask the rows alternate. Each part has a
    coordinate of its own, 0 in all other keys, which raises the score of the row's key to 1.5 + log(number of keys);
    the log-sum-exp of the random scores exceeds that logarithm by at most 0.5. Kernels end their loops over keys at the
    end of a part: at the last tile, or at the last tile of a split.
    """
    import torch

    parts = min(PARTS, problem.seq_len, problem.d)
    marks, queries = torch.arange(parts, device=q.device), torch.arange(problem.seq_len, device=q.device)
    ends = (marks + 1) * problem.seq_len // parts - 1
    part_of = torch.searchsorted(ends, queries, right=True) - 1 if problem.is_causal else queries % parts  # -1: none
    seen = (ends if problem.is_causal else queries[-1].expand(parts)) + 1
    size = ((seen.float().log() + 1.5) * math.sqrt(problem.d)).sqrt().to(q.dtype)
    q[..., :parts] = (part_of[:, None] == marks) * size
    k[..., :parts] = 0.0
    k[..., ends, marks] = size
