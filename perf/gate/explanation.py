"""One line on why a row is slower or larger, from what is known of its two arms."""

import difflib
from collections.abc import Callable, Sequence
from typing import Any

from perf.gate.evidence import Outcome

MOST = 160  # characters
LONGEST_NAME = 48
SAME_KERNEL = 0.75  # similarity of names, above which one gone and one new are one kernel renamed
SHOWN = 0.2  # of the change: of less, one profiled call says nothing


def why_slower(base: Outcome, head: Outcome, change_s: float) -> str:
    """The kernel of one call whose time moved most the way that the row's did (by `change_s`), and what it became.

    "" where nothing is known of the kernels.
    """
    if not base.kernels or not head.kernels or not change_s:
        return ""
    before, after = _times(base), _times(head)
    renamed = _renamed(before, after)
    moves = {
        name: after.get(name, 0.0) - before.get(renamed.get(name, name), 0.0)
        for name in [*after, *(name for name in before if name not in after and name not in renamed.values())]
    }
    sign = 1 if change_s > 0 else -1
    if sign * sum(moves.values()) < SHOWN * abs(change_s) * 1e6:
        total = f"{sum(before.values()):.1f} -> {sum(after.values()):.1f} us"
        return f"the kernels of one call do not show it: {total}"
    name = max(moves, key=lambda one: sign * moves[one])
    share = moves[name] / sum(moves.values())
    parts = [f"{_what(name, before, after, renamed)} {moves[name]:+.1f} us ({share:.0%} of the change)"]
    parts += _compiled(base.triton_kernels, head.triton_kernels, name, renamed.get(name, name))
    return _short(", ".join(parts))


def is_of_the_clock(base: Outcome, head: Outcome, change_s: float) -> bool:
    """Whether a call has the same kernels as before, and these took as long: what changed is between or around them."""
    before, after = ([(name, count) for name, count, _ in sorted(one.kernels)] for one in (base, head))
    moved_us = sum(_times(head).values()) - sum(_times(base).values())
    return bool(before) and before == after and abs(moved_us) < SHOWN * abs(change_s) * 1e6


def why_larger(base: Outcome, head: Outcome) -> str:
    """The allocation at the peak that moved most the way that the peak did; "" where none is known."""
    if base.peak_bytes is None or head.peak_bytes is None:
        return ""
    before, after = _held(base), _held(head)
    sign = 1 if head.peak_bytes > base.peak_bytes else -1
    moves = {where: sign * (after.get(where, 0) - before.get(where, 0)) for where in [*after, *before]}
    where = max(moves, key=lambda one: moves[one], default="")
    if not moves or moves[where] <= 0:
        return ""
    old, new = before.get(where, 0), after.get(where, 0)
    if not old or not new:
        return _short(f"{'gone' if old else 'new'}: {_size(old or new)} at {where}")
    return _short(f"{_size(old)} -> {_size(new)} at {where}")


def _times(outcome: Outcome) -> dict[str, float]:
    return {name: us for name, _, us in outcome.kernels}


def _held(outcome: Outcome) -> dict[str, int]:
    held: dict[str, int] = {}
    for size, where in outcome.largest_allocations:
        held[where] = held.get(where, 0) + size
    return held


def _renamed(before: dict[str, float], after: dict[str, float]) -> dict[str, str]:
    """New name -> old name, of kernels that are gone and came back under a similar one."""
    gone = [name for name in before if name not in after]
    pairs = {}
    for name in after:
        if name in before or not gone:
            continue
        nearest = max(gone, key=lambda one: difflib.SequenceMatcher(None, one, name).ratio())
        if difflib.SequenceMatcher(None, nearest, name).ratio() >= SAME_KERNEL:
            pairs[name] = nearest
            gone.remove(nearest)
    return pairs


def _what(name: str, before: dict[str, float], after: dict[str, float], renamed: dict[str, str]) -> str:
    if name in renamed:
        return f"{_name(renamed[name], 30)}, now {_name(name, 30)},"
    if name not in before:
        return f"new kernel {_name(name)}"
    return _name(name) if name in after else f"without {_name(name)}"


def _compiled(base: Sequence[dict[str, Any]], head: Sequence[dict[str, Any]], name: str, old: str) -> list[str]:
    """What the compiler made of one of ours, before and after, as far as it differs."""
    before = [kernel for kernel in base if kernel["name"] == old]
    after = [kernel for kernel in head if kernel["name"] == name]
    if len(before) != 1 or len(after) != 1:  # launched in several versions: which one was slow is not known
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


def _name(name: str, longest: int = LONGEST_NAME) -> str:
    name = name.removeprefix("void ")
    return name if len(name) <= longest else f"{name[: longest - 3]}..."


def _size(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"


def _short(line: str) -> str:
    line = " ".join(line.split())
    return line if len(line) <= MOST else f"{line[: MOST - 3]}..."
