"""Attention: an implementation at a shape, forward, backward or both."""

from collections.abc import Callable, Sequence
from typing import Any

from perf.workloads.attention_check import TOLERANCES, largest_error
from perf.workloads.attention_impls import TF32, Attend, implementation
from perf.workloads.attention_oracle import Answer
from perf.workloads.attention_problem import AttentionProblem, floor, inputs
from perf.workloads.workload import Workload, no_floor, require_allowed

NOTHING = no_floor("nothing runs: only memory is measured")
MODES = ("forward", "backward", "forward_backward", "before_backward")


def build(params: dict[str, Any], device: str) -> Workload:
    """Build attention. `params`: those of `problem_of`, mode (of `MODES`) and impl (of `attention_impls.IMPLS`).

    Forward is a training forward, which saves tensors for the backward. Backward is timed alone, on an existing graph.
    before_backward does nothing beside such a graph: its peak memory is that which a forward leaves allocated.
    """
    import torch

    mode = params["mode"]
    require_allowed(params, mode=MODES)
    problem = problem_of(params)
    attend = implementation(params["impl"], problem, device)
    q, k, v, grad_out = inputs(problem, device)
    leaves = (q, k, v)

    def forward():
        return attend(q, k, v)

    def forward_backward():
        return torch.autograd.grad(attend(q, k, v), leaves, grad_out)

    run: Callable[[], Any]
    graph: list[Any] = []
    if mode in ("backward", "before_backward"):
        graph.append(attend(q, k, v))

        def backward():
            return torch.autograd.grad(graph[0], leaves, grad_out, retain_graph=True)

        run = backward if mode == "backward" else lambda: graph[0]
    else:
        run = forward if mode == "forward" else forward_backward

    def answer(of: AttentionProblem) -> Answer:
        """Compute the answer, for the timed problem through the graph whose backward is timed."""
        if of == problem:
            return answer_of(attend, (q, k, v, grad_out), mode, *graph)
        return answer_of(attend, inputs(of, device), mode)

    precision = "tf32" if params["impl"] in TF32 else problem.dtype
    return Workload(
        run=run,
        check=lambda: largest_error(problem, device, answer, precision),
        results=lambda: answer(problem),
        rounding=TOLERANCES[precision].rounding,
        floor=NOTHING if mode == "before_backward" else floor(problem, mode),
    )


def answer_of(attend: Attend, tensors: Sequence[Any], mode: str, out: Any = None) -> Answer:
    """Compute out, and dq, dk, dv unless the mode is forward; a given `out` belongs to a graph that is kept."""
    import torch

    *leaves, grad_out = tensors
    is_kept = out is not None
    out = out if is_kept else attend(*leaves)
    answer = {"out": out.detach()}
    if mode != "forward":
        gradients = torch.autograd.grad(out, leaves, grad_out, retain_graph=is_kept)
        answer |= dict(zip(("dq", "dk", "dv"), gradients, strict=True))
    return answer


def problem_of(params: dict[str, Any]) -> AttentionProblem:
    """Return the problem of a case's axes.

    The axes are seq_len, d and dtype; is_causal (default True); and either `batch` (default 1) or, as in the papers,
    `tokens` and `d_model`, which give the numbers of sequences and of heads, then optionally `kv_heads`.
    """
    seq_len, d = params["seq_len"], params["d"]
    if "tokens" in params:
        leading = (_parts("tokens", params["tokens"], "seq_len", seq_len), _parts("d_model", params["d_model"], "d", d))
        return AttentionProblem(
            leading, seq_len, d, params["dtype"], params["is_causal"], kv_heads=params.get("kv_heads")
        )
    return AttentionProblem((params.get("batch", 1),), seq_len, d, params["dtype"], params.get("is_causal", True))


def _parts(name: str, whole: int, part_name: str, part: int) -> int:
    if whole % part:
        raise ValueError(f"{name}={whole} was given; allowed: multiples of {part_name}={part}")
    return whole // part
