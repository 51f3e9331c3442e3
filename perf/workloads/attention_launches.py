"""Launches of our kernels with given tiles, without autograd, by the numbers of a candidate."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from perf.workloads import measured, measured_module
from perf.workloads.attention_oracle import Answer
from perf.workloads.attention_problem import AttentionProblem
from perf.workloads.workload import Unavailable


class Tensors(NamedTuple):
    """Inputs of the kernels: (batch, heads, seq_len, d), and float32 (batch, heads, seq_len)."""

    q: Any
    k: Any
    v: Any
    do: Any
    out: Any
    lse: Any
    delta: Any


Run = Callable[[], Answer]
"""Launch the kernel; return its outputs, some of out, dq, dk, dv."""


tiles_module = partial(measured_module, "attention.tiles")
triton_plans = partial(measured_module, "attention.triton_plans")
hopper_module = partial(measured_module, "attention.hopper")
hopper_tables = partial(measured_module, "attention.hopper_tables")
gluon_plans = partial(measured_module, "attention.gluon_plans")
"""The measured modules; that of plans in Gluon is for compute capability 9.0."""

HOPPER_TABLES = {
    "gluon": "HOPPER_FORWARD",
    "gluon, many tiles": "HOPPER_FORWARD_MANY",
    "gluon, long": "HOPPER_FORWARD_LONG",
    "gluon, ping-pong": "HOPPER_FORWARD_PING_PONG",
}
FEW_TILES = {1: "gluon, 1 tile", 2: "gluon, 2 tiles", 3: "gluon, 3 tiles"}
WAYS = {
    "forward-choice": ("plain", "split", *HOPPER_TABLES, *FEW_TILES.values()),
    "backward-choice": ("two passes", "at once", "gluon"),
}
"""Our kernels for the same problem. A candidate's number is an index here."""


def gluon_choices(d: int, is_causal: bool) -> dict[str, tuple[str, Any]]:
    """Return the table entry and the choices of each way to run the 16-bit forward in Gluon, with so many columns."""
    tables = {name: getattr(hopper_tables(), name) for name in HOPPER_TABLES.values()}
    few = hopper_tables().HOPPER_FORWARD_FEW[d, is_causal]
    return {
        **{way: (f"{name}[{d}]", tables[name][d]) for way, name in HOPPER_TABLES.items() if d in tables[name]},
        **{FEW_TILES[most]: (f"HOPPER_FORWARD_FEW[{d}, {is_causal}][{most}]", few[most]) for most in few},
    }


def splits_of(request: Any, q: Any, k: Any) -> int:
    """Return how many programs share the visits of a key tile in the Gluon backward."""
    splits = hopper_module().backward_splits if q.dtype.itemsize == 2 else hopper_module().float32_splits
    return int(splits(request, q, k))


def _tiles(numbers: Sequence[int]) -> Any:
    return tiles_module().Tiles(*numbers)


def request_of(problem: AttentionProblem) -> Any:
    """Return the kernels' request, of full precision."""
    is_split = problem.dtype == "float32" and measured("attention.planning", "IS_COMPILED")
    products = measured("attention.request", "FP32_PRODUCTS")["ieee"] if is_split else "ieee"
    return measured("attention.request", "Request")(problem.is_causal, problem.d**-0.5, products)


def _forward_run(plan: Any, on: Tensors) -> Run:
    return lambda: {"out": plan(on.q, on.k, on.v, None)[0]}


def _backward_run(plan: Any, on: Tensors) -> Run:
    q, k, v, do, out, lse, _ = on
    return lambda: dict(zip(("dq", "dk", "dv"), plan(q, k, v, out, lse, do, None), strict=True))


def forward(problem: AttentionProblem, on: Tensors, numbers: tuple[int, ...]) -> Run:
    """Plan the plain forward."""
    plan = triton_plans().plain_forward(request_of(problem), on.q, on.k, on.v, _tiles(numbers))
    return _forward_run(plan, on)


