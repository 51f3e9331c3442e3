"""Attention: one implementation at one shape, forward, backward or both."""

from collections.abc import Callable, Sequence
from typing import Any

from perf.workloads.attention_check import TOLERANCES, largest_error
from perf.workloads.attention_impls import TF32, Attend, implementation
from perf.workloads.attention_oracle import Answer
from perf.workloads.attention_problem import AttentionProblem, floor, inputs
from perf.workloads.workload import Workload, no_floor

NOTHING = no_floor("nothing runs: the memory of what is held is asked for")
MODES = ("forward", "backward", "forward_backward", "before_backward")


def build(params: dict[str, Any], device: str) -> Workload:
    """`params`: those of `problem_of`, mode (one of `MODES`) and impl (one of `attention_impls.IMPLS`).

    Forward is a training forward: what the backward needs is kept. Backward is timed alone, on a graph made before.
    before_backward does nothing with such a graph in memory: its peak memory is what a forward leaves alive.
    """
    import torch

    mode = params["mode"]
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} was given; allowed: {', '.join(MODES)}")
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
        """Through the graph whose backward is timed, where it is of the timed problem."""
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
    """out, and unless only the forward is timed dq, dk, dv; `out` is that of a graph to be kept, if there is one."""
    import torch

    *leaves, grad_out = tensors
    is_kept = out is not None
    out = out if is_kept else attend(*leaves)
    found = {"out": out.detach()}
    if mode != "forward":
        gradients = torch.autograd.grad(out, leaves, grad_out, retain_graph=is_kept)
        found |= dict(zip(("dq", "dk", "dv"), gradients, strict=True))
    return found


def problem_of(params: dict[str, Any]) -> AttentionProblem:
    """The problem that a case's axes name.

    seq_len, d and dtype; is_causal (True where it is no axis); and in front of (seq_len, d) either `batch` (1), or, as
    the papers have it, as many sequences as make `tokens` and as many heads as make `d_model`.
    """
    seq_len, d = params["seq_len"], params["d"]
    if "tokens" in params:
        leading = (_parts("tokens", params["tokens"], "seq_len", seq_len), _parts("d_model", params["d_model"], "d", d))
        return AttentionProblem(leading, seq_len, d, params["dtype"], params["is_causal"])
    return AttentionProblem((params.get("batch", 1),), seq_len, d, params["dtype"], params.get("is_causal", True))


def _parts(name: str, whole: int, part_name: str, part: int) -> int:
    if whole % part:
        raise ValueError(f"{name}={whole} was given; allowed: multiples of {part_name}={part}")
    return whole // part
