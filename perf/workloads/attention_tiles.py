"""A kernel of ours with given tiles, without the tables and autograd, for tuning the tables."""

import contextlib
import functools
import math
from collections.abc import Iterator
from typing import Any

from perf.workloads import measured, measured_module
from perf.workloads.attention import problem_of
from perf.workloads.attention_check import largest_error
from perf.workloads.attention_choices import joined
from perf.workloads.attention_kernels import KERNELS, Kernel
from perf.workloads.attention_launches import Tensors, hopper_module, request_of, triton_plans
from perf.workloads.attention_oracle import Answer
from perf.workloads.attention_problem import BYTES, AttentionProblem, floor, inputs
from perf.workloads.workload import Floor, Workload


def build(params: dict[str, Any], device: str) -> Workload:
    """`params`: kernel (one of `KERNELS`), tiles (numbers, as "64x64x4x3"), and those of `attention.problem_of`.

    All kernels of a problem share their inputs, so that a hundred of them fit. The device "meta" serves a process that
    only compiles.
    """
    kernel, problem = KERNELS[params["kernel"]], problem_of(params)
    tiles = tuple(map(int, params["tiles"].split("x")))
    run = kernel.make(problem, _tensors(problem, device), tiles)

    def answer(of: AttentionProblem) -> Answer:
        launch = run if of == problem else kernel.make(of, _tensors(of, device), tiles)
        with _poisoned():
            return launch()

    return Workload(
        run=run, check=lambda: largest_error(problem, device, answer, problem.dtype), floor=_floor(kernel, problem)
    )


def choice(name: str, problem: AttentionProblem, device: str) -> tuple[str, str] | None:
    """Return the table entry that a kernel uses for the problem, and its numbers; None if the kernel does not apply."""
    import torch

    kernel = KERNELS[name]
    request = request_of(problem)._replace(products=measured("attention.request", "FP32_PRODUCTS")["ieee"])
    q = torch.empty(problem.shape, dtype=getattr(torch, problem.dtype), device=device)
    k = q.new_empty(problem.kv_shape)
    if kernel.is_gluon and not (problem.dtype in kernel.dtypes and hopper_module().hopper_takes(request, q)):
        return None
    entry, numbers = kernel.chosen(request, q, k)
    return entry, joined(numbers)


@functools.lru_cache(maxsize=2)  # a check looks at two problems
def _tensors(problem: AttentionProblem, device: str) -> Tensors:
    import torch

    if device == "meta":
        q = torch.empty(problem.shape, dtype=getattr(torch, problem.dtype), device=device)
        k, rows = q.new_empty(problem.kv_shape), q.new_empty(problem.shape[:-1], dtype=torch.float32)
        return Tensors(q, k, k, q, q, rows, rows)
    q, k, v, do = (tensor.detach() for tensor in inputs(problem, device))
    forward = measured_module("attention.flash_triton").flash_forward
    out, lse = forward(q, k, v, problem.is_causal, problem.d**-0.5)
    delta = torch.empty_like(lse)
    triton_plans().delta_launch(out, do)(out, do, delta, None)
    return Tensors(q, k, v, do, out, lse, delta)


def _floor(kernel: Kernel, problem: AttentionProblem) -> Floor:
    tensor = math.prod(problem.kv_shape) * BYTES[problem.dtype]
    return Floor(
        flops=floor(problem, "forward").flops * kernel.work.products / 2,
        matmul_dtype=problem.dtype,
        bytes_read=kernel.work.read * tensor,
        bytes_written=kernel.work.written * tensor,
    )


@contextlib.contextmanager
def _poisoned() -> Iterator[None]:
    """Fill torch's uninitialized memory with NaN inside the block: it may hold an earlier kernel's correct output."""
    import torch

    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
