"""Verdicts on failures, on memory and on visits that cannot be used."""

from dataclasses import replace

import pytest

from perf.gate.evidence import Outcome, PairedVisit
from perf.gate.judge import judge, open_rows
from perf.workloads import NOT_INSTALLED
from tests.gate.made_evidence import OK, evidence, rows, word_of


@pytest.mark.parametrize("bad", [0.0, -1e-3, float("inf"), float("nan")])
def test_a_bad_visit_costs_itself(bad):
    row = evidence("row", processes=3)
    first = row.visits[0]
    row.visits[0] = PairedVisit(0, 0, (bad, *first.base_s[1:]), first.head_s)
    row.visits[7] = PairedVisit(1, 1, first.base_s, first.head_s[:-1])
    got = word_of(judge([*rows(), row]), "row")
    assert got.word == "SAME"
    assert "2 of 18 visits" in got.reason


@pytest.mark.parametrize("bad", [0.0, float("nan")])
def test_a_row_of_bad_visits_alone_is_ambiguous_and_the_others_are_judged(bad):
    row = evidence("row", processes=3)
    row.visits = [PairedVisit(v.process, v.visit, (bad,) * 8, v.head_s) for v in row.visits]
    judgement = judge([*rows(), row])
    got = word_of(judgement, "row")
    assert got.word == "AMBIGUOUS"
    assert "18 visits" in got.reason
    assert word_of(judgement, "row 0").word == "SAME"


@pytest.mark.parametrize(
    ("base", "head", "word", "reason"),
    [
        (OK, Outcome("wrong", "off by 0.3"), "BROKEN", "off by 0.3"),
        (OK, Outcome("hung"), "BROKEN", "hung"),
        (Outcome("crashed", "died"), OK, "FIXED", "crashed: died"),
        (Outcome("unavailable", "no such impl"), OK, "NEW", "no such impl"),
        (OK, Outcome("unavailable", "no such impl"), "GONE", "no such impl"),
        (OK, Outcome("unavailable", f"it needs a_package, {NOT_INSTALLED}"), "BROKEN", "a_package"),
        (Outcome("throttled", "hot"), Outcome("error", "boom"), "BROKEN", "boom"),
        (Outcome("throttled", "too hot"), OK, "AMBIGUOUS", "base: too hot"),
        (OK, None, "AMBIGUOUS", "head"),
        (None, None, "AMBIGUOUS", "base and head"),
    ],
)
def test_words_of_outcomes(base, head, word, reason):
    (got,) = judge([evidence("row", base=base, head=head, processes=0)]).verdicts
    assert got.word == word
    assert reason in got.reason


def test_where_every_row_is_gone_nothing_was_judged():
    gone = evidence("gone", head=Outcome("unavailable", "no such impl"), processes=0)
    assert judge([gone]).exit_status == 2
    assert judge([gone, *rows()]).exit_status == 0


@pytest.mark.parametrize("lacking", ["base", "head"])
def test_a_row_of_one_commit_alone_makes_times_of_which_none_was_judged_no_green(lacking):
    alone = evidence("alone", **{lacking: Outcome("unavailable", "no such impl")}, processes=0)
    noisy = [evidence(f"noisy {number}", sd=0.2) for number in range(20)]
    assert judge([alone, *noisy]).exit_status == 2
    assert judge([alone, *noisy, *rows()]).exit_status == 0


def test_an_untimed_row_breaks_in_its_memory():
    (got,) = judge([evidence("row", timed=False, processes=0, head=Outcome("out_of_memory"))]).verdicts
    assert (got.quantity, got.word) == ("peak_memory", "BROKEN")


@pytest.mark.parametrize("status", ["unavailable", "out_of_memory"])
def test_no_row_where_neither_arm_works(status):
    judgement = judge(
        [evidence("row", base=Outcome("error", peak_bytes=1), head=Outcome(status, peak_bytes=2), processes=0)]
    )
    assert judgement.verdicts == ()
    assert judgement.exit_status == 2


