"""Attention: one implementation at one shape, forward, backward or both."""

from collections.abc import Callable
from typing import Any

from perf.workloads.attention_impls import TF32, implementation
from perf.workloads.attention_problem import Problem, floor, inputs, largest_error
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
    if mode in ("backward", "before_backward"):
        out = attend(q, k, v)

        def backward():
            return torch.autograd.grad(out, leaves, grad_out, retain_graph=True)

        run, gradients = (backward if mode == "backward" else lambda: out), backward
    else:
        run, gradients = (forward if mode == "forward" else forward_backward), forward_backward

    def check() -> float:
        found = {"out": forward()} if mode == "forward" else dict(zip(("dq", "dk", "dv"), gradients(), strict=True))
        return largest_error(problem, device, found, "tf32" if params["impl"] in TF32 else None)

    return Workload(run=run, check=check, floor=NOTHING if mode == "before_backward" else floor(problem, mode))


def problem_of(params: dict[str, Any]) -> Problem:
    """The problem that a case's axes name.

    seq_len, d and dtype; is_causal (True where it is no axis); and in front of (seq_len, d) either `batch` (1), or, as
    the papers have it, as many sequences as make `tokens` and as many heads as make `d_model`.
    """
    seq_len, d = params["seq_len"], params["d"]
    if "tokens" in params:
        leading = (_parts("tokens", params["tokens"], "seq_len", seq_len), _parts("d_model", params["d_model"], "d", d))
        return Problem(leading, seq_len, d, params["dtype"], params["is_causal"])
    return Problem((params.get("batch", 1),), seq_len, d, params["dtype"], params.get("is_causal", True))


def _parts(name: str, whole: int, part_name: str, part: int) -> int:
    if whole % part:
        raise ValueError(f"{name}={whole} was given; allowed: multiples of {part_name}={part}")
    return whole // part