def split(problem: AttentionProblem, on: Tensors, numbers: tuple[int, ...]) -> Run:
    """Plan the forward over parts of the keys; over one part it is not split."""
    *shape, parts = numbers
    if parts == 1:
        return forward(problem, on, tuple(shape))
    tiles = _tiles(shape)
    chunk = problem.seq_len // parts
    if not chunk or chunk % tiles.q or chunk % tiles.k:
        raise Unavailable(f"a part of {chunk} keys is no multiple of both tiles")
    plan = triton_plans().split_forward(request_of(problem), on.q, on.k, on.v, chunk, tiles)
    return _forward_run(plan, on)


def _launch_run(launch: Any, inputs: Sequence[Any], **like: Any) -> Run:
    """Return a run of one launch, which fills new tensors `like` those given by name."""
    import torch

    def run() -> Answer:
        outputs = {name: torch.empty_like(tensor) for name, tensor in like.items()}
        launch(*inputs, *outputs.values(), None)
        return outputs

    return run


def dkdv(problem: AttentionProblem, on: Tensors, numbers: tuple[int, ...]) -> Run:
    """Plan the pass of the plain backward for dk and dv."""
    q, k, v, do, _, lse, delta = on
    launch = triton_plans().dkdv_launch(request_of(problem), q, k, v, do, _tiles(numbers))
    return _launch_run(launch, (q, k, v, do, lse, delta), dk=k, dv=v)


def dq(problem: AttentionProblem, on: Tensors, numbers: tuple[int, ...]) -> Run:
    """Plan the pass of the plain backward for dq."""
    q, k, v, do, _, lse, delta = on
    launch = triton_plans().dq_launch(request_of(problem), q, k, v, do, _tiles(numbers))
    return _launch_run(launch, (q, k, v, do, lse, delta), dq=q)


def at_once(problem: AttentionProblem, on: Tensors, numbers: tuple[int, ...]) -> Run:
    """Plan both passes of the plain backward in one launch."""
    q, k, v, do, out, lse, _ = on
    launch = triton_plans().at_once_launch(request_of(problem), q, k, v, out, do, _tiles(numbers))
    return _launch_run(launch, (q, k, v, out, do, lse), dq=q, dk=k, dv=v)


def hopper_forward(problem: AttentionProblem, on: Tensors, numbers: tuple[int, ...]) -> Run:
    """Plan the 16-bit forward in Gluon."""
    *sizes, halves, one_tile, balanced, ping_pong, at_once = numbers
    how = hopper_tables().HopperForward(*sizes, bool(halves), bool(one_tile), bool(balanced), bool(ping_pong), at_once)
    plan = gluon_plans().gluon_forward(request_of(problem), on.q, on.k, on.v, how)
    return _forward_run(plan, on)


def hopper_backward(problem: AttentionProblem, on: Tensors, numbers: tuple[int, ...]) -> Run:
    """Plan the 16-bit backward in Gluon."""
    return _changed_backward(problem, on, ("q_tile", "stages", "ds_stages"), numbers)


def backward_programs(problem: AttentionProblem, on: Tensors, numbers: tuple[int, ...]) -> Run:
    """Plan the backward in Gluon, in other programs."""
    if problem.dtype == "float32":
        if numbers[1]:
            raise Unavailable("in float32 heads are at once as backward_heads_at_once says")
        return _pieces_backward(problem, on, _three_pieces_of(on)._replace(splits=numbers[0]))
    return _changed_backward(problem, on, ("splits", "heads_at_once"), numbers)


def _changed_backward(problem: AttentionProblem, on: Tensors, fields: tuple[str, ...], numbers: tuple[int, ...]) -> Run:
    """Plan all launches of the backward, with the table's choice for the head dimension but for these fields."""
    table = hopper_tables().HOPPER_BACKWARD[hopper_module().tile_columns(on.q)]
    how = table._replace(**dict(zip(fields, numbers, strict=True)))
    plan = gluon_plans().gluon_backward(request_of(problem), on.q, on.k, on.v, on.out, on.do, how)
    return _backward_run(plan, on)


def float32_forward(problem: AttentionProblem, on: Tensors, numbers: tuple[int, ...]) -> Run:
    """Plan the forward over pieces of float32, with its splitting into them."""
    return _pieces_forward(problem, on, hopper_tables().HopperFloat32(3, *numbers))


