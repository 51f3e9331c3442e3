"""Assignment of gradients to collectives and of parameters to ranks: pure functions, no process group."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from cs336_systems.checks import is_number

MIB = 2**20
MIN_LAST_FRACTION, MAX_GROUP_BYTES = 1 / 256, 1024 * MIB
"""Limits of `merged_groups`: the smallest share of all bytes in the last group, and the size that closes a group."""


@dataclass(frozen=True)
class Bucket:
    """Parameters of one device, with gradients of one dtype, that are reduced in one call."""

    indices: tuple[int, ...]
    """Indices into the list of parameters, in the order in which their gradients are expected."""

    num_bytes: int
    """Size of all their gradients."""


def buckets_of(parameters: Sequence[Tensor], bucket_size_mb: float | None) -> list[Bucket]:
    """Fill buckets of at most `bucket_size_mb` MiB (None: no limit), from the last parameter to the first.

    A backward produces gradients in roughly the reverse order of module registration. A bucket closes before a
    parameter that would exceed its size, so a larger parameter gets a bucket of its own. torch's DDP closes after that
    parameter, so the same size there gives other buckets.

    Raises `ValueError` for a size that is not positive.
    """
    if bucket_size_mb is not None and not (is_number(bucket_size_mb) and bucket_size_mb > 0):
        raise ValueError(f"bucket_size_mb={bucket_size_mb!r} was given; allowed: a number above 0, or None")
    limit = float("inf") if bucket_size_mb is None else bucket_size_mb * MIB
    open_buckets: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    closed: list[list[int]] = []
    for index in reversed(range(len(parameters))):
        parameter = parameters[index]
        key = _dtype_and_device(parameter)
        size = gradient_bytes(parameters[other] for other in open_buckets.get(key, ()))
        if size and size + gradient_bytes([parameter]) > limit:
            closed.append(open_buckets.pop(key))
        open_buckets.setdefault(key, []).append(index)
    return _in_launch_order([*closed, *open_buckets.values()], parameters)


def backward_groups(output: Any, parameters: Sequence[Tensor]) -> list[Bucket]:
    """Group `parameters` by the node of `output`'s graph that produces their gradients, from the last to the first.

    In eager mode few nodes produce the gradients of two parameters; a compiled block is one node, whose gradients
    arrive together. A parameter that has several such nodes (tied weights) or none that can be found (a reentrant
    checkpoint, an output inside a user's class) stays alone.
    """
    producers: dict[int, list[Any]] = {}
    seen = {tensor.grad_fn for tensor in tensors_in(output) if tensor.grad_fn is not None}
    pending = list(seen)
    while pending:
        node = pending.pop()
        for following, _ in node.next_functions:
            if (leaf := getattr(following, "variable", None)) is not None:
                producers.setdefault(id(leaf), []).append(node)
            elif following is not None and following not in seen:
                seen.add(following)
                pending.append(following)
    groups: dict[Any, list[int]] = {}
    for index in reversed(range(len(parameters))):
        parameter = parameters[index]
        nodes = producers.get(id(parameter), [])
        key = (nodes[0], _dtype_and_device(parameter)) if len(nodes) == 1 else index
        groups.setdefault(key, []).append(index)
    return _in_launch_order(groups.values(), parameters)


def merged_groups(groups: Sequence[Bucket], parameters: Sequence[Tensor]) -> list[Bucket]:
    """Merge neighbours of one dtype and device so that each group has about twice the bytes of the next.

    Nothing hides the last group, so it is small; each earlier group overlaps with the rest of the backward. A long
    all-reduce occupies the GPU less than many short ones, each of which starts with ranks waiting for each other.
    """
    wanted = MIN_LAST_FRACTION * sum(group.num_bytes for group in groups)
    merged: list[Bucket] = []
    for group in reversed(groups):
        key = _dtype_and_device(parameters[group.indices[0]])
        fits = merged and key == _dtype_and_device(parameters[merged[-1].indices[0]])
        if fits and merged[-1].num_bytes < wanted:
            after = merged.pop()
            group = Bucket(group.indices + after.indices, group.num_bytes + after.num_bytes)
        elif merged:
            wanted = min(2 * merged[-1].num_bytes, MAX_GROUP_BYTES)
        merged.append(group)
    return merged[::-1]


def partition(sizes: Sequence[int], loads: Sequence[int]) -> list[int]:
    """Assign each of `sizes` to a rank whose load is in `loads`: the largest first, to the least loaded rank.

    The maximum load is within 4/3 of the optimum (Graham 1969); for a Transformer's tensors within 1 % of even.
    """
    totals = list(loads)
    owners = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        owner = min(range(len(totals)), key=totals.__getitem__)
        owners[index] = owner
        totals[owner] += sizes[index]
    return owners


def _in_launch_order(groups: Iterable[Sequence[int]], parameters: Sequence[Tensor]) -> list[Bucket]:
    """Make buckets and sort them by when their last gradient is expected."""
    buckets = [Bucket(tuple(indices), gradient_bytes(parameters[index] for index in indices)) for indices in groups]
    return sorted(buckets, key=lambda bucket: -bucket.indices[-1])


def tensors_in(output: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested lists, tuples, mappings and dataclasses, the containers that torch's DDP searches."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for part in output.values():
            yield from tensors_in(part)
    elif isinstance(output, list | tuple | set):
        for part in output:
            yield from tensors_in(part)
    elif is_dataclass(output) and not isinstance(output, type):
        for field in fields(output):
            yield from tensors_in(getattr(output, field.name))


def gradient_dtype(parameter: Tensor) -> torch.dtype:
    """Return the dtype of a parameter's gradient: its own, unless torch 2.13 or newer is told another."""
    return getattr(parameter, "grad_dtype", None) or parameter.dtype


def gradient_bytes(parameters: Iterable[Tensor]) -> int:
    """Return the size of the gradients of parameters."""
    return sum(parameter.numel() * gradient_dtype(parameter).itemsize for parameter in parameters)


def _dtype_and_device(parameter: Tensor) -> tuple[torch.dtype, torch.device]:
    return gradient_dtype(parameter), parameter.device
