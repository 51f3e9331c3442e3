"""Verdicts on times: words, looks, margins, differences, and the order of the open rows."""

from dataclasses import replace

import numpy as np
import pytest

from perf.gate import decisions
from perf.gate.evidence import Outcome, PairedVisit
from perf.gate.inference import LOOKS
from perf.gate.judge import judge, open_rows
from tests.gate.made_evidence import evidence, rows, word_of


def test_words_of_times():
    judgement = judge([*rows(), evidence("slow", 0.03), evidence("fast", -0.03), evidence("noisy", sd=0.03)])
    slow = word_of(judgement, "slow")
    assert (slow.word, slow.base) == ("SLOWER", pytest.approx(1e-3, rel=0.01))
    assert slow.low < np.expm1(0.03) < slow.high
    assert slow.low > 0.01
    assert slow.change == pytest.approx(np.expm1(0.03), abs=0.001)
    assert word_of(judgement, "fast").word == "FASTER"
    noisy = word_of(judgement, "noisy")
    assert noisy.word == "AMBIGUOUS"
    assert noisy.min_detectable > 0.02
    assert {word_of(judgement, f"row {i}").word for i in range(20)} == {"SAME"}
    assert judgement.contaminated == ""
    assert judgement.exit_status == 1


def test_a_change_that_is_negligible_is_the_same_however_certain():
    assert word_of(judge([*rows(), evidence("tiny", 0.005)]), "tiny").word == "SAME"
    assert word_of(judge([*rows(), evidence("tiny", 0.03, negligible=(0.05, 0.0))]), "tiny").word == "SAME"


def test_a_word_given_at_a_look_stands(monkeypatch):
    row = evidence("later", processes=12)
    row.visits = [
        visit
        if visit.process < LOOKS[0]
        else PairedVisit(visit.process, visit.visit, visit.base_s, tuple(1.1 * s for s in visit.base_s))
        for visit in row.visits
    ]
    assert word_of(judge([*rows(), row]), "later").word == "SAME"
    monkeypatch.setattr(decisions, "LOOKS", (12, 12))
    assert word_of(judge([*rows(), row]), "later").word == "SLOWER"


def test_a_row_that_was_drawn_is_measured_on_and_judged_by_all_its_processes():
    row = evidence("later", processes=3, is_drawn=True)
    same = rows()
    assert word_of(judge([*same, row]), "later").word == "SAME"
    assert [opened is row for opened in open_rows([*same, row])] == [True]
    later = evidence("later", 0.1, processes=12).visits[3 * 6 :]
    row.visits += [PairedVisit(v.process, v.visit, v.base_s, v.head_s) for v in later]
    row.visits[: 3 * 6] = evidence("later", 0.05, processes=3).visits
    got = word_of(judge([*same, row]), "later")
    assert (got.word, got.was_same) == ("SLOWER", False), "it never was the SAME"
    still = evidence("still", processes=12, is_drawn=True)
    got = word_of(judge([*same, still]), "still")
    assert (got.word, got.was_same) == ("SAME", True)
    assert not open_rows([*same, still])


def test_a_drawn_row_may_lose_its_word():
    row = evidence("later", processes=12, is_drawn=True)
    row.visits = [
        visit
        if visit.process < LOOKS[0]
        else PairedVisit(visit.process, visit.visit, visit.base_s, tuple(1.1 * s for s in visit.head_s))
        for visit in row.visits
    ]
    got = word_of(judge([*rows(), row]), "later")
    assert got.word != "SAME"
    assert got.was_same


def test_a_margin_of_its_own_makes_a_row_see_more():
    slow = {"change": 0.007, "sd": 0.001}
    without, with_one = (
        word_of(judge([*rows(), evidence("slow", **slow, margin=margin)]), "slow") for margin in (None, 0.003)
    )
    assert (without.word, with_one.word) == ("SAME", "SLOWER")
    assert (without.negligible, with_one.negligible) == pytest.approx((0.01, 0.003))
    assert with_one.min_detectable < without.min_detectable


def test_a_margin_is_for_long_kernels_alone_and_never_more_than_the_class_allows():
    slow = {"change": 0.007, "sd": 0.001}
    assert word_of(judge([*rows(), evidence("a", **slow, margin=0.003, clock="wall")]), "a").word == "SAME"
    assert word_of(judge([*rows(), evidence("b", **slow, margin=0.05)]), "b").negligible == pytest.approx(0.01)
    short = evidence("c", **slow, margin=0.003)
    short.visits = [
        replace(visit, base_s=tuple(s / 100 for s in visit.base_s), head_s=tuple(s / 100 for s in visit.head_s))
        for visit in short.visits
    ]
    assert word_of(judge([*rows(), short]), "c").word == "SAME"


def test_two_calls_in_five_that_are_slower_are_a_slower_row():
    row = evidence("now and then", processes=12)
    row.visits = [replace(visit, base_s=(1e-3,) * 10, head_s=(1e-3,) * 6 + (1.5e-3,) * 4) for visit in row.visits]
    got = word_of(judge([*rows(), row]), "now and then")
    assert (got.word, got.change) == ("SLOWER", pytest.approx(1.5 ** (3 / 8) - 1))


def test_rows_that_the_budget_ended_are_counted():
    assert judge([*rows(), evidence("slow", 0.05, processes=5)]).cut_short == 1
    assert judge([*rows(), evidence("slow", 0.05)]).cut_short == 0
    assert judge([*rows(), evidence("noisy", sd=0.03)]).cut_short == 1
    assert judge([*rows(), evidence("drawn", processes=3, is_drawn=True)]).cut_short == 0


