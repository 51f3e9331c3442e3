"""The exact answer of an attention problem in float64, and the error of eager attention in the problem's own dtype."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perf.workloads.attention_problem import AttentionProblem, inputs

NAMES = ("out", "dq", "dk", "dv")
BLOCK = 2**26  # float64 scores in memory at a time: 0.5 GiB
TF32_DROPS = 13  # of float32's 23 explicit bits

Answer = dict[str, Any]
"""out, dq, dk, dv."""


@dataclass(frozen=True)
class ExactAttention:
    """The reference of an implementation's answer."""

    answer: Answer
    """float64, out and dq of q's shape, dk and dv of k's."""

    eager_rms: Answer
    """RMS of the rows' errors (`row_errors`) of each tensor of eager attention, by head; empty if not requested."""


@functools.lru_cache(maxsize=2)
def oracle(problem: AttentionProblem, device: str, precision: str | None = None) -> ExactAttention:
    """Compute the exact answer, a few heads and a block of queries at a time, so that 65536 keys fit.

    `precision` is that of eager attention's products, "float32" or "tf32" or the half precision of its inputs. None
    omits eager attention. Two problems are kept: a check looks at two (`AttentionProblem.keys`).
    """
    import torch

    # By group: the heads of q that share a head of k and v, one each unless the problem is grouped.
    q, k, v, grad_out = (_by_kv_head(tensor.detach(), problem) for tensor in inputs(problem, device))
    shapes = zip(NAMES, (problem.shape,) * 2 + (problem.kv_shape,) * 2, strict=True)
    answer = {name: torch.zeros(shape, dtype=torch.float64, device=device) for name, shape in shapes}
    grouped = {name: _by_kv_head(tensor, problem) for name, tensor in answer.items()}
    rms: dict[str, list[Any]] = {name: [] for name in NAMES if precision}
    at_once = max(1, BLOCK // problem.seq_len**2)
    for first in range(0, len(k), at_once):
        groups = slice(first, first + at_once)
        exact = {name: tensor[groups] for name, tensor in grouped.items()}
        eager = {name: torch.zeros_like(exact[name]) for name in rms}
        for head in range(q.shape[1]):
            tensors = [q[groups, head], k[groups, 0], v[groups, 0], grad_out[groups, head]]
            for start in range(0, problem.seq_len, _rows_at_once(problem)):
                rows = slice(start, start + _rows_at_once(problem))
                _add(_of(exact, head), rows, [tensor.double() for tensor in tensors], problem, _exact_product)
                if precision:
                    _add(_of(eager, head), rows, tensors, problem, PRODUCTS.get(precision, _exact_product))
        for name, by_group in rms.items():
            by_group.append(row_errors(eager[name], exact[name]).square().mean(-1).sqrt().flatten())
    return ExactAttention(answer, {name: torch.cat(by_group) for name, by_group in rms.items()})


def row_errors(actual: Any, exact: Any) -> Any:
    """Return the norm of each row's error over `row_scales`: (..., seq_len)."""
    return (actual.double() - exact).norm(dim=-1) / row_scales(exact)


def row_scales(exact: Any) -> Any:
    """Return the norm of each row, but at least the RMS norm of its head's rows: (..., seq_len)."""
    norms = exact.norm(dim=-1)
    return norms.maximum(norms.square().mean(-1, keepdim=True).sqrt())


def _by_kv_head(tensor: Any, problem: AttentionProblem) -> Any:
    """View as (batch and heads of k, heads of `tensor` for each, seq_len, d)."""
    return tensor.reshape(math.prod(problem.kv_shape[:-2]), -1, *problem.shape[-2:])


def _of(answer: Answer, head: int) -> Answer:
    """Return a head of out and dq, and the group's head of dk and dv, to which all of its heads add, of each group."""
    return {name: answer[name][:, head if name in ("out", "dq") else 0] for name in answer}


def _rows_at_once(problem: AttentionProblem) -> int:
    return max(1, min(problem.seq_len, BLOCK // problem.seq_len))


def _exact_product(a: Any, b: Any) -> Any:
    return a @ b


def _tf32_product(a: Any, b: Any) -> Any:
    """Multiply like a tensor core, which truncates float32 operands."""
    return _truncated(a) @ _truncated(b)


def _truncated(tensor: Any) -> Any:
    import torch

    return (tensor.contiguous().view(torch.int32) & -(1 << TF32_DROPS)).view(torch.float32)


PRODUCTS: dict[str, Callable[[Any, Any], Any]] = {"tf32": _tf32_product}


def _add(
    to: Answer, rows: slice, tensors: list[Any], problem: AttentionProblem, product: Callable[[Any, Any], Any]
) -> None:
    """Add the contributions of a block of queries of some heads to `to`, (heads, seq_len, d) each, in eager operations.

    Every intermediate has the dtype of `tensors`: q, k, v, grad_out of the heads. The softmax and its gradient round
    once at their end, like torch's own.
    """
    import torch

    q, k, v, grad_out = tensors
    last = min(rows.stop, problem.seq_len)
    columns = slice(0, last if problem.is_causal else problem.seq_len)  # without the keys above the diagonal
    q, k, v, grad_out = q[:, rows], k[:, columns], v[:, columns], grad_out[:, rows]
    scale = problem.d**-0.5
    scores = product(q, k.mT) * scale
    if problem.is_causal:
        positions = torch.arange(rows.start, last, device=q.device)
        scores.masked_fill_(positions[:, None] < torch.arange(last, device=q.device), float("-inf"))
    p = torch.softmax(scores, dim=-1)
    to["out"][:, rows] = product(p, v).double()
    dp = product(grad_out, v.mT)
    wide = torch.promote_types(p.dtype, torch.float32)
    wide_p, wide_dp = p.to(wide), dp.to(wide)
    ds = (wide_p * (wide_dp - (wide_p * wide_dp).sum(-1, keepdim=True))).to(p.dtype) * scale
    to["dq"][:, rows] = product(ds, k).double()
    to["dk"][:, columns] += product(ds.mT, q).double()
    to["dv"][:, columns] += product(p.mT, grad_out).double()
