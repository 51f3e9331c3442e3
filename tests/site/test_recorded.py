"""Records of another form: what the pages leave out of them, and what is said of it."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perf.harness import records
from perf.site import left_out, newest
from perf.site.compare import rows as compare_rows
from tests.site import steps
from tests.site.synthetic import H200

COMMIT = "a" * 40
Change = Callable[[dict[str, Any]], Any]


def spoil(directory: Path, kind: str, change: Change, number: int = 1) -> None:
    """Write a commit with eight cases, and change one line of a kind."""
    steps.write_records(directory, steps.phases(), COMMIT)
    lines = records.read_lines(directory, H200, COMMIT)
    change([line for line in lines if line["kind"] == kind][number])
    path = directory / H200 / f"{COMMIT}.jsonl.gz"
    path.unlink()
    path.with_name(f"{COMMIT}.jsonl.part").write_text(
        "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line.update(status="brand_new"),
        lambda line: line.update(peak_bytes="1 GiB"),
        lambda line: line.update(peak_bytes=10**400),
        lambda line: line.update(params=[1, 2]),
        lambda line: line.update(params=line["params"] | {"size": ["small"]}),
        lambda line: line.update(floor=None),
        lambda line: line.update(samples_ns=["1"]),
        lambda line: line.update(samples_ns=[math.inf]),
        lambda line: line.update(samples_ns=[10**400]),
        lambda line: line.update(kernels=[["gemm", 1]]),
        lambda line: line.update(kernels=[], triton_kernels=[{"registers": 1}]),
        lambda line: line.update(kernels=[], largest_allocations=[["a.py:1", 2]]),
        lambda line: line.update(session=None),
        lambda line: line.pop("reason"),
    ],
)
def test_a_record_of_another_form_leaves_out_its_case_alone(change: Change, tmp_path: Path, capsys: Any) -> None:
    spoil(tmp_path, "visit", change)
    newest.outcomes_of(tmp_path, H200, COMMIT)
    assert len(newest.read_commit(tmp_path, H200, COMMIT)) >= 7
    assert len(newest.cells_of([(COMMIT, newest.read_commit(tmp_path, H200, COMMIT))])[steps.PHASES]) >= 7
    file = compare_rows.read(tmp_path, H200, COMMIT, [], (), ())
    assert file and len(file["classes"][steps.PHASES]["cases"]) >= 7
    ((name, why),) = left_out.unreadable(tmp_path, H200)
    assert name.startswith("aaaaaaaa") and steps.PHASES in why
    assert "\n" not in why


def test_a_counted_visit_without_samples_leaves_out_its_case(tmp_path: Path) -> None:
    spoil(tmp_path, "visit", lambda line: line.pop("samples_ns"), number=8)
    assert len(newest.read_commit(tmp_path, H200, COMMIT)) == 7
    assert "samples_ns" in left_out.unreadable(tmp_path, H200)[0][1]


@pytest.mark.parametrize("least", [0, -1.0, 1e-320])
def test_a_counted_time_of_nothing_leaves_out_its_case(least: float, tmp_path: Path) -> None:
    spoil(tmp_path, "visit", lambda line: line["samples_ns"].append(least), number=8)
    assert len(newest.read_commit(tmp_path, H200, COMMIT)) == 7
    assert f"samples_ns has {least}" in left_out.unreadable(tmp_path, H200)[0][1]


def test_a_difference_of_two_times_may_be_negative(tmp_path: Path) -> None:
    line = {"params": {"mode": "exposed"}, "samples_ns": [-1, 0]}
    spoil(tmp_path, "visit", lambda visit: visit.update(line), number=8)
    assert left_out.unreadable(tmp_path, H200) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line.update(schema=2),
        lambda line: line.update(device=None),
        lambda line: line.update(software={"torch": None}),
        lambda line: line.pop("effort"),
    ],
)
def test_a_session_of_a_newer_form_is_left_out_and_named(change: Change, tmp_path: Path) -> None:
    spoil(tmp_path, "session", change, number=0)
    assert newest.read_commit(tmp_path, H200, COMMIT) == []
    assert compare_rows.read(tmp_path, H200, COMMIT, [], (), ()) is None
    ((name, why),) = left_out.unreadable(tmp_path, H200)
    assert name.startswith("aaaaaaaa") and "session" in why


def test_a_session_that_stands_there_twice_is_read_from_its_sound_line(tmp_path: Path) -> None:
    spoil(tmp_path, "session", lambda line: None, number=0)
    path = tmp_path / H200 / f"{COMMIT}.jsonl.part"
    first = json.loads(path.read_text().partition("\n")[0]) | {"device": None}
    path.write_text(json.dumps(first, separators=(",", ":")) + "\n" + path.read_text())
    assert len(newest.read_commit(tmp_path, H200, COMMIT)) == 8
    assert "session: device is None" in left_out.unreadable(tmp_path, H200)[0][1]


def test_what_stands_above_its_session_is_left_out(tmp_path: Path) -> None:
    spoil(tmp_path, "session", lambda line: None, number=0)
    path = tmp_path / H200 / f"{COMMIT}.jsonl.part"
    path.write_text("".join(sorted(path.read_text().splitlines(keepends=True), reverse=True)))  # visits come first
    assert newest.read_commit(tmp_path, H200, COMMIT) == []
    assert "its session" in left_out.unreadable(tmp_path, H200)[0][1]


def test_a_process_of_another_form_leaves_out_its_ceilings_alone(tmp_path: Path) -> None:
    spoil(tmp_path, "process", lambda line: line.update(ceilings={"copy_bytes_per_s": 1e12}), number=0)
    assert {one.session.ceilings.get("copy_bytes_per_s") for one in newest.read_commit(tmp_path, H200, COMMIT)} == {
        None
    }
    assert len(left_out.unreadable(tmp_path, H200)) == 1


def test_what_is_no_record_is_named_with_the_reason_and_without_the_path(tmp_path: Path) -> None:
    (tmp_path / H200).mkdir()
    (tmp_path / H200 / f"{COMMIT}.jsonl.gz").write_bytes(b"no gzip")
    ((_, why),) = left_out.unreadable(tmp_path, H200)
    assert "gzip" in why and str(tmp_path) not in why


def test_sound_records_are_whole(tmp_path: Path) -> None:
    steps.write_records(tmp_path, steps.phases(), COMMIT)
    assert len(newest.read_commit(tmp_path, H200, COMMIT)) == 8
    assert left_out.unreadable(tmp_path, H200) == []
