"""The exact answer of an attention problem in float64, and the error of eager attention in the problem's own dtype."""

import functools
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
    """float64, each of the problem's shape."""

    eager_rms: Answer
    """RMS of the rows' errors (`row_errors`) of each tensor of eager attention, by head; empty if not requested."""


@functools.lru_cache(maxsize=2)
def oracle(problem: AttentionProblem, device: str, precision: str | None = None) -> ExactAttention:
    """Compute the exact answer, a head and a block of queries at a time, so that 65536 keys fit.

    `precision` is that of eager attention's products, "float32" or "tf32" or the half precision of its inputs. None
    omits eager attention. Two problems are kept: a check looks at two (`AttentionProblem.keys`).
    """
    import torch

    heads = [tensor.detach().flatten(0, -3) for tensor in inputs(problem, device)]
    answer = {name: torch.zeros(heads[0].shape, dtype=torch.float64, device=device) for name in NAMES}
    rms: dict[str, list[Any]] = {name: [] for name in NAMES if precision}
    for head in range(len(heads[0])):
        tensors = [tensor[head] for tensor in heads]
        exact = {name: answer[name][head] for name in NAMES}
        eager = {name: torch.zeros_like(exact[name]) for name in rms}
        for start in range(0, problem.seq_len, _rows_at_once(problem)):
            rows = slice(start, start + _rows_at_once(problem))
            _add(exact, rows, [tensor.double() for tensor in tensors], problem, _exact_product)
            if precision:
                _add(eager, rows, tensors, problem, PRODUCTS.get(precision, _exact_product))
        for name, by_head in rms.items():
            by_head.append(row_errors(eager[name], exact[name]).square().mean().sqrt())
    return ExactAttention(
        {name: tensor.view(problem.shape) for name, tensor in answer.items()},
        {name: torch.stack(by_head) for name, by_head in rms.items()},
    )


def row_errors(actual: Any, exact: Any) -> Any:
    """Return the norm of each row's error over `row_scales`: (..., seq_len)."""
    return (actual.double() - exact).norm(dim=-1) / row_scales(exact)


def row_scales(exact: Any) -> Any:
    """Return the norm of each row, but at least the RMS norm of its head's rows: (..., seq_len)."""
    norms = exact.norm(dim=-1)
    return norms.maximum(norms.square().mean(-1, keepdim=True).sqrt())


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
    """Add the contributions of a block of queries of a head to `to`, (seq_len, d) each, in eager torch's operations.

    Every intermediate has the dtype of `tensors`: q, k, v, grad_out of the head. The softmax and its gradient round
    once at their end, like torch's own.
    """
    import torch

    q, k, v, grad_out = tensors
    last = min(rows.stop, problem.seq_len)
    columns = slice(0, last if problem.is_causal else problem.seq_len)  # without the keys above the diagonal
    q, k, v, grad_out = q[rows], k[columns], v[columns], grad_out[rows]
    scale = problem.d**-0.5
    scores = product(q, k.T) * scale
    if problem.is_causal:
        positions = torch.arange(rows.start, last, device=q.device)
        scores.masked_fill_(positions[:, None] < torch.arange(last, device=q.device), float("-inf"))
    p = torch.softmax(scores, dim=-1)
    to["out"][rows] = product(p, v).double()
    dp = product(grad_out, v.T)
    wide = torch.promote_types(p.dtype, torch.float32)
    wide_p, wide_dp = p.to(wide), dp.to(wide)
    ds = (wide_p * (wide_dp - (wide_p * wide_dp).sum(-1, keepdim=True))).to(p.dtype) * scale
    to["dq"][rows] = product(ds, k).double()
    to["dk"][columns] += product(ds.T, q).double()
    to["dv"][columns] += product(p.T, grad_out).double()
