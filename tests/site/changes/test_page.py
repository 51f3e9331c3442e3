"""The page about changes as text."""

import re
import shlex
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from perf.benchmarks.attention import FlashAttention
from perf.gate.acceptance import Acceptance, AcceptedRow
from perf.gate.evidence import Outcome
from perf.gate.rows import every_row
from perf.harness.suite import is_selected
from perf.site.changes.page import render
from perf.site.changes.rows import Change, judge
from perf.site.gates import Gate
from perf.site.pages import diff_url
from tests.gate.reports import report, verdict
from tests.site.changes.made_up import changes_of, commit, machine_of, series
from tests.site.pages import text_of
from tests.site.trust.made_up import HOSTILE

SLOWER = series([1.0] * 6 + [1.2] * 6)
FASTER = series([1.0] * 6 + [0.5] * 6, n=2)


def page_of(*some, **more) -> str:
    return render("demo", [machine_of(changes_of(some, {}), **more)], "https://code.example/commit/")


def open_of(*some, **more) -> list[Change]:
    return machine_of(changes_of(some, {}), **more).open


def headings_of(page: str) -> list[str]:
    return [text_of(heading) for heading in re.findall(r"<h3.*?</h3>", page)]


def test_a_slow_down_stands_under_its_commit_with_its_numbers() -> None:
    page = page_of(SLOWER, FASTER)
    text = text_of(page)
    assert len(open_of(SLOWER, FASTER)) == 1
    assert headings_of(page) == ["00000006 : 1 slower, 1 faster"]
    assert "Commit 6 2026-01-07" in text
    assert "a.Class(1) 1.00 s 1.20 s +20.00 % (+20.00 .. +20.00) slower" in text
    assert '<a href="https://code.example/commit/' + commit(6).hash in page
    assert 'href="history.html#a.Class.track_time?machine=h200&amp;p-n=1"' in page, "asv's graph of the case"
    assert page.index("(<wbr>1)</span></a>") < page.index("1 more") < page.index("(<wbr>2)</span></a>"), "folded away"


def test_a_change_across_unmeasured_commits_is_headed_by_their_range_and_its_diff() -> None:
    far, near = ([1.0, 1.0, 2.0, 2.0], (10, 20, 30, 40)), ([1.0, 1.0, 2.0, 2.0], (28, 29, 30, 40))
    some = [series(values, revisions=at, n=n) for n, (values, at) in enumerate((far, near, far))]
    page = page_of(*some)
    assert headings_of(page) == ["00000030 : 1 slower", "00000020..00000030 : 2 slower"]
    diff = f"https://code.example/compare/{commit(20).hash}...{commit(30).hash}"
    assert f'<a href="{diff}"><code>00000020..00000030</code></a>' in page
    assert re.findall(r"asv run (\S+)", page) == ["00000020..00000030"], "one commit needs no narrowing"
    assert "python -m perf gate 00000020 00000030 -b" in page and "python -m perf gate 00000029 00000030 -b" in page
    local = render("demo", [machine_of(changes_of(some, {}))], "#")
    assert "git diff 00000020..00000030" in local and "git diff" not in page


@pytest.mark.parametrize(
    ("commits", "diffs"),
    [
        ("https://github.com/o/r/commit/", "https://github.com/o/r/compare/"),
        ("https://gitlab.com/o/r/-/commit/", "https://gitlab.com/o/r/-/compare/"),
        ("https://code.example/?h=", ""),
        ("#", ""),
    ],
)
def test_the_address_of_a_diff_follows_from_that_of_a_commit(commits, diffs) -> None:
    assert diff_url(commits) == diffs


def test_an_accepted_change_shows_the_reason_and_is_not_open() -> None:
    row = AcceptedRow("a.Class(1)", "time", "SLOWER", 0.25)
    meant = Acceptance(commit(6).hash, "exact <sums>", (row,))
    assert "accepted: exact <sums>" in text_of(page_of(SLOWER, accepted=[meant]))
    assert not open_of(SLOWER, accepted=[meant])
    for other in (
        replace(meant, commit=commit(5).hash),
        replace(meant, commit="f" * 40),
        replace(meant, rows=(replace(row, at_most=0.1),)),
        replace(meant, rows=(replace(row, key="a.Class(2)"),)),
    ):
        assert len(open_of(SLOWER, accepted=[other])) == 1


def test_what_is_reverted_is_not_open_and_what_one_commit_shows_is_unconfirmed() -> None:
    gone, alone = series([1.0] * 4 + [2.0] * 4 + [1.0] * 4), series([1.0] * 11 + [2.0])
    assert "slower until 00000008" in text_of(page_of(gone)) and not open_of(gone)
    machine = machine_of(changes_of([alone], {}))
    assert [machine.is_unconfirmed(one) for one in machine.open] == [True]


def test_the_command_that_confirms_selects_its_rows_and_no_others() -> None:
    cases = [one for one in every_row() if one.case.benchmark == "attention.FlashAttention"]
    values, method = [1.0] * 6 + [1.2] * 6, "attention.FlashAttention.track_time"
    some = [series(values, method, **one.case.params) for one in cases[:3]]
    for count, expected in ((1, 1), (3, 3), (len(cases), len(cases))):
        many = some[:count] if count <= 3 else [replace(some[0], params=one.case.params) for one in cases]
        changes = changes_of(many, {})
        command = machine_of(changes).confirming(changes)
        *_, pattern = shlex.split(command)
        assert command.count("'") == 2 and '"' not in command, "no quotes within quotes"
        assert len([one for one in cases if is_selected(one.case, FlashAttention(), [pattern])]) == expected


