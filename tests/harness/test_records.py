"""Records survive a killed run, and pool exactly the counted visits."""

import gzip
import json

import pytest

from perf.harness import journal as journals
from perf.harness import records
from perf.harness.journal import Journal

COMMIT = "c" * 40
CEILINGS = {"matmul_flops_per_s": {"float32": 1e12}, "copy_bytes_per_s": 1e11}


def session(name="s1", day="2026-01-01"):
    return {
        "kind": "session",
        "id": name,
        "started_at": f"{day}T00:00:00+00:00",
        "day": day,
        "harness": "1",
        "effort": "full",
        "machine": "m",
        "commit": COMMIT,
        "device": {"name": "d"},
        "software": {"torch": "2"},
    }


def visit(number, samples, name="s1", status="ok", **extra):
    line = {"kind": "visit", "session": name, "benchmark": "a.B", "params": {"n": 1}, "cache": "warm"}
    return line | {"visit": number, "status": status, "reason": "", "samples_ns": samples} | extra


def test_the_first_visit_is_kept_on_file_and_never_used():
    lines = [session(), visit(0, [9000, 9000], peak_bytes=7), visit(1, [1000, 2000]), visit(2, [3000])]
    (result,) = records.summarize(lines)
    assert result.status == "ok"
    assert result.samples_s == pytest.approx((1e-6, 2e-6, 3e-6))
    assert len(result.visits_s) == 2
    assert result.peak_bytes == 7


def test_throttled_visits_are_dropped_and_all_throttled_is_a_failure_with_its_reason():
    slow = visit(1, [9000], status="throttled") | {"reason": "GPU throttled"}
    (result,) = records.summarize([session(), visit(0, [1]), slow, visit(2, [1000])])
    assert result.samples_s == pytest.approx((1e-6,))
    (result,) = records.summarize([session(), visit(0, [1]), slow])
    assert (result.status, result.samples_s) == ("throttled", ())
    assert result.reason == "GPU throttled"


def test_throttled_samples_are_on_file_and_do_not_count():
    (result,) = records.summarize([session(), visit(0, [1]), visit(1, [1000, 9000, 2000], throttled=[1])])
    assert result.samples_s == pytest.approx((1e-6, 2e-6))


def test_one_failed_visit_fails_the_case():
    wrong = {"kind": "visit", "session": "s1", "benchmark": "a.B", "params": {"n": 1}, "cache": "warm", "visit": 2}
    wrong |= {"status": "crashed", "reason": "SIGSEGV"}
    (result,) = records.summarize([session(), visit(0, [1]), visit(1, [1000]), wrong])
    assert (result.status, result.reason, result.samples_s) == ("crashed", "SIGSEGV", ())


def test_the_newest_session_speaks_for_a_case_and_ceilings_are_the_best_of_its_processes():
    process = {"kind": "process", "session": "s2", "package_digest": "", "ceilings": CEILINGS}
    faster = process | {"ceilings": CEILINGS | {"copy_bytes_per_s": 2e11}}
    lines = [session(), visit(1, [1000]), session("s2"), faster, process, visit(1, [5000], "s2")]
    (result,) = records.summarize(lines)
    assert result.session.id == "s2"
    assert result.samples_s == pytest.approx((5e-6,))
    assert result.session.ceilings["copy_bytes_per_s"] == 2e11


def test_a_field_of_a_newer_version_is_ignored():
    lines = [session() | {"newer": 1}, visit(1, [1000], newer=1)]
    assert records.summarize(lines) == records.summarize([session(), visit(1, [1000])]) != []


def test_an_older_session_that_a_merge_appended_does_not_speak_for_a_case():
    lines = [session(), visit(1, [1000]), session("s0") | {"started_at": "2020"}, visit(1, [5000], "s0")]
    (result,) = records.summarize(lines)
    assert result.session.id == "s1"


def test_a_run_that_ends_while_its_records_are_read_hides_no_line(tmp_path, monkeypatch):
    journal = Journal(tmp_path, "m", "a" * 40)
    journal.write(session())
    read = journals._read_lines

    def ending(path, *arguments):
        lines = list(read(path, *arguments))
        monkeypatch.setattr(journals, "_read_lines", read)
        journal.close()
        return lines

    monkeypatch.setattr(journals, "_read_lines", ending)
    assert [line["kind"] for line in records.read_lines(tmp_path, "m", "a" * 40)] == ["session"]


def test_the_best_rates_ever_seen_on_a_machine_are_known(tmp_path):
    for commit, rate in (("a" * 40, 1e11), ("b" * 40, 3e11), ("c" * 40, 2e11)):
        journal = Journal(tmp_path, "m", commit)
        journal.write(session())
        journal.write({"kind": "process", "session": "s1", "ceilings": CEILINGS | {"copy_bytes_per_s": rate}})
        journal.close()
    lines = [*records.read_machine(tmp_path, "m", pytest.fail)]
    assert records.known_ceilings(lines, "d")["copy_bytes_per_s"] == 3e11
    assert records.known_ceilings(lines, "another device of this machine") == {}


