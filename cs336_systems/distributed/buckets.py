"""Which gradients travel together: pure functions of parameters, without a process group."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

MIB = 2**20
LAST_PART, MOST_BYTES = 1 / 256, 1024 * MIB
"""Of `grown`: the least part of all bytes that travels last, and after how many bytes a bucket closes."""


@dataclass(frozen=True)
class Bucket:
    """Parameters that are reduced in one call: of one dtype and one device."""

    indices: tuple[int, ...]
    """Into the list of parameters, in the order in which their gradients are expected."""

    num_bytes: int
    """Of all their gradients."""


def buckets_of(parameters: Sequence[Tensor], bucket_size_mb: float | None) -> list[Bucket]:
    """Buckets of at most `bucket_size_mb` MiB (None: no limit), from the last parameter to the first.

    A backward makes gradients in about the reverse of the order in which modules were registered. A bucket closes
    before a parameter that would exceed its size, so a larger parameter has a bucket of its own; torch's DDP closes
    after, so the same number there makes another partition.

    Raises `ValueError` for a size that is not positive.
    """
    if bucket_size_mb is not None and not bucket_size_mb > 0:
        raise ValueError(f"bucket_size_mb={bucket_size_mb} was given; allowed: a number above 0, or None")
    limit = float("inf") if bucket_size_mb is None else bucket_size_mb * MIB
    open_buckets: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    closed: list[Bucket] = []

    def close(kind: tuple[torch.dtype, torch.device]) -> None:
        indices = open_buckets.pop(kind)
        closed.append(Bucket(tuple(indices), sum(parameters[index].nbytes for index in indices)))

    for index in reversed(range(len(parameters))):
        parameter = parameters[index]
        kind = _kind(parameter)
        held = sum(parameters[other].nbytes for other in open_buckets.get(kind, ()))
        if held and held + parameter.nbytes > limit:
            close(kind)
        open_buckets.setdefault(kind, []).append(index)
    for kind in list(open_buckets):
        close(kind)
    return _in_order(closed)


def _in_order(buckets: Iterable[Bucket]) -> list[Bucket]:
    """By when the last gradient of each is expected."""
    return sorted(buckets, key=lambda bucket: -bucket.indices[-1])


def made_together(output: Any, parameters: Sequence[Tensor]) -> list[Bucket]:
    """A bucket for each node of `output`'s graph that hands on gradients of `parameters`, from the last to the first.

    In eager mode hardly two parameters share one; a compiled block is a single node, whose gradients arrive at once. A
    parameter with several such nodes (tied weights), or with none in sight (a reentrant checkpoint, or an output inside
    a class of the user's), stands alone.
    """
    makers: dict[int, list[Any]] = {}
    found = {tensor.grad_fn for tensor in _tensors_in(output) if tensor.grad_fn is not None}
    waiting = list(found)
    while waiting:
        node = waiting.pop()
        for following, _ in node.next_functions:
            if (leaf := getattr(following, "variable", None)) is not None:
                makers.setdefault(id(leaf), []).append(node)
            elif following is not None and following not in found:
                found.add(following)
                waiting.append(following)
    buckets: dict[Any, list[int]] = {}
    for index in reversed(range(len(parameters))):
        parameter = parameters[index]
        made_by = makers.get(id(parameter), [])
        key = (made_by[0], _kind(parameter)) if len(made_by) == 1 else index
        buckets.setdefault(key, []).append(index)
    return _in_order(
        Bucket(tuple(indices), sum(parameters[index].nbytes for index in indices)) for indices in buckets.values()
    )


def _tensors_in(output: Any) -> Iterator[Tensor]:
    """Those in lists, tuples, mappings and dataclasses, however deep, as torch's own data parallelism finds them."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for part in output.values():
            yield from _tensors_in(part)
    elif isinstance(output, list | tuple | set):
        for part in output:
            yield from _tensors_in(part)
    elif is_dataclass(output) and not isinstance(output, type):
        for field in fields(output):
            yield from _tensors_in(getattr(output, field.name))


def grown(buckets: Sequence[Bucket], parameters: Sequence[Tensor]) -> list[Bucket]:
    """Neighbours of one dtype and device joined, each bucket about twice the next, from the last, which is small.

    The last one is waited for; each before it has the rest of the backward for its journey, and one long all-reduce
    holds less of the GPU than many short ones: every one of them begins with ranks waiting for each other.
    """
    wanted = LAST_PART * sum(bucket.num_bytes for bucket in buckets)
    joined: list[Bucket] = []
    for bucket in reversed(buckets):
        alike = joined and _kind(parameters[bucket.indices[0]]) == _kind(parameters[joined[-1].indices[0]])
        if alike and joined[-1].num_bytes < wanted:
            after = joined.pop()
            bucket = Bucket(bucket.indices + after.indices, bucket.num_bytes + after.num_bytes)
        elif joined:
            wanted = min(2 * joined[-1].num_bytes, MOST_BYTES)
        joined.append(bucket)
    return joined[::-1]


def _kind(parameter: Tensor) -> tuple[torch.dtype, torch.device]:
    """Gradients of one travel together."""
    return parameter.dtype, parameter.device


def partition(sizes: Sequence[int], loads: Sequence[int]) -> list[int]:
    """The rank that owns each of `sizes`, which come on top of `loads`: the largest first, to the least loaded rank.

    Within 4/3 of the best partition (Graham 1969); for a Transformer's tensors within 1 % of even.
    """
    totals = list(loads)
    owners = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        owner = min(range(len(totals)), key=totals.__getitem__)
        owners[index] = owner
        totals[owner] += sizes[index]
    return owners
