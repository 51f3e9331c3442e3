"""What a report says on top, in the terminal, and with which exit status."""

import pytest

from perf.gate.terminal import text
from perf.gate.wording import change, headline, in_order, to_do, visible
from tests.gate.reports import KEY, memory, report, verdict

SAME = verdict("SAME", change=0.0001, low=-0.001, high=0.001)


@pytest.mark.parametrize(
    ("made", "status", "words"),
    [
        (report(SAME), 0, "Nothing is worse, 1 same"),
        (report(SAME, verdict("FASTER"), verdict("NEW")), 0, "Nothing is worse, 1 faster, 1 new, 1 same"),
        (report(SAME, verdict("SLOWER")), 1, "1 slower, 1 same"),
        (report(verdict("SLOWER"), memory("LARGER", 100, 200), verdict("BROKEN")), 1, "1 broken, 1 slower, 1 larger"),
        (report(verdict("AMBIGUOUS"), SAME), 0, "Nothing is worse, 1 ambiguous, 1 same"),
        (report(verdict("AMBIGUOUS")), 2, "Nothing could be judged: 1 rows are ambiguous"),
        (report(), 2, "Nothing could be judged"),
        (report(verdict("SLOWER"), contaminated="copy +3 %"), 2, "CONTAMINATED, no verdict on times: copy +3 %"),
        (report(verdict("BROKEN"), contaminated="copy +3 %"), 1, "1 broken; CONTAMINATED, no verdict on times"),
        (report(memory("SMALLER", 2, 1), contaminated="copy +3 %"), 2, "CONTAMINATED, no verdict on times"),
        (report(tests_passed=False, tests="2 failed"), 1, "HEAD's tests fail, so nothing was timed: 2 failed"),
    ],
)
def test_the_sentence_and_the_exit_status_agree(made, status, words):
    assert made.exit_status == status
    assert headline(made).startswith(words)
    assert to_do(made)
    assert text(made).splitlines()[0] == headline(made)


def test_results_that_differ_are_a_warning_and_change_no_verdict():
    made = report(SAME, differences=((KEY, "dq by 1.9e-02, rounding allows 7.8e-03"),))
    assert made.exit_status == 0
    assert headline(made) == headline(report(SAME)) + "; the results of 1 case differ by more than rounding"
    assert to_do(made) != to_do(report(SAME))
    lines = text(made).splitlines()
    assert any("bfloat16" in line and line.endswith("dq by 1.9e-02, rounding allows 7.8e-03") for line in lines)


def test_where_the_time_went_is_said_where_it_is_known():
    assert "Took: 8.5 min: 50 % sampling, 25 % warm-up" in text(report(SAME)).splitlines()
    assert "Took: 8.5 min" in text(report(SAME, spent_s={})).splitlines()


def test_what_needs_a_person_comes_first_and_the_greatest_change_first():
    rows = [SAME, verdict("SLOWER", change=0.02), verdict("FASTER", change=-0.5), verdict("SLOWER", change=0.2)]
    assert [(one.word, one.change) for one in in_order(rows)] == [
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
    shown = text(
        report(SAME, verdict("SLOWER", reason="_forward +58 us: registers 168 -> 255"), memory("LARGER", 1, 2))
    )
    assert shown.count(KEY.replace("'", "")) == 2
    assert "registers 168 -> 255" in shown
    assert "1 rows are the SAME" in shown
    assert all(len(line) <= 120 for line in shown.splitlines())
    assert "HEAD's tests: 1766 passed" in shown
    assert "python -m perf gate HEAD~1 HEAD" in shown


def test_what_no_sample_could_have_shown_is_no_number_of_many_digits():
    assert [visible(verdict("AMBIGUOUS", smallest_visible=least)) for least in (None, 0.0123, 1.0, 1e40)] == [
        "-",
        "1.2 %",
        "100.0 %",
        "over 100 %",
    ]
