"""Headline, exit status, table and order of a report."""

import pytest

from perf.gate.terminal import text
from perf.gate.verdicts import OUT_OF_TIME, UNMEASURED, Unreached
from perf.gate.wording import cells, change, headline, in_order, to_do
from tests.gate.reports import KEY, memory, report, verdict

SAME = verdict("SAME", change=0.0001, low=-0.001, high=0.001)
GONE, NEW = verdict("GONE", base=None, head=None), verdict("NEW", base=None, head=None)
SUSPECT = verdict("AMBIGUOUS", negligible=0.01)  # 2.9 % at least
NO_GPU = "needs a CUDA GPU"


@pytest.mark.parametrize(
    ("made", "status", "words"),
    [
        (report(SAME), 0, ("Nothing is worse", "1 same")),
        (report(SAME, verdict("FASTER"), verdict("NEW")), 0, ("1 faster", "1 new", "1 same")),
        (report(SAME, verdict("SLOWER")), 1, ("1 slower", "1 same")),
        (report(verdict("SLOWER"), memory("LARGER", 1, 2), verdict("BROKEN")), 1, ("1 broken, 1 slower, 1 larger",)),
        (report(verdict("SLOWER", accepted="why"), SAME), 0, ("Nothing is worse", "1 worse and accepted")),
        (report(verdict("AMBIGUOUS"), SAME), 0, ("1 ambiguous", "1 same")),
        (report(verdict("AMBIGUOUS")), 2, ("Nothing could be judged: 1 row is ambiguous",)),
        (report(verdict("AMBIGUOUS"), GONE), 2, ("Nothing could be judged: 1 row is ambiguous",)),
        (report(memory("SAME", 1, 1), verdict("AMBIGUOUS"), NEW), 2, ("No time could be judged: 1 row is ambiguous",)),
        (report(GONE, NEW), 0, ("Nothing is worse, 1 new, 1 gone",)),
        (report(SUSPECT, SAME), 0, ("Nothing is worse",)),
        (report(SUSPECT, SAME, cut_short=1), 2, ("1 row looks slower, and the budget ended",)),
        (report(verdict("AMBIGUOUS", negligible=0.03), SAME, cut_short=1), 0, ("1 cut short",)),
        (report(SUSPECT, verdict("SLOWER"), cut_short=1), 1, ("1 slower",)),
        (report(verdict("AMBIGUOUS"), memory("SAME", 1, 1)), 2, ("No time could be judged",)),
        (report(SAME, verdict("AMBIGUOUS", quantity="peak_memory")), 2, ("No peak memory could be judged",)),
        (report(), 2, ("Nothing could be judged",)),
        (report(unreached=Unreached(skipped=(KEY,))), 0, ("Nothing can be worse",)),
        (report(unreached=Unreached(skipped=(KEY,)), without=((NO_GPU, 1),)), 2, ("Nothing could be judged",)),
        (report(verdict("SLOWER"), contaminated="copy +3 %"), 2, ("CONTAMINATED", "copy +3 %")),
        (report(verdict("BROKEN"), contaminated="copy +3 %"), 1, ("1 broken", "CONTAMINATED")),
        (report(memory("SMALLER", 2, 1), contaminated="copy +3 %"), 2, ("CONTAMINATED",)),
        (report(tests_passed=False, tests="2 failed"), 1, ("2 failed",)),
    ],
)
def test_the_headline_and_the_exit_status_agree(made, status, words):
    assert made.exit_status == status
    assert all(word in headline(made) for word in words), headline(made)
    assert text(made).splitlines()[:2] == [headline(made), f"To do: {to_do(made)}"]


@pytest.mark.parametrize(
    ("made", "time_helps"),
    [
        (report(without=((NO_GPU, 51),)), False),
        (report(without=((NO_GPU, 51), (OUT_OF_TIME, 2))), True),
        (report(without=((OUT_OF_TIME, 2),)), True),
        (report(verdict("AMBIGUOUS"), without=((NO_GPU, 51),), cut_short=1), True),
        (report(SUSPECT, SAME, cut_short=1), True),
        (report(verdict("AMBIGUOUS")), False),
        (report(verdict("AMBIGUOUS", base=None, reason=NO_GPU)), False),
        (report(SAME, verdict("AMBIGUOUS", quantity="peak_memory", reason="differs by process")), False),
        (report(verdict("AMBIGUOUS", base=None, reason=f"{UNMEASURED}: base and head")), True),
        (report(verdict("GONE", base=None, head=None)), False),
    ],
)
def test_more_time_is_advised_only_where_time_is_what_lacks(made, time_helps):
    assert made.exit_status == 2
    assert ("--budget" in to_do(made)) is time_helps
    assert time_helps or NO_GPU in to_do(made) or not made.without


def test_a_wrong_result_is_not_advised_to_be_accepted():
    advice = [
        to_do(report(verdict("BROKEN", reason=reason))) for reason in ("wrong: dq by 0.1", "out_of_memory: 2 GiB")
    ]
    assert ["accept --help" in each for each in advice] == [False, True]


def test_results_that_differ_are_a_warning_and_change_no_verdict():
    made = report(SAME, differences=((KEY, "dq by 1.9e-02, rounding allows 7.8e-03"),))
    assert made.exit_status == 0
    assert headline(made) != headline(report(SAME))
    assert to_do(made) != to_do(report(SAME))
    assert "dq by 1.9e-02, rounding allows 7.8e-03" in text(made)


def test_the_most_urgent_and_the_greatest_change_come_first():
    rows = [SAME, verdict("SLOWER", change=0.02), verdict("FASTER", change=-0.5), verdict("SLOWER", change=0.2)]
    assert [(row.word, row.change) for row in in_order(rows)] == [
        ("SLOWER", 0.2),
        ("SLOWER", 0.02),
        ("FASTER", -0.5),
        ("SAME", 0.0001),
    ]


def test_a_change_of_time_has_its_interval_and_one_of_bytes_is_exact():
    assert change(verdict("SLOWER")) == "+3.20 % (+2.90 .. +3.50)"
    assert change(memory("LARGER", 2**30, 2**30 + 2**20)) == "+1.00 MiB"
    assert change(memory("SMALLER", 2**30, 2**30 - 2**20)) == "-1.00 MiB"
    assert change(memory("SAME", 2**30, 2**30)) == "0"
    assert change(verdict("NEW", base=None, change=None, low=None, high=None)) == "-"


def test_the_terminal_names_each_row_but_the_same_and_fits():
    shown = text(report(SAME, verdict("SLOWER", reason="registers 168 -> 255"), memory("LARGER", 1, 2)))
    assert shown.count(KEY.replace("'", "")) == 2
    for fact in ("registers 168 -> 255", "1766 passed", "python -m perf gate HEAD~1 HEAD", "8.5 min", "50 % sampling"):
        assert fact in shown
    assert all(len(line) <= 120 for line in shown.splitlines())


@pytest.mark.parametrize(("share", "shown"), [(None, "-"), (0.0123, "1.2 %"), (1e40, "over 100 %")])
def test_the_minimum_detectable_slow_down_is_a_readable_number(share, shown):
    assert cells(verdict("AMBIGUOUS", min_detectable=share))[-1] == shown


def test_a_report_without_ambiguous_rows_counts_none():
    assert headline(report(verdict("GONE", base=None, head=None))) == "Nothing could be judged"