def test_a_peer_that_changed_is_no_change_of_the_commit() -> None:
    peer = series([1.0] * 6 + [1.2] * 6, "attention.FlashAttention.track_time", impl="sdpa")
    assert [one.series for one in open_of(SLOWER, peer)] == [SLOWER]
    assert "runs no project code" in text_of(page_of(SLOWER, peer))


def kernels_of(*, slower_from: int, us: float):
    """Of `SLOWER` the one kernel of a call: 1 s, and so many microseconds more from a commit on."""
    return lambda at: {("a.Class", (1,)): Outcome("ok", kernels=(("kernel_of_it", 1, 1e6 + (at >= slower_from) * us),))}


def test_the_kernel_that_moved_is_named() -> None:
    text = text_of(page_of(SLOWER, outcomes=kernels_of(slower_from=6, us=2e5)))
    assert "kernel_of_it +200000.0 µs (100% of the change)" in text
    assert open_of(SLOWER, outcomes=kernels_of(slower_from=6, us=2e5))
    unexplained = page_of(SLOWER, outcomes=kernels_of(slower_from=6, us=1e3))
    assert "do not explain it: 1000000.0\u00a0→ 1001000.0 µs" in unexplained, "no line ends within an arrow"


def test_the_machine_explains_no_more_than_twice_the_change_of_a_control() -> None:
    still = kernels_of(slower_from=6, us=1e3)

    def control(after: float):
        return series([1.0] * 6 + [after] * 6, "controls.Controls.track_time")

    assert "machine, not code" in text_of(page_of(SLOWER, control(1.2), outcomes=still))
    assert not open_of(SLOWER, control(1.1), outcomes=still), "1.1 * 1.1 > 1.2"
    assert open_of(SLOWER, control(1.09), outcomes=still)
    assert open_of(SLOWER, control(1 / 1.2), outcomes=still), "it moved the other way"
    assert open_of(SLOWER, outcomes=still), "no control moved"
    assert open_of(SLOWER, control(1.2), outcomes=kernels_of(slower_from=6, us=2e5)), "its kernel did"
    assert "times by +9.0 %," in text_of(page_of(SLOWER, control(1.09))), "how far controls moved"


def test_time_of_the_host_around_unchanged_kernels_is_named_until_a_second_commit_shows_it() -> None:
    launches = {("a.Class", (1,)): Outcome("ok", kernels=(("kernel_of_it", 700, 4e5),))}
    busy = {("a.Class", (1,)): Outcome("ok", kernels=(("kernel_of_it", 700, 8e5),))}
    once, twice = series([1.0] * 11 + [4.0]), series([1.0] * 10 + [4.0] * 2)
    assert "host time, not kernels" in text_of(page_of(once, outcomes=lambda at: launches))
    assert "around unchanged kernels, at one commit only: 1." in text_of(page_of(once, outcomes=lambda at: launches))
    assert not open_of(once, outcomes=lambda at: launches)
    assert open_of(twice, outcomes=lambda at: launches), "confirmed"
    assert open_of(once, outcomes=lambda at: busy), "the kernels fill its time"
    uneven = series([0.7] * 6 + [0.9, 0.7, 0.7, 0.7, 0.9, 4.0])
    assert not open_of(uneven, outcomes=lambda at: launches), "they fill 0.4 of the 0.9 s of their own commit"


def test_a_step_between_sessions_is_a_mark_and_no_change() -> None:
    between = series([1.0, 1.001] * 3 + [1.2, 1.201] * 3, sessions=(0,) * 6 + (1,) * 6)
    page = page_of(between)
    assert headings_of(page) == ["00000006 : 1 between sessions"]
    assert "No change in 3 series over 12 commits." in text_of(page)
    assert "asv run" not in page[: page.index('id="next"')], "nothing to narrow"
    assert not open_of(between)


def test_a_drift_stands_with_its_rate_and_under_no_commit() -> None:
    changes, drifting = judge([series([1.01**at * (1 + at % 2 / 500) for at in range(40)])], {})
    text = text_of(render("demo", [machine_of(changes, drifting=drifting)], "#"))
    assert "No change in 3 series" in text
    assert "1 series drifts" in text and "a.Class(1) +1.00% +47." in text


def test_controls_that_changed_too_are_a_warning() -> None:
    control = series([1.0] * 6 + [1.2] * 6, "controls.Controls.track_time")
    assert "without project code changed here too" in text_of(page_of(SLOWER, control))
    assert "without project code changed here too" not in text_of(page_of(SLOWER))
    assert [one.series for one in open_of(SLOWER, control)] == [SLOWER]


def test_the_gate_that_crossed_it_has_its_word_beside() -> None:
    said = report(verdict("SLOWER", key="a.Class(1)"), verdict("SAME", key="a.Class(2)"))
    ends = {"base": {"commit": commit(5).hash, "subject": ""}, "head": {"commit": commit(6).hash, "subject": ""}}
    gate = Gate(datetime(2026, 1, 1, tzinfo=UTC), replace(said, **ends))
    text = text_of(page_of(SLOWER, FASTER, gates=[gate]))
    assert "gate: SLOWER" in text and "gate: SAME" in text
    later = replace(gate, report=replace(said, **ends | {"base": ends["head"]}))
    assert "gate:" not in text_of(page_of(SLOWER, gates=[later]))


def test_names_are_text() -> None:
    assert "<script>alert" not in page_of(series([1.0] * 6 + [1.2] * 6, kind=HOSTILE))
