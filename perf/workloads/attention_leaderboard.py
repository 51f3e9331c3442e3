"""The timed call of the CS336 leaderboard of 2025, for any implementation."""

from typing import Any

from perf.workloads.attention import answer_of
from perf.workloads.attention_check import TOLERANCES, largest_error
from perf.workloads.attention_impls import implementation
from perf.workloads.attention_oracle import Answer
from perf.workloads.attention_problem import BYTES, AttentionProblem, floor, inputs
from perf.workloads.workload import Floor, Workload


def build(params: dict[str, Any], device: str) -> Workload:
    """Build the leaderboard's call. `params`: num_heads, seq_len, d, dtype, impl.

    By its rules q, k, v are unbound from one leaf, `o.sum().backward()` follows the forward, and the gradients
    accumulate in the leaf; all of it is timed. Its `torch.compile(FlashAttention.apply)` is impl triton_compiled.
    """
    import torch

    problem = AttentionProblem(
        (params["num_heads"],), params["seq_len"], params["d"], params["dtype"], is_causal=True, grad_out="ones"
    )
    attend = implementation(params["impl"], problem, device)
    leaf = torch.stack([tensor.detach() for tensor in inputs(problem, device)[:3]]).requires_grad_()
    q, k, v = leaf

    def run() -> None:
        attend(q, k, v).sum().backward()

    def answer(of: AttentionProblem) -> Answer:
        """Compute the answer, for the timed problem through the timed leaf."""
        if of != problem:
            return answer_of(attend, inputs(of, device), "forward_backward")
        leaf.grad = None
        run()
        assert leaf.grad is not None
        return {"out": attend(q, k, v).detach()} | dict(zip(("dq", "dk", "dv"), leaf.grad, strict=True))

    # grad_out is a scalar. q, k, v and the accumulated gradients are read, the new gradients are written.
    leaf_bytes = leaf.numel() * BYTES[problem.dtype]
    both = floor(problem, "forward_backward")
    minimum = Floor(
        flops=both.flops, matmul_dtype=both.matmul_dtype, bytes_read=2 * leaf_bytes, bytes_written=leaf_bytes
    )
    return Workload(
        run=run,
        check=lambda: largest_error(problem, device, answer, problem.dtype),
        floor=minimum,
        results=lambda: answer(problem),
        rounding=TOLERANCES[problem.dtype].rounding,
    )
