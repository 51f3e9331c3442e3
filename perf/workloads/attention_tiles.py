"""A kernel of ours with given tiles, without the tables and autograd, for tuning the tables."""

import contextlib
import functools
import math
from collections.abc import Iterator
from typing import Any

from perf.workloads import measured, measured_module
from perf.workloads.attention import problem_of
from perf.workloads.attention_check import largest_error
from perf.workloads.attention_launches import (
    KERNELS,
    WAYS,
    KernelLaunch,
    Tensors,
    gluon_choices,
    hopper_module,
    hopper_tables,
    request_of,
    splits_of,
    tiles_module,
    triton_plans,
)
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


def choice(kernel: str, problem: AttentionProblem, device: str) -> tuple[str, str] | None:
    """Return the table entry that `kernel` uses for the problem, and its numbers; None if the kernel does not apply."""
    import torch

    tables = tiles_module()
    request = request_of(problem)._replace(products=measured("attention.request", "FP32_PRODUCTS")["ieee"])
    q = torch.empty(problem.shape, dtype=getattr(torch, problem.dtype), device=device)
    if kernel in TABLES:
        return _of_table(tables, kernel, q, problem.dtype)
    if kernel == "at-once":
        return "AT_ONCE_TILES", _joined(tables.AT_ONCE_TILES)
    if kernel == "split":
        chunk = tables.split_keys(request, q, q)
        if chunk is None:
            return "SPLIT_TILES", _joined((*tables.tiles_for(q, tables.FORWARD_TILES), 1))
        tiles = tables.fitting(tables.SPLIT_TILES, measured_module("attention.gpu").shared_bytes(q.device))
        return "SPLIT_TILES", _joined((*tiles, math.ceil(problem.seq_len / chunk)))
    if kernel in WAYS:
        way = _forward_way(tables, request, q) if kernel == "forward-choice" else _backward_way(tables, request, q)
        return f"{kernel} {_joined(problem.shape)} {problem.dtype}", str(WAYS[kernel].index(way))
    if not hopper_module().hopper_takes(request, q):
        return None
    if kernel != "backward-programs" and kernel.startswith("float32") != (problem.dtype == "float32"):
        return None
    entry, numbers = _of_hopper(kernel, request, q, problem.kv_shape)
    return entry, _joined(numbers)


def _of_hopper(kernel: str, request: Any, q: Any, kv_shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Return the entry of the Gluon kernel's table for q, and its numbers, also where the plain kernels are chosen."""
    d = hopper_module().tile_columns(q)
    if kernel.startswith("float32"):
        entry, (_, *numbers) = f"HOPPER_FLOAT32[{d}, 3]", hopper_tables().HOPPER_FLOAT32[d, 3][:3]
        if kernel == "float32-backward":
            return entry, tuple(numbers)
        consumers = hopper_module().float32_consumers(request, q)
        return entry + (", alone" if consumers == 1 else ""), (*numbers, consumers)
    if kernel == "hopper-backward":
        return f"HOPPER_BACKWARD[{d}]", hopper_tables().HOPPER_BACKWARD[d][:3]
    if kernel == "backward-programs":
        return f"backward_splits {_joined(q.shape)}", (splits_of(request, q, q.new_empty(kv_shape)), 0)
    taken = hopper_module().hopper_forward(request, q, q, q) or hopper_tables().HOPPER_FORWARD[d]
    entry = next(entry for entry, choice in gluon_choices(d, request.is_causal).values() if choice == taken)
    return entry, tuple(map(int, taken))


def _forward_way(tables: Any, request: Any, q: Any) -> str:
    """Return the kernels that planning takes."""
    if taken := hopper_module().hopper_forward(request, q, q, q):
        choices = gluon_choices(hopper_module().tile_columns(q), request.is_causal)
        return next(way for way, (_, choice) in choices.items() if choice == taken)
    if tables.split_keys(request, q, q):
        return "split"
    return "gluon" if hopper_module().hopper_float32_forward(request, q, q) else "plain"


def _backward_way(tables: Any, request: Any, q: Any) -> str:
    if hopper_module().hopper_backward(request, q, q, q) or hopper_module().hopper_float32(request, q, q):
        return "gluon"
    return "at once" if tables.tiles_at_once(q, q) else "two passes"


TABLES = {"forward": "FORWARD_TILES", "dkdv": "DKDV_TILES", "dq": "DQ_TILES"}


def _of_table(tables: Any, kernel: str, q: Any, dtype: str) -> tuple[str, str]:
    table = getattr(tables, TABLES[kernel])
    d = tables.padded_head_dim(q)
    taken, written = tables.tiles_for(q, table), table[d][dtype == "float32"]
    is_short = taken != tables.fitting(written, measured_module("attention.gpu").shared_bytes(q.device))
    return f"{TABLES[kernel]}[{d}] {dtype}" + (", short grid" if is_short else ""), _joined(taken)


def _joined(numbers: Any) -> str:
    return "x".join(map(str, numbers))


@functools.lru_cache(maxsize=2)  # a check looks at two problems
def _tensors(problem: AttentionProblem, device: str) -> Tensors:
    import torch

    if device == "meta":
        q = torch.empty(problem.shape, dtype=getattr(torch, problem.dtype), device=device)
        k, rows = q.new_empty(problem.kv_shape), torch.empty(problem.shape[:-1], device=device)
        return Tensors(q, k, k, q, q, rows, rows)
    q, k, v, do = (tensor.detach() for tensor in inputs(problem, device))
    forward = measured_module("attention.flash_triton").flash_forward
    out, lse = forward(q, k, v, problem.is_causal, problem.d**-0.5)
    delta = torch.empty_like(lse)
    triton_plans().delta_launch(out, do)(out, do, delta, None)
    return Tensors(q, k, v, do, out, lse, delta)


def _floor(kernel: KernelLaunch, problem: AttentionProblem) -> Floor:
    tensor = math.prod(problem.kv_shape) * BYTES[problem.dtype]
    return Floor(
        flops=floor(problem, "forward").flops * kernel.products / 2,
        matmul_dtype=problem.dtype,
        bytes_read=kernel.read * tensor,
        bytes_written=kernel.written * tensor,
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