def test_slower_and_faster_are_said_by_as_many_processes_as_confirm_them():
    for processes in (3, 5, 8, 11):
        got = word_of(judge([*rows(), evidence("slow", 0.05, processes=processes)]), "slow")
        assert got.word == "AMBIGUOUS"
        assert got.reason


def test_a_process_that_tosses_a_coin_is_not_confirmed():
    """Three processes that agree are one of four such rows: after twelve none of them has a word."""
    rng = np.random.default_rng(0)
    tossed = []
    for number in range(20):
        row = evidence(f"tossed {number}", processes=12)
        by = {process: np.exp(0.03 * rng.choice([-1, 1])) for process in range(12)}
        row.visits = [
            PairedVisit(v.process, v.visit, v.base_s, tuple(s * by[v.process] for s in v.head_s)) for v in row.visits
        ]
        tossed.append(row)
    words = {
        verdict.word
        for verdict in judge([*rows(), *tossed]).verdicts
        if "tossed" in verdict.key and verdict.quantity == "time"
    }
    assert words == {"AMBIGUOUS"}


def a_difference(name, change, *, scatter=0.7):
    """What a step of 10 ms takes more than without communication: 1 ms that scatters, and `change` of the step."""
    whole_s, rng = 10e-3, np.random.default_rng([7, *map(ord, name)])
    row = evidence(name, processes=12, negligible=(0.02, 5e-5))
    row.visits = [
        PairedVisit(
            visit.process,
            visit.visit,
            tuple(1e-3 * (1 + scatter * rng.normal(size=8))),
            tuple(1e-3 * (1 + scatter * rng.normal(size=8)) + change * whole_s),
            whole_s=whole_s,
        )
        for visit in row.visits
    ]
    return row


@pytest.mark.parametrize("scatter", [0.5, 0.7, 2.0])
def test_a_difference_that_scatters_through_zero_is_no_change(scatter):
    many = [a_difference(f"exposed {number}", 0.0, scatter=scatter) for number in range(30)]
    judgement = judge([*rows(), *many])
    times = [verdict for verdict in judgement.verdicts if verdict.quantity == "time" and "exposed" in verdict.key]
    assert {verdict.word for verdict in times} <= {"SAME", "AMBIGUOUS"}
    assert np.mean([verdict.change for verdict in times]) == pytest.approx(0.0, abs=0.01)


def test_a_difference_is_judged_in_shares_of_what_it_is_a_part_of():
    got = word_of(judge([*rows(), a_difference("exposed", 0.05)]), "exposed")
    assert got.word == "SLOWER"
    assert got.change == pytest.approx(0.05, abs=0.01)
    assert "10.0 ms" in got.reason
    assert word_of(judge([*rows(), a_difference("exposed", 0.01, scatter=0.1)]), "exposed").word == "SAME"


def test_a_user_waits_in_seconds_whatever_the_clock_did():
    faster_clock = evidence("row", processes=12, mhz=(1980.0, 1980.0 * 1.013))
    assert word_of(judge([*rows(), faster_clock]), "row").word == "SAME"
    row = evidence("row", 0.02, mhz=(1980.0, 1980.0 / np.exp(0.021)))
    got = word_of(judge([*rows(), row]), "row")
    assert got.word == "SLOWER"
    assert "SM clock" in got.reason
    assert "+2.1 %" in got.reason
    got = word_of(judge([*rows(), evidence("row", 0.02, mhz=(1980.0, 1975.0))]), "row")
    assert (got.word, got.reason) == ("SLOWER", "")


def test_the_worst_of_the_open_rows_come_first():
    """Where the budget is short, these get their processes."""
    less, more = (evidence(name, change, processes=3) for name, change in (("less", 0.05), ("more", 0.3)))
    faster = evidence("faster", -0.5, processes=3)
    noisy = evidence("noisy", sd=0.03)
    control = evidence("control", is_control=True)
    assert open_rows([control, *rows(), noisy, faster, less, more]) == [more, less, faster, noisy, control]


def test_open_rows_are_those_without_a_word_and_then_the_controls():
    control = evidence("control", is_control=True)
    noisy, slow = evidence("noisy", sd=0.03), evidence("slow", 0.03)
    suspect = evidence("suspect", 0.03, processes=8)
    same = rows()
    assert open_rows([*same, slow, noisy, control]) == [noisy, control]
    assert open_rows([*same, slow, control]) == []
    assert open_rows([*same, suspect, evidence("noisy", sd=0.03, processes=8), control]) == [suspect, control]
    assert open_rows([*same, evidence("broken", head=Outcome("error")), control]) == []


@pytest.mark.parametrize("whole_s", [None, 10.0])
def test_the_times_of_a_row_do_not_contradict_its_change(whole_s):
    row = evidence("row", processes=3)
    row.visits = [
        PairedVisit(process, visit, (1.0, 2.0, 2.1), (1.5, 1.9, 2.0), whole_s=whole_s)
        for process in range(3)
        for visit in range(6)
    ]
    got = word_of(judge([row]), "row")
    assert got.change is not None and got.change > 0, "the pairs' mean is slower, the head's median is faster"
    assert got.base == 2.0
    assert got.head - got.base == pytest.approx(got.change * (whole_s or got.base))
