"""Made-up histories: series of values, commits named by their numbers."""

from collections.abc import Iterable, Sequence

from perf.selection import Negligible
from perf.site.changes.page import MachineChanges
from perf.site.changes.rows import Change, Series, judge
from perf.site.pages import Commit


def series(
    values: Sequence[float], name: str = "a.Class.track_time", revisions: Sequence[int] = (), sessions=None, **params
) -> Series:
    """Times, or bytes if the method says so; one commit after another unless told otherwise."""
    quantity = "time" if name.endswith("time") else "peak_memory"
    at = tuple(revisions or range(len(values)))
    return Series(name, params or {"n": 1}, quantity, at, tuple(values), 0.0, sessions=sessions)


def changes_of(some: Iterable[Series], negligible: Negligible) -> list[Change]:
    """Their steps, without drifts."""
    return judge(some, negligible)[0]


def commit(revision: int) -> Commit:
    return Commit(f"{revision:08d}" + "0" * 32, f"Commit {revision}", f"2026-01-{revision + 1:02d}")


def machine_of(
    changes: Sequence[Change], name: str = "h200", gates=(), accepted=(), drifting=(), outcomes=None
) -> MachineChanges:
    revisions = {commit(number).hash: number for number in range(100)}
    return MachineChanges(
        name, changes, 12, 3, commit, revisions, gates, accepted, drifting, outcomes=outcomes or (lambda revision: {})
    )
