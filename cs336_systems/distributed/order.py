"""Order of a pass's collectives: all ranks agree on it when it is new, and follow it without asking afterwards."""

import zlib
from collections.abc import Hashable, Iterator

import torch
import torch.distributed as dist

from cs336_systems.distributed.collectives import naming
from cs336_systems.distributed.process_group import from_all_ranks

Event = tuple[str, str]
"""Kind, and the name of a layer or parameter."""


class Order:
    """Events of a pass in their order, which has to be the same on every rank.

    The first pass of a key records: every event waits until all ranks have reached the same one. Later passes follow
    the record. The first event that differs from it is checked again, and so is the rest of that pass, which then
    replaces the record. A rank that differs alone fails after the timeout, instead of mixing up collectives.

    Args:
        group: CPU group for the checks, which must not be used for anything else.
    """

    def __init__(self, group: dist.ProcessGroup):
        self._group = group
        self._known: dict[Hashable, list[Event]] = {}
        self.start(None)

    def start(self, key: Hashable) -> None:
        """Start a pass that is like the last one of the same key, and drop one that has not ended."""
        self._key, self._expected = key, self._known.get(key, [])
        self._reached: list[Event] = []

    @property
    def has_begun(self) -> bool:
        """Whether an event of this pass has been reached."""
        return bool(self._reached)

    def reach(self, *event: str) -> None:
        """Note an event. Raises the same `RuntimeError` on every rank if the ranks are checked and differ."""
        position = len(self._reached)
        self._reached.append(event)  # type: ignore[arg-type]
        if position < len(self._expected) and self._expected[position] == event:
            return
        self._expected = []
        self._agree(" ".join(event))

    def upcoming(self, kind: str) -> Iterator[str]:
        """Yield the names of the expected events of a kind, if this pass has followed the record so far."""
        for position in range(len(self._reached), len(self._expected)):
            if self._expected[position][0] == kind:
                yield self._expected[position][1]

    def end(self) -> None:
        """End the pass and remember it."""
        self.reach("end", "of the pass")
        self._known[self._key] = self._reached
        self.start(None)

    def _agree(self, event: str) -> None:
        """Raise the same `RuntimeError` on every rank unless all of them call this with the same event."""
        code = zlib.crc32(event.encode())
        extremes = torch.tensor([code, -code], device="cpu")
        with naming(f"the other ranks' confirmation of '{event}', which is new in this rank's order,"):
            dist.all_reduce(extremes, dist.ReduceOp.MAX, group=self._group)
        if not extremes.sum():
            return
        events = from_all_ranks(event, self._group)
        other = next(number for number, theirs in enumerate(events) if theirs != events[0])
        first, second = (dist.get_global_rank(self._group, number) for number in (0, other))
        raise RuntimeError(
            f"rank {first} reached '{events[0]}', rank {second} '{events[other]}'; allowed: the same on every rank"
        )
