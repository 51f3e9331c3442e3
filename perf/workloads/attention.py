"""Causal attention, one head, batch 1: the course's FlashAttention benchmark, one implementation at one shape."""

import functools
from collections.abc import Callable
from typing import Any

from perf.workloads import measured
from perf.workloads.workload import Floor, Workload, WrongResult

# Largest error of a row over max(norm of the exact row, RMS norm of all rows). Eight units in the last place for the
# half precisions: eager attention, which rounds the scores too, makes up to four (3.2e-2 in bfloat16 at 32768 x 32 on
# an H200), a flash kernel one or two; a tile left out makes over a hundred. For float32 between what 65536 terms add up
# to (1e-5) and what TF32 would give (3e-4 and more).
TOLERANCE = {"bfloat16": 8 * 2**-7, "float16": 8 * 2**-10, "float32": 1e-4}

ORACLE_BLOCK = 2**26  # float64 scores held at once: 0.5 GiB


def build(params: dict[str, Any], device: str) -> Workload:
    """`params`: seq_len, d, dtype, mode (forward, backward, forward_backward), impl.

    Forward is a training forward: what the backward needs is kept. Backward is timed alone, on a graph made before.
    """
    import torch

    seq_len, d, dtype, mode = params["seq_len"], params["d"], params["dtype"], params["mode"]
    attend = implementation(params["impl"])
    q, k, v, grad_out = _inputs(seq_len, d, dtype, device)
    leaves = (q, k, v)

    def forward():
        return attend(q, k, v)

    def forward_backward():
        return torch.autograd.grad(attend(q, k, v), leaves, grad_out)

    if mode == "forward":
        run: Callable[[], Any] = forward
    elif mode == "backward":
        out = attend(q, k, v)

        def run():
            return torch.autograd.grad(out, leaves, grad_out, retain_graph=True)

    elif mode == "forward_backward":
        run = forward_backward
    else:
        raise ValueError(f"mode={mode!r} was given; allowed: forward, backward, forward_backward")

    def check() -> float:
        exact = oracle(seq_len, d, dtype, device)
        found = {"out": forward()} if mode == "forward" else dict(zip(("dq", "dk", "dv"), run(), strict=True))
        return max(_row_error(name, found[name].detach(), exact[name], TOLERANCE[dtype]) for name in found)

    return Workload(run=run, check=check, floor=floor(seq_len, d, dtype, mode))


def implementation(impl: str) -> Callable[..., Any]:
    """(q, k, v) -> out, causal, for (1, seq_len, d) tensors."""
    if impl == "sdpa":
        import torch.nn.functional as F

        # A head dimension of its own: three dimensions would send SDPA to its slow math backend.
        return lambda q, k, v: F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)[:, 0]
    if impl == "reference":
        eager = measured("attention.reference", "scaled_dot_product_attention")
        return lambda q, k, v: eager(q, k, v, True)
    if impl == "pytorch":
        function = measured("attention.flash_pytorch", "FlashAttentionPyTorch")
        return lambda q, k, v: function.apply(q, k, v, True)
    if impl == "triton":
        function = measured("attention.flash_triton", "FlashAttentionTriton")
        return lambda q, k, v: function.apply(q, k, v, True)
    raise ValueError(f"impl={impl!r} was given; allowed: triton, pytorch, reference, sdpa")


def floor(seq_len: int, d: int, dtype: str, mode: str) -> Floor:
    """Two matmuls forward and five backward over the causal half of the scores; every input read once."""
    pairs = seq_len * (seq_len + 1) / 2
    tensor = seq_len * d * {"float32": 4, "bfloat16": 2, "float16": 2}[dtype]
    matmuls = {"forward": 2, "backward": 5, "forward_backward": 7}[mode]
    inputs = 3 if mode == "forward" else 4
    outputs = 1 if mode == "forward" else 3
    return Floor(
        flops=matmuls * 2 * d * pairs,
        matmul_dtype=dtype,
        bytes_read=inputs * tensor,
        bytes_written=outputs * tensor,
    )


@functools.lru_cache(maxsize=1)
def oracle(seq_len: int, d: int, dtype: str, device: str) -> dict[str, Any]:
    """out, dq, dk, dv of these inputs in float64, a block of queries at a time so that 65536 fits."""
    import torch

    q, k, v, grad_out = (tensor[0].detach().double() for tensor in _inputs(seq_len, d, dtype, device))
    scale = d**-0.5
    exact = {name: torch.zeros_like(q) for name in ("out", "dq", "dk", "dv")}
    block = max(1, min(seq_len, ORACLE_BLOCK // seq_len))
    for start in range(0, seq_len, block):
        rows, columns = slice(start, start + block), slice(0, start + block)  # keys above the diagonal count for none
        scores = q[rows] @ k[columns].T * scale
        positions = torch.arange(start, start + len(scores), device=device)
        scores.masked_fill_(positions[:, None] < torch.arange(scores.shape[1], device=device), float("-inf"))
        probabilities = torch.softmax(scores, dim=-1)
        out = probabilities @ v[columns]
        delta = (out * grad_out[rows]).sum(-1, keepdim=True)
        grad_scores = probabilities * (grad_out[rows] @ v[columns].T - delta) * scale
        exact["out"][rows] = out
        exact["dq"][rows] = grad_scores @ k[columns]
        exact["dk"][columns] += grad_scores.T @ q[rows]
        exact["dv"][columns] += probabilities.T @ grad_out[rows]
    return exact


def _inputs(seq_len: int, d: int, dtype: str, device: str) -> tuple[Any, ...]:
    """q, k, v, grad_out, each (1, seq_len, d): the same random numbers whenever the shape is the same."""
    import torch

    generator = torch.Generator(device).manual_seed(0)
    kind = getattr(torch, dtype)
    tensors = [torch.randn(1, seq_len, d, device=device, generator=generator).to(kind) for _ in range(4)]
    return tuple(tensor.requires_grad_(index < 3) for index, tensor in enumerate(tensors))


def _row_error(name: str, found: Any, exact: Any, allowed: float) -> float:
    norms = exact.norm(dim=-1)
    scale = norms.clamp(min=float(norms.square().mean().sqrt()))
    error = float(((found[0].double() - exact).norm(dim=-1) / scale).max())
    if not error <= allowed:  # NaN compares false
        raise WrongResult(f"{name} differs from float64 by {error:.1e} of a row's norm, allowed {allowed:.1e}")
    return error
