"""The overview: classes from asv's graphs, verdicts from the gates on file, and what cannot be read."""

import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from perf.gate import report as reports
from perf.gate.evidence import Outcome
from perf.site import gates, left_out
from perf.site.overview.page import MachineOverview, render
from perf.site.overview.rows import MeasuredClass, classes_of
from tests.gate.reports import memory, report, verdict
from tests.site import synthetic
from tests.site.cases import case
from tests.site.changes.made_up import changes_of, commit, machine_of, series
from tests.site.pages import text_of
from tests.site.trust.made_up import HOSTILE

BENCHMARKS = {
    "attention.FlashAttention.track_time": {"params": [["1", "2"], ["'x'", "'y'"]], "param_names": ["n", "kind"]},
    "attention.FlashAttention.track_peak_memory": {"params": [["1", "2"], ["'x'"]], "param_names": ["n", "kind"]},
    "attention.Saved.track_peak_memory": {"params": [["1"]], "param_names": ["n"]},
    "smoke.Smoke.track_time": {"params": [], "param_names": []},
    "attention.Never.track_time": {"params": [["1"]], "param_names": ["n"]},
}


def graph(name, points, machine="h200"):
    return name, SimpleNamespace(benchmark_name=name, params={"machine": machine}, get_data=lambda: points)


def measured(*newest: int, name: str = "a.Class") -> MeasuredClass:
    """A class of as many cases, each measured last at the commit of that number."""
    return MeasuredClass(name, "track_time", len(newest), len(newest), set(newest), {}, newest)


def page_of(found=(), skipped=(), measured=(), changed=(), failing=(), newer=None, about=None):
    changes = machine_of(changed, "h200")
    machine = MachineOverview(
        "h200", "NVIDIA H200", measured, found, skipped, changes, about or {}, newer or {}, failing=failing
    )
    return render("demo", [machine], "https://code.example/commit/")


def test_classes_are_counted_from_the_graphs() -> None:
    graphs = [
        graph("smoke.Smoke.track_time", [(4, 1.0, None)]),
        graph("attention.FlashAttention.track_peak_memory", [(9, [1.0] * 4, None)]),
        graph(
            "attention.FlashAttention.track_time",
            [
                (3, [1.0, None, None, None], None),
                (5, [None, 2.0, None, None], None),
                (8, [None, 2.0, None, None], None),
            ],
        ),
        graph("attention.FlashAttention.track_time", [(7, [None] * 4, None)]),
        graph("attention.FlashAttention.track_time", [(8, [1.0] * 4, None)], machine="laptop"),
        graph("attention.Saved.track_peak_memory", [(2, [1.0], None)]),
        graph("attention.Never.track_time", [(2, [None], None)]),
        graph("attention.Forgotten.track_time", [(2, [1.0], None)]),
    ]
    flash, saved, smoke = classes_of(graphs, BENCHMARKS, "h200")
    assert (flash.benchmark, flash.method, flash.cells, flash.grid) == ("attention.FlashAttention", "track_time", 2, 4)
    assert flash.revisions == {3, 5, 8}
    assert flash.case == {"n": 1, "kind": "y"}, "measured twice"
    assert sorted(flash.newest) == [3, 8]
    assert (saved.benchmark, saved.method, saved.grid) == ("attention.Saved", "track_peak_memory", 1)
    assert (smoke.benchmark, smoke.grid) == ("smoke.Smoke", 1), "last"


def test_a_class_leads_to_its_page_and_its_history() -> None:
    classes = [
        MeasuredClass("transformer.Transformer", "track_time", 318, 320, {1, 2}, {"size": "xl"}, [2] * 318),
        measured(*[3] * 6, name="controls.Controls"),
        measured(3, name="smoke.SmokeDataParallel"),
    ]
    page = page_of(measured=classes, about={"transformer.Transformer": "Each phase"})
    assert '<a href="step.html">transformer.Transformer</a>' in page
    assert '<a href="roofline.html">controls.Controls</a>' in page
    assert '<a href="distributed.html">smoke.SmokeDataParallel</a>' in page
    assert 'href="history.html#transformer.Transformer.track_time?machine=h200&amp;p-size=%27xl%27"' in page
    assert "Each phase 318 of 320 2 00000002 2026-01-03 history" in text_of(page)
    assert "NVIDIA H200: 325 measured cases, 12 commits." in text_of(page), "as many as on the page of changes"


def keep(folder: Path, name: str, text: str) -> None:
    (folder / "h200" / "gate").mkdir(parents=True, exist_ok=True)
    (folder / "h200" / "gate" / name).write_text(text)