def float32_backward(problem: AttentionProblem, on: Tensors, numbers: tuple[int, ...]) -> Run:
    """Plan the backward over pieces of float32."""
    return _pieces_backward(problem, on, hopper_tables().HopperFloat32(3, *numbers))


def _pieces_forward(problem: AttentionProblem, on: Tensors, how: Any) -> Run:
    return _forward_run(gluon_plans().pieces_forward(request_of(problem), on.q, on.k, on.v, how), on)


def _pieces_backward(problem: AttentionProblem, on: Tensors, how: Any) -> Run:
    """Plan all launches of the backward."""
    plan = gluon_plans().pieces_backward(request_of(problem), on.q, on.k, on.v, on.out, on.do, how)
    return _backward_run(plan, on)


def forward_choice(problem: AttentionProblem, on: Tensors, numbers: tuple[int, ...]) -> Run:
    """Plan a whole forward in one of its ways, with the tables' tiles."""
    tables, request, (q, k, v) = tiles_module(), request_of(problem), on[:3]
    way, d = WAYS["forward-choice"][numbers[0]], hopper_module().tile_columns(q)
    if way == "plain":
        return _forward_run(triton_plans().plain_forward(request, q, k, v), on)
    if way == "split":
        if problem.dtype == "float32" or problem.d > tables.MAX_PIPELINED_HEAD_DIM:
            raise Unavailable("keys are split in 16-bit dtypes and head dimensions up to 128")
        return _forward_run(triton_plans().split_forward(request, q, k, v, tables.chunk_keys(q, k)), on)
    _require_gluon(request, on)
    if problem.dtype == "float32":
        how = _three_pieces_of(on)._replace(consumers=hopper_module().float32_consumers(request, q))
        return _pieces_forward(problem, on, how)
    choices = gluon_choices(d, problem.is_causal)
    if way not in choices:
        raise Unavailable(f"no table has {way} of {d} columns, {'causal' if problem.is_causal else 'full'}")
    return _forward_run(gluon_plans().gluon_forward(request, q, k, v, choices[way][1]), on)


def backward_choice(problem: AttentionProblem, on: Tensors, numbers: tuple[int, ...]) -> Run:
    """Plan a whole backward in one of its ways, with the tables' tiles."""
    tables, request, (q, k, v, do, out) = tiles_module(), request_of(problem), on[:5]
    way, d = WAYS["backward-choice"][numbers[0]], hopper_module().tile_columns(q)
    if way == "two passes":
        return _backward_run(triton_plans().two_pass_backward(request, q, k, v, out, do), on)
    if way == "at once":
        if problem.dtype == "float32" or problem.d > tables.MAX_PIPELINED_HEAD_DIM:
            raise Unavailable("both passes are in one launch in 16-bit dtypes and head dimensions up to 128")
        return _backward_run(triton_plans().at_once_backward(request, q, k, v, out, do, tables.AT_ONCE_TILES), on)
    _require_gluon(request, on)
    if problem.dtype == "float32":
        return _pieces_backward(problem, on, _three_pieces_of(on)._replace(splits=splits_of(request, q, k)))
    how = hopper_tables().HOPPER_BACKWARD[d]._replace(splits=splits_of(request, q, k))
    return _backward_run(gluon_plans().gluon_backward(request, q, k, v, out, do, how), on)


def _require_gluon(request: Any, on: Tensors) -> None:
    if not hopper_module().hopper_takes(request, on.q):
        raise Unavailable("the kernels in Gluon take head dimensions up to 128 on compute capability 9.0")
    if on.q.shape[2] < hopper_module().HOPPER_ROWS:
        raise Unavailable(f"the kernels in Gluon take {hopper_module().HOPPER_ROWS} rows or more")


def _three_pieces_of(on: Tensors) -> Any:
    """Return the table's choice for three pieces, with one program to a key tile."""
    return hopper_tables().HOPPER_FLOAT32[hopper_module().tile_columns(on.q), 3]