def test_a_damaged_file_is_one_warning_and_the_others_are_read(tmp_path):
    journal = Journal(tmp_path, "m", "a" * 40)
    journal.write(session())
    journal.close()
    folder, warnings = tmp_path / "m", []
    (folder / f"{'b' * 40}.jsonl.gz").write_bytes(b"cut off")
    (folder / f"{'c' * 40}.jsonl.gz").write_bytes(gzip.compress(b'{"kind":"reach" this is no JSON}\n'))
    (folder / f"{'d' * 40}.jsonl.part").write_text('{"kind":"session"}\n')
    lines = list(records.read_machine(tmp_path, "m", warnings.append))
    assert lines == [session()]
    reasons = ["cannot be read: Not a gz", "cannot be read: Expecting", "is read without 1 of 1 lines"]
    for line, commit, reason in zip(warnings, "bcd", reasons, strict=True):
        assert line.startswith(f"{folder / (commit * 40)}.jsonl.gz {reason}")
        assert line.endswith("; move it aside or restore it") and "\n" not in line


def test_an_unfinished_journal_is_read_and_folded_and_its_torn_last_line_dropped(tmp_path):
    part = tmp_path / "m" / f"{COMMIT}.jsonl.part"
    part.parent.mkdir()
    whole, torn = (json.dumps(visit(n, [n * 1000]), separators=(",", ":")) for n in (1, 2))
    part.write_text("\n".join([json.dumps(session(), separators=(",", ":")), whole, torn[:-20]]))  # it died here
    assert [len(result.samples_s) for result in records.read_commit(tmp_path, "m", COMMIT)] == [1]

    again = Journal(tmp_path, "m", COMMIT)
    again.write(visit(3, [3000]))
    again.close()
    assert [path.name for path in (tmp_path / "m").iterdir()] == [f"{COMMIT}.jsonl.gz"]
    (result,) = records.read_commit(tmp_path, "m", COMMIT)
    assert result.samples_s == pytest.approx((1e-6, 3e-6))
    (tmp_path / "nothing" / "self-test").mkdir(parents=True)
    assert records.machines(tmp_path) == ["m"]
    assert records.commits(tmp_path, "m") == [COMMIT]


def test_a_journal_that_was_folded_but_not_removed_counts_once(tmp_path, monkeypatch):
    killed = Journal(tmp_path, "m", COMMIT)
    for line in (session(), visit(0, [9000]), visit(1, [1000])):
        killed.write(line)
    killed._fold()
    assert records.read_commit(tmp_path, "m", COMMIT)[0].samples_s == pytest.approx((1e-6,))
    killed._stream.close()
    again = Journal(tmp_path, "m", COMMIT)
    again.write(visit(2, [2000]))
    again.close()
    assert records.read_commit(tmp_path, "m", COMMIT)[0].samples_s == pytest.approx((1e-6, 2e-6))


def test_a_session_that_goes_on_after_another_has_all_of_its_visits():
    first = [session(), visit(0, [9], peak_bytes=7), visit(1, [1000])]
    other = [session("s2"), visit(0, [9], "s2"), visit(1, [5000], "s2")]
    (result,) = records.summarize([*first, *other, visit(2, [2000])])
    assert result.samples_s == pytest.approx((1e-6, 2e-6))
    assert (result.peak_bytes, result.session.id) == (7, "s1")


def test_the_same_lines_make_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        journal = Journal(tmp_path / name, "m", COMMIT)
        journal.write(session())
        journal.close()
    first, second = (tmp_path / name / "m" / f"{COMMIT}.jsonl.gz" for name in ("one", "two"))
    assert first.read_bytes() == second.read_bytes()


def test_an_unwritable_folder_is_one_clear_line(tmp_path):
    (tmp_path / "records").write_text("a file where the folder should be")
    with pytest.raises(SystemExit, match=r"^perf: .*records/m"):
        Journal(tmp_path / "records", "m", COMMIT)


def test_two_runs_of_a_commit_lose_nothing(tmp_path):
    """The second is refused while the first is alive, and takes over what it has left."""
    first = Journal(tmp_path, "m", COMMIT)
    first.write({"kind": "session", "id": "1"})
    with pytest.raises(SystemExit, match=r"another run .*\.part"):
        Journal(tmp_path, "m", COMMIT)
    Journal(tmp_path, "m", "d" * 40).close()
    first.write({"kind": "session", "id": "2"})
    first.close()
    second = Journal(tmp_path, "m", COMMIT)
    second.write({"kind": "session", "id": "3"})
    second.close()
    assert [line["id"] for line in records.read_lines(tmp_path, "m", COMMIT)] == ["1", "2", "3"]
    assert [path.name for path in (tmp_path / "m").iterdir() if path.suffix == ".part"] == []