def test_gates_are_read_as_they_are_kept_newest_first(tmp_path: Path) -> None:
    slow = report(verdict("SLOWER", reason=HOSTILE, key=HOSTILE), verdict("SAME"), memory("LARGER", 1, 2))
    keep(tmp_path, "20260101T000000Z.json", reports.to_json(report(verdict("SAME"))))
    keep(tmp_path, "20260102T000000Z.json", reports.to_json(slow))
    accepted = report(verdict("SLOWER", accepted="exact sums"))
    keep(tmp_path, "20251231T000000Z.json", reports.to_json(accepted))
    on_file, skipped = gates.read(tmp_path, "h200")
    assert skipped == []
    assert [gate.report for gate in on_file] == [slow, report(verdict("SAME")), accepted]
    page = page_of(on_file, newer={"5e6f7a8b" + "0" * 32: 0})
    assert "<script>alert" not in page
    text = text_of(page)
    assert "gate, 1a2b3c4d to 5e6f7a8b , 2026-01-02 00:00 UTC: 1 slower, 1 larger" in text
    assert "memory: +1.00 B" in text
    assert text.index("2026-01-02") < text.index("2026-01-01") < text.index("2025-12-31")
    assert "1 worse and accepted" in text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is no JSON, or cut off"),
        ('{"version": 2}', "is of version 2; allowed: 1"),
        ('{"version": 1}', "is not of the form of version 1: base is missing"),
        ('{"version": 1, "judgement": {}, "base": 3}', "is not of the form of version 1"),
        (reports.to_json(report(head={"commit": "a"})), "is not of the form of version 1: subject is missing"),
    ],
)
def test_what_is_no_gate_is_named_with_the_reason(tmp_path: Path, text: str, why: str) -> None:
    keep(tmp_path, "20260101T000000Z.json", text)
    keep(tmp_path, "some.json", reports.to_json(report(verdict("SAME"))))
    on_file, skipped = gates.read(tmp_path, "h200")
    assert on_file == []
    assert dict(skipped).keys() == {"20260101T000000Z.json", "some.json"}
    assert dict(skipped)["20260101T000000Z.json"].startswith(why)
    assert "some.json is not named by its time" in text_of(page_of(skipped=skipped))


def test_a_row_of_another_form_makes_its_gate_unreadable(tmp_path: Path) -> None:
    document = json.loads(reports.to_json(report(verdict("SAME"))))
    document["judgement"]["verdicts"][0]["word"] = "FINE"
    keep(tmp_path, "20260101T000000Z.json", json.dumps(document))
    assert gates.read(tmp_path, "h200")[1][0][1].startswith(
        "is not of the form of version 1: word is 'FINE'; allowed: "
    )


def test_what_changed_lately_leads_to_its_commit() -> None:
    """Overview, change, commit: two clicks."""
    slower, faster = series([1.0] * 6 + [1.2] * 6), series([1.0] * 4 + [0.5] * 8)
    page = page_of(changed=changes_of([slower, faster], {}))
    assert '<a href="changes.html#h200-00000006">1 slower</a>' in page
    text = text_of(page)
    assert text.index("Commit 6 2026-01-07 1 slower") < text.index("Commit 4 2026-01-05 1 faster")
    assert "Recent changes" not in page_of()


def test_a_gate_of_a_commit_against_itself_is_no_verdict_on_a_commit(tmp_path: Path) -> None:
    itself = report(verdict("SAME"))
    keep(tmp_path, "20260101T000000Z.json", reports.to_json(report(verdict("SLOWER"))))
    keep(tmp_path, "20260102T000000Z.json", reports.to_json(replace(itself, base=itself.head)))
    text = text_of(page_of(gates.read(tmp_path, "h200")[0], newer={itself.head["commit"]: 0}))
    assert "2026-01-01 00:00 UTC: 1 slower" in text
    assert "2026-01-02" not in text
    assert "No gate of two commits is on file" in text_of(page_of())


def test_the_newest_commit_stands_with_the_share_of_cases_that_it_has() -> None:
    newer = {commit(7).hash: 2, commit(3).hash: 40}
    text = text_of(page_of(measured=[measured(7, 3), measured(3, 5, 7, name="b.Class")], newer=newer))
    assert "00000007 of 2026-01-08, with 2 of 5 cases; 2 newer commits" in text
    assert "up to 40 commits ago" in text
    assert "commits ago" not in text_of(page_of(measured=[measured(7, 7)], newer=newer)), "all are of the newest"


