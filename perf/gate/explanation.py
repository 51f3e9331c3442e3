"""Explain a slower or larger row in one line, from the kernels and allocations of its two arms."""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perf.gate.evidence import Outcome
from perf.printable import shortened

MAX_LINE = 160  # characters
MAX_NAME = 48
MIN_SIMILARITY = 0.75
"""Similarity of two names in a profile, template arguments included, from which a kernel counts as renamed."""

MIN_SHARE = 0.2
"""Share of the change that the kernels must explain; below it, one profiled call is no evidence."""

MAX_BUSY = 0.5
"""Share of a call that kernels fill at most where the host sets its time."""

MAX_KERNEL_CHANGE = 0.05
"""Change of the kernels' summed time that one profiled call does not resolve: 1 to 3 % in rows of identical code."""


def why_slower(base: Outcome, head: Outcome, change_s: float) -> str:
    """Name the kernel whose time moved most in the direction of the row's change (`change_s`), and its new properties.

    Returns "" if the kernels are unknown.
    """
    if not base.kernels or not head.kernels or not change_s:
        return ""
    before, after = _times(base), _times(head)
    both = before.keys() & after.keys()
    gone, new = ({name: name for name in arm if name not in both} for arm in (before, after))
    renamed = pair_by_name(gone, new, MIN_SIMILARITY)
    moves = {
        name: after.get(name, 0.0) - before.get(renamed.get(name, name), 0.0)
        for name in [*after, *(name for name in before if name not in after and name not in renamed.values())]
    }
    sign = 1 if change_s > 0 else -1
    if sign * sum(moves.values()) < MIN_SHARE * abs(change_s) * 1e6:
        total = f"{sum(before.values()):.1f} -> {sum(after.values()):.1f} µs"
        return f"the kernels of one call do not explain it: {total}"
    name = max(moves, key=lambda kernel: sign * moves[kernel])
    share, rest_us = moves[name] / (change_s * 1e6), change_s * 1e6 - moves[name]
    rest = f"; the rest of the call {rest_us:+.1f} µs" if share >= 1.005 else ""
    parts = [f"{_described(name, before, after, renamed)} {moves[name]:+.1f} µs ({share:.0%} of the change{rest})"]
    parts += _compiled(base.triton_kernels, head.triton_kernels, name, renamed.get(name, name))
    return shortened(", ".join(parts), MAX_LINE)


def is_around_kernels(base: Outcome, head: Outcome, change_s: float) -> bool:
    """Whether the kernels and their times are unchanged, so that the change lies between or around them."""
    before, after = ([(name, count) for name, count, _ in sorted(arm.kernels)] for arm in (base, head))
    moved_us = sum(_times(head).values()) - sum(_times(base).values())
    return bool(before) and before == after and abs(moved_us) < MIN_SHARE * abs(change_s) * 1e6


def is_host_time(base: Outcome, head: Outcome, base_s: float, head_s: float) -> bool:
    """Whether the change is around unchanged kernels that leave the GPU idle for most of a call, before and after."""
    before_us, after_us = (sum(_times(arm).values()) for arm in (base, head))
    waits = before_us <= MAX_BUSY * base_s * 1e6 and after_us <= MAX_BUSY * head_s * 1e6
    still = abs(after_us - before_us) <= MAX_KERNEL_CHANGE * before_us
    return waits and still and is_around_kernels(base, head, head_s - base_s)


def why_larger(base: Outcome, head: Outcome) -> str:
    """Name the allocation at the peak that moved most in the peak's direction; "" if none is known."""
    if base.peak_bytes is None or head.peak_bytes is None:
        return ""
    before, after = _allocated(base), _allocated(head)
    sign = 1 if head.peak_bytes > base.peak_bytes else -1
    moves = {place: sign * (after.get(place, 0) - before.get(place, 0)) for place in [*after, *before]}
    place = max(moves, key=lambda one: moves[one], default="")
    if not moves or moves[place] <= 0:
        return ""
    old, new = before.get(place, 0), after.get(place, 0)
    allocations = [*head.largest_allocations, *base.largest_allocations]
    where = next(where for _, where in allocations if _place(where) == place)
    if not old or not new:
        return shortened(f"{'gone' if old else 'new'}: {_size(old or new)} at {where}", MAX_LINE)
    return shortened(f"{_size(old)} -> {_size(new)} at {where}", MAX_LINE)


def _times(outcome: Outcome) -> dict[str, float]:
    return {name: us for name, _, us in outcome.kernels}


def _allocated(outcome: Outcome) -> dict[str, int]:
    allocated: dict[str, int] = {}
    for size, where in outcome.largest_allocations:
        allocated[_place(where)] = allocated.get(_place(where), 0) + size
    return allocated


def _place(where: str) -> str:
    """Remove line numbers, which move without the allocation."""
    return re.sub(r":\d+\b", "", where)


def pair_by_name(gone: Mapping[str, str], new: Mapping[str, str], min_similarity: float) -> dict[str, str]:
    """Map each new kernel to the remaining gone kernel of the most similar name. Arguments: kernels and their names."""
    left, pairs = list(gone), dict[str, str]()
    for kernel, name in new.items():
        likeness = {old: difflib.SequenceMatcher(None, gone[old], name).ratio() for old in left}
        nearest = max(left, key=lambda old: likeness[old], default="")
        if nearest and likeness[nearest] >= min_similarity:
            pairs[kernel] = nearest
            left.remove(nearest)
    return pairs


def _described(name: str, before: dict[str, float], after: dict[str, float], renamed: dict[str, str]) -> str:
    if name in renamed:
        return f"{_name(renamed[name], 30)}, now {_name(name, 30)},"
    if name not in before:
        return f"new kernel {_name(name)}"
    return _name(name) if name in after else f"without {_name(name)}"


def _compiled(base: Sequence[dict[str, Any]], head: Sequence[dict[str, Any]], name: str, old: str) -> list[str]:
    """List the compiled properties of a Triton kernel that differ between the arms."""
    before = [kernel for kernel in base if kernel["name"] == old]
    after = [kernel for kernel in head if kernel["name"] == name]
    if len(before) != 1 or len(after) != 1:  # compiled in several versions: the slow one is unknown
        return []
    shown: dict[str, Callable[[Any], str]] = {
        "registers": str,
        "spills": str,
        "shared_bytes": _size,
        "num_warps": str,
        "num_stages": str,
    }
    changed = [
        f"{'shared' if field == 'shared_bytes' else field} {show(before[0][field])} -> {show(after[0][field])}"
        for field, show in shown.items()
        if field in before[0] and field in after[0] and before[0][field] != after[0][field]
    ]
    digests = before[0].get("sass"), after[0].get("sass")
    if all(digests) and (digests[0] == digests[1] or not changed):
        changed.append("same SASS" if digests[0] == digests[1] else "SASS differs")
    return changed


def _name(name: str, longest: int = MAX_NAME) -> str:
    return shortened(name.removeprefix("void "), longest)


def _size(count: int) -> str:
    """Format bytes with four digits: peaks are compared to the byte, so that a small difference is a change."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"
