"""The entry of its table that each kernel of ours uses on this GPU, and the entry's numbers."""

import math
from collections.abc import Callable, Iterable
from typing import Any

from perf.workloads import measured_module
from perf.workloads.attention_launches import WAYS, gluon_choices, hopper_module, hopper_tables, splits_of, tiles_module

Chosen = tuple[str, Iterable[int]]
"""The entry and its numbers, in the order of `attention_kernels.Kernel.values`."""

Choose = Callable[[Any, Any, Any], Chosen]
"""Takes the request, q and k."""


def joined(numbers: Iterable[int]) -> str:
    """Return numbers as a candidate is written."""
    return "x".join(map(str, numbers))


def of_table(name: str) -> Choose:
    """Return the choice of a plain kernel by this table."""

    def choose(_: Any, q: Any, k: Any) -> Chosen:
        tables = tiles_module()
        table, d, dtype = getattr(tables, name), tables.padded_head_dim(q), _dtype(q)
        taken, written = tables.tiles_for(q, table), table[d][dtype == "float32"]
        is_short = taken != tables.fitting(written, _shared_bytes(q))
        return f"{name}[{d}] {dtype}" + (", short grid" if is_short else ""), taken

    return choose


def at_once(request: Any, q: Any, k: Any) -> Chosen:
    """Choose for both passes in one launch."""
    return "AT_ONCE_TILES", tiles_module().AT_ONCE_TILES


def split(request: Any, q: Any, k: Any) -> Chosen:
    """Choose tiles and parts: one where keys are not split."""
    tables = tiles_module()
    chunk = tables.split_keys(request, q, k)
    if chunk is None:
        return "SPLIT_TILES", (*tables.tiles_for(q, tables.FORWARD_TILES), 1)
    return "SPLIT_TILES", (*tables.fitting(tables.SPLIT_TILES, _shared_bytes(q)), math.ceil(k.shape[2] / chunk))


def hopper_forward(request: Any, q: Any, k: Any) -> Chosen:
    """Choose for the 16-bit forward in Gluon; like the others in Gluon also where the plain kernels are chosen."""
    d = hopper_module().tile_columns(q)
    taken = hopper_module().hopper_forward(request, q, k, k) or hopper_tables().HOPPER_FORWARD[d]
    entry = next(entry for entry, choice in gluon_choices(d, request.is_causal).values() if choice == taken)
    return entry, map(int, taken)


def hopper_backward(request: Any, q: Any, k: Any) -> Chosen:
    """Choose for the 16-bit backward in Gluon."""
    d = hopper_module().tile_columns(q)
    return f"HOPPER_BACKWARD[{d}]", hopper_tables().HOPPER_BACKWARD[d][:3]


def backward_programs(request: Any, q: Any, k: Any) -> Chosen:
    """Choose how many programs share the visits of a key tile in Gluon."""
    return f"backward_splits {joined(q.shape)}", (splits_of(request, q, k), 0)


def float32_forward(request: Any, q: Any, k: Any) -> Chosen:
    """Choose for the float32 forward in Gluon."""
    (entry, numbers), consumers = float32_backward(request, q, k), hopper_module().float32_consumers(request, q)
    return entry + (", alone" if consumers == 1 else ""), (*numbers, consumers)


def float32_backward(request: Any, q: Any, k: Any) -> Chosen:
    """Choose for the float32 backward in Gluon."""
    d = hopper_module().tile_columns(q)
    return f"HOPPER_FLOAT32[{d}, 3]", hopper_tables().HOPPER_FLOAT32[d, 3][1:3]


def forward_choice(request: Any, q: Any, k: Any) -> Chosen:
    """Choose as planning does among `WAYS`."""
    if taken := hopper_module().hopper_forward(request, q, k, k):
        choices = gluon_choices(hopper_module().tile_columns(q), request.is_causal)
        way = next(way for way, (_, choice) in choices.items() if choice == taken)
    elif tiles_module().split_keys(request, q, k):
        way = "split"
    else:
        way = "gluon" if hopper_module().hopper_float32_forward(request, q, k) else "plain"
    return _way("forward-choice", q, way)


def backward_choice(request: Any, q: Any, k: Any) -> Chosen:
    """Choose as planning does among `WAYS`."""
    if hopper_module().hopper_backward(request, q, k, k) or hopper_module().hopper_float32_backward(request, q, k):
        return _way("backward-choice", q, "gluon")
    return _way("backward-choice", q, "at once" if tiles_module().tiles_at_once(q, k) else "two passes")


def _way(kernel: str, q: Any, way: str) -> Chosen:
    return f"{kernel} {joined(q.shape)} {_dtype(q)}", (WAYS[kernel].index(way),)


def _dtype(q: Any) -> str:
    return str(q.dtype).removeprefix("torch.")


def _shared_bytes(q: Any) -> int:
    return int(measured_module("attention.gpu").shared_bytes(q.device))
