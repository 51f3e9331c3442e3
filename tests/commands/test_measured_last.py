"""`perf measured` without a commit shows what was measured last, also where a run went on in an older session."""

from pathlib import Path
from typing import Any

import pytest

from perf.commands import measured
from perf.harness.journal import Journal


def write(folder: Path, commit: str, started_at: str, *ended_at: str) -> None:
    session: dict[str, Any] = {"kind": "session", "id": started_at, "started_at": started_at, "day": started_at[:10]}
    session |= {"harness": "1", "effort": "full", "machine": "box", "commit": commit, "device": {}, "software": {}}
    run = {"kind": "run", "session": started_at, "benchmark": "a.B", "cases": 1, "seconds": 1.0}
    runs = [run | {"ended_at": time} for time in ended_at]
    journal = Journal(folder, "box", commit)
    for line in (session, *runs):
        journal.write(line)
    journal.close()


def test_the_end_of_a_run_counts_not_the_beginning_of_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "RECORDS", tmp_path)
    first, second, old = "a" * 40, "b" * 40, "c" * 40
    write(tmp_path, first, "2026-11-29T05:00", "2026-11-29T05:10", "2026-11-29T07:00")
    write(tmp_path, second, "2026-11-29T06:00", "2026-11-29T06:10")
    write(tmp_path, old, "2026-11-28T06:00")
    assert measured._newest("box") == (first, [second])