def test_a_gate_of_older_code_than_is_measured_is_no_headline(tmp_path: Path) -> None:
    found = report(verdict("SLOWER"))
    keep(tmp_path, "20260101T000000Z.json", reports.to_json(found))
    on_file, _ = gates.read(tmp_path, "h200")

    def of_age(age: int) -> str:
        return page_of(on_file, measured=[measured(7)], newer={commit(7).hash: 2, found.head["commit"]: age})

    summary, rest = text_of(of_age(3)).split("Newest gates")
    assert "1 slower" not in summary and "1 slower" in rest and "3 commits ago" in rest
    assert 'class="failed"' not in of_age(3), "nobody can mend what is of older code"
    for age in (2, 0):
        assert "1 slower" in text_of(of_age(age)).split("Newest gates")[0]
        assert of_age(age).count('class="failed"') == 2


def test_what_is_worse_comes_first_confirmed_or_not() -> None:
    """Overview, row, commit: how much, how sure, since when."""
    confirmed, alone = series([1.0] * 6 + [1.2] * 6), series([1.0] * 11 + [3.0], n=2)
    better, peer = series([1.0] * 6 + [0.5] * 6, n=3), series([1.0] * 6 + [2.0] * 6, n=4, impl="sdpa")
    page = page_of(changed=changes_of([confirmed, alone, better, peer], {}))
    text = text_of(page)
    assert "2 rows are worse than before" in text
    first, second = text.index("a.Class(1) 00000006"), text.index("a.Class(2) 00000011")
    assert first < second < text.index("Recent changes")
    assert "a.Class(4" not in text[: text.index("Recent changes")]
    assert "unconfirmed" not in text[first:second] and "unconfirmed" in text[second:]
    assert 'href="changes.html#h200-00000006"' in page
    assert "No row is worse" in text_of(page_of(changed=changes_of([better, peer], {}), measured=[measured(*[11] * 4)]))


def test_more_time_of_the_host_alone_is_told_beside_what_is_worse() -> None:
    launches = {("a.Class", (1,)): Outcome("ok", kernels=(("kernel_of_it", 700, 4e5),))}
    found = changes_of([series([1.0] * 11 + [4.0])], {})
    machine = MachineOverview(
        "h200", "", [measured(11)], (), (), machine_of(found, "h200", outcomes=lambda at: launches)
    )
    text = text_of(render("demo", [machine], "#"))
    assert "No row is worse than before, but for accepted ones. 1 row takes more host time" in text


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file"),
        ("", "is not of asv's form"),
        ("[]", "is not of asv's form"),
        ('{"machine": "h100", "version": 1}', "names the machine 'h100'"),
    ],
)
def test_a_machine_file_without_its_machine_is_the_reason_for_all_its_files(
    tmp_path: Path, content: str | None, why: str
) -> None:
    import perf.asv_plugins.site  # noqa: F401  (installs the checks)

    synthetic.write_results(tmp_path, synthetic.ALONE, "a" * 40, 0)
    machine = tmp_path / synthetic.LAPTOP / "machine.json"
    assert left_out.left_out(machine.parent, {"a" * 40}) == []
    machine.unlink() if content is None else machine.write_text(content)
    ((name, said),) = left_out.left_out(machine.parent, {"a" * 40})
    assert name == "machine.json" and why in said
    assert str(tmp_path) not in said


def test_without_a_published_case_nothing_is_said_to_be_no_worse() -> None:
    assert "No row is worse" not in text_of(page_of())
    assert "0 measured cases" in text_of(page_of())
    alone = dataclasses.replace(machine_of((), "h200"), commits=1)
    machine = MachineOverview("h200", "", [measured(11)], (), (), alone)
    text = text_of(render("demo", [machine], "#"))
    assert "A single commit is measured, so nothing is compared." in text and "No row is worse" not in text


def test_what_fails_is_told_before_what_is_worse() -> None:
    failing = [case("triton", status="wrong", reason="out differs by 0.1", params={"seq_len": n}) for n in (16, 32)]
    text = text_of(page_of(measured=[measured(*[11] * 4)], failing=failing))
    assert "2 cases fail at the newest commit that tried them. No other row is worse" in text
    assert "attention.FlashAttention, Triton at cccccccc wrong out differs by 0.1 2 seq_len 16, 32; d 64;" in text


def test_larger_memory_is_exact_at_one_commit_too() -> None:
    text = text_of(page_of(changed=changes_of([series([100] * 11 + [200], "a.Class.track_peak_memory")], {})))
    assert "exact" in text and "several commits" not in text