@pytest.mark.parametrize(
    ("base", "head", "word", "change"),
    [
        (2**20, 2**20, "SAME", 0.0),
        (2**20, 2**20 + 512, "LARGER", 2**-11),
        (2**20, 2**19, "SMALLER", -0.5),
        (0, 1, "LARGER", None),
    ],
)
def test_bytes_are_exact(base, head, word, change):
    arms = {"base": Outcome("ok", peak_bytes=base), "head": Outcome("ok", peak_bytes=head)}
    row = evidence("row", timed=False, processes=0, **arms)
    row.more_peaks = [(base, head)]
    (got,) = judge([row]).verdicts
    assert (got.quantity, got.word, got.change, got.low, got.high) == ("peak_memory", word, change, change, change)


SAME_PEAKS, SMALLER_HEAD, LARGER_HEAD = (2**20, 2**20), (2**20, 2**19), (2**20, 2**21)


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ([], "AMBIGUOUS"),
        ([SAME_PEAKS], "AMBIGUOUS"),
        ([SMALLER_HEAD], "AMBIGUOUS"),
        ([SAME_PEAKS, LARGER_HEAD], "AMBIGUOUS"),
        ([SAME_PEAKS, SAME_PEAKS], "SAME"),
    ],
)
def test_a_peak_that_differs_in_one_process_alone_is_no_growth(more, word):
    row = evidence("row", timed=False, processes=0, head=Outcome("ok", peak_bytes=LARGER_HEAD[1]))
    row.more_peaks = more
    (got,) = judge([row]).verdicts
    assert got.word == word


def test_a_timed_row_has_a_verdict_on_its_memory_too():
    head = Outcome("ok", peak_bytes=2**21, largest_allocations=((2**20, "transformer.py:88"),))
    row = evidence("row", head=head)
    row.more_peaks = [(2**20, 2**21)] * 2
    judgement = judge([*rows(), row])
    assert word_of(judgement, "row").word == "SAME"
    got = word_of(judgement, "row", "peak_memory")
    assert got.word == "LARGER"
    assert "transformer.py:88" in got.reason


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"processes": 0}, "no times"),
        ({"processes": 1}, "1 process"),
        ({"trouble": "head in a later visit: boom"}, "head in a later visit: boom"),
    ],
)
def test_a_row_without_enough_visits_is_ambiguous_and_says_why(options, reason):
    got = word_of(judge([*rows(), evidence("row", 0.1, **options)]), "row")
    assert (got.word, got.low, got.min_detectable) == ("AMBIGUOUS", None, None)
    assert reason in got.reason


def test_visits_that_were_throttled_throughout_count_for_nothing():
    row = evidence("row", processes=0)
    row.visits = [PairedVisit(process, 0, (), (), throttled=40) for process in range(3)]
    got = word_of(judge([*rows(), row]), "row")
    assert got.word == "AMBIGUOUS"
    assert "120 pairs" in got.reason


def test_times_of_which_none_was_judged_are_no_green():
    many = [evidence(f"noisy {number}", sd=0.2) for number in range(20)]
    judgement = judge(many)
    assert {verdict.word for verdict in judgement.verdicts if verdict.quantity == "peak_memory"} == {"SAME"}
    assert judgement.exit_status == 2


def test_nothing_at_all_is_no_verdict():
    assert judge([]).exit_status == 2
    assert open_rows([]) == []


def test_no_number_is_written_that_nobody_can_read():
    """Two processes a factor of e apart leave a row an interval of fifty powers of ten."""
    wild = evidence("wild", processes=2, effect=2.0)
    got = word_of(judge([*rows(), wild]), "wild")
    assert got.word == "AMBIGUOUS"
    assert (got.low, got.high) == (None, None)
    assert got.min_detectable is None or got.min_detectable < 1000
    assert got.reason
    endless = evidence("endless", processes=3)
    endless.visits = [replace(visit, head_s=tuple(1e9 * s for s in visit.head_s)) for visit in endless.visits]
    assert word_of(judge([*rows(), endless]), "endless").change is None
