"""One attention problem: its tensors, the least work it takes, its exact answer, and how far off an answer may be."""

import functools
import math
from dataclasses import dataclass
from typing import Any

from perf.workloads.workload import Floor, WrongResult

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

# Largest error of a row over max(norm of the exact row, RMS norm of all rows of its head). Sixteen units in the last
# place for the half precisions: out is rounded before delta is taken from it, and in the worst of the million rows of
# 32768 tokens and 32 heads that makes ten (dq, 7.8e-2 in bfloat16, for every backend of PyTorch's and for ours); a tile
# left out makes over a hundred. For float32 between what 65536 terms add up to (1e-5) and what TF32 would give (3e-4),
# which has the bits of float16.
TOLERANCE = {"bfloat16": 16 * 2**-7, "float16": 16 * 2**-10, "float32": 1e-4, "tf32": 16 * 2**-10}

ORACLE_BLOCK = 2**26  # float64 scores held at once: 0.5 GiB


@dataclass(frozen=True)
class Problem:
    """Everything that the tensors and the answer of a case depend on, but for the device."""

    leading: tuple[int, ...]
    """(batch,), (heads,) or (batch, heads), in front of (seq_len, d)."""

    seq_len: int
    d: int
    dtype: str
    is_causal: bool
    grad_out: str = "random"
    """random, or ones: the gradient of a sum."""

    def __post_init__(self):
        if self.dtype not in BYTES:
            raise ValueError(f"dtype={self.dtype!r} was given; allowed: {', '.join(BYTES)}")
        if self.grad_out not in ("random", "ones"):
            raise ValueError(f"grad_out={self.grad_out!r} was given; allowed: random, ones")
        for value in (*self.leading, self.seq_len, self.d):
            if value < 1:
                raise ValueError(f"a dimension of {value} was given; allowed: 1 and more")

    @property
    def shape(self) -> tuple[int, ...]:
        """Of q, k, v and out."""
        return (*self.leading, self.seq_len, self.d)


def inputs(problem: Problem, device: str) -> tuple[Any, ...]:
    """q, k, v, grad_out: the same random numbers whenever the shape is the same."""
    import torch

    generator = torch.Generator(device).manual_seed(0)
    kind = getattr(torch, problem.dtype)
    tensors = [torch.randn(*problem.shape, device=device, generator=generator).to(kind) for _ in range(4)]
    if problem.grad_out == "ones":
        tensors[3] = torch.ones_like(tensors[3])
    return tuple(tensor.requires_grad_(index < 3) for index, tensor in enumerate(tensors))


def floor(problem: Problem, mode: str) -> Floor:
    """Two matmuls forward and five backward, over half the scores when causal; every input read once.

    The fifth recomputes the scores. Keeping them saves it and costs two passes over n x n numbers, which take longer.
    """
    n = problem.seq_len
    pairs = math.prod(problem.leading) * (n * (n + 1) / 2 if problem.is_causal else n * n)
    tensor = math.prod(problem.shape) * BYTES[problem.dtype]
    matmuls = {"forward": 2, "backward": 5, "forward_backward": 7}[mode]
    read = 3 if mode == "forward" else 4
    written = 1 if mode == "forward" else 3
    return Floor(
        flops=matmuls * 2 * problem.d * pairs,
        matmul_dtype=problem.dtype,
        bytes_read=read * tensor,
        bytes_written=written * tensor,
    )


@functools.lru_cache(maxsize=1)
def oracle(problem: Problem, device: str) -> dict[str, Any]:
    """out, dq, dk, dv in float64, head by head and in each a block of queries at a time, so that 65536 fits."""
    import torch

    heads = [tensor.detach().flatten(0, -3) for tensor in inputs(problem, device)]
    exact = {
        name: torch.zeros(heads[0].shape, dtype=torch.float64, device=device) for name in ("out", "dq", "dk", "dv")
    }
    for head in range(len(heads[0])):
        q, k, v, grad_out = (tensor[head].double() for tensor in heads)
        _fill_one_head(q, k, v, grad_out, problem.is_causal, **{name: exact[name][head] for name in exact})
    return {name: tensor.view(problem.shape) for name, tensor in exact.items()}


def largest_error(problem: Problem, device: str, found: dict[str, Any], precision: str | None = None) -> float:
    """Over all rows of the tensors in `found` (out, dq, dk, dv). Raises `WrongResult` above the tolerance.

    `precision` is that of the products, "tf32", where it is not the dtype's own.
    """
    exact = oracle(problem, device)
    allowed = TOLERANCE[precision or problem.dtype]
    return max(_row_error(name, found[name].detach(), exact[name], allowed) for name in found)


def _fill_one_head(q: Any, k: Any, v: Any, grad_out: Any, is_causal: bool, out: Any, dq: Any, dk: Any, dv: Any) -> None:
    """Writes out, dq, dk, dv, which start as zeros; all are (seq_len, d) in float64."""
    import torch

    seq_len, d = q.shape
    scale = d**-0.5
    block = max(1, min(seq_len, ORACLE_BLOCK // seq_len))
    for start in range(0, seq_len, block):
        rows = slice(start, start + block)
        columns = slice(0, start + block if is_causal else seq_len)  # keys above the diagonal count for none
        scores = q[rows] @ k[columns].T * scale
        if is_causal:
            positions = torch.arange(start, start + len(scores), device=q.device)
            scores.masked_fill_(positions[:, None] < torch.arange(scores.shape[1], device=q.device), float("-inf"))
        probabilities = torch.softmax(scores, dim=-1)
        out[rows] = probabilities @ v[columns]
        delta = (out[rows] * grad_out[rows]).sum(-1, keepdim=True)
        grad_scores = probabilities * (grad_out[rows] @ v[columns].T - delta) * scale
        dq[rows] = grad_scores @ k[columns]
        dk[columns] += grad_scores.T @ q[rows]
        dv[columns] += probabilities.T @ grad_out[rows]


def _row_error(name: str, found: Any, exact: Any, allowed: float) -> float:
    assert found.shape == exact.shape
    error = 0.0
    for ours, true in zip(found.flatten(0, -3), exact.flatten(0, -3), strict=True):
        norms = true.norm(dim=-1)
        scale = norms.clamp(min=float(norms.square().mean().sqrt()))
        worst = float(((ours.double() - true).norm(dim=-1) / scale).max())
        if not worst <= allowed:  # NaN compares false
            raise WrongResult(f"{name} differs from float64 by {worst:.1e} of a row's norm, allowed {allowed:.1e}")
        error = max(error, worst)
    return error
