from dataclasses import replace

import numpy as np
import pytest

from perf.gate.evidence import Evidence, Outcome, PairedVisit
from perf.gate.judge import judge, open_rows
from perf.gate.statistics import LOOKS
from perf.harness.case import Case

OK = Outcome("ok", peak_bytes=2**20)
KERNEL = ("attention_forward", 1, 1000.0)
COMPILED = {"name": "attention_forward", "registers": 168, "spills": 0, "shared_bytes": 49152, "sass": "ab"}


def evidence(name, change=0.0, *, processes=None, visits=6, sd=0.001, effect=0.0, seed=0, **options):
    """A row of 1 ms: `change` a log ratio; `sd` of a visit, `effect` of a process.

    Processes are by default those of the first look; of a row that changed, those of the last.
    """
    processes = LOOKS[-1 if change else 0] if processes is None else processes
    rng = np.random.default_rng([seed, *map(ord, name)])
    case = Case(
        benchmark="attention.FlashAttention",
        workload="attention",
        params={"row": name},
        device="cuda",
        clock=options.pop("clock", "cuda_events"),
        cache="cold",
        timed=options.pop("timed", True),
    )
    base, head = options.pop("base", OK), options.pop("head", OK)
    mhz = options.pop("mhz", (None, None))
    taken = []
    for process in range(processes):
        of_process = change + effect * rng.normal()
        for visit in range(visits):
            ratio = np.exp(of_process + sd * rng.normal())
            base_s = 1e-3 * np.exp(0.001 * rng.normal(size=8))
            taken.append(PairedVisit(process, visit, tuple(base_s), tuple(base_s * ratio), *mhz))
    outcomes = {arm: outcome for arm, outcome in (("base", base), ("head", head)) if outcome}
    one = Evidence(case, options.pop("negligible", (0.01, 1e-7)), options.pop("is_control", False), outcomes, taken)
    one.trouble = options.pop("trouble", "")
    one.margin, one.is_drawn = options.pop("margin", None), options.pop("is_drawn", False)
    assert not options
    return one


def rows(count=20, **options):
    return [evidence(f"row {i}", **options) for i in range(count)]


def word_of(judgement, name, quantity="time"):
    (found,) = [one for one in judgement.verdicts if f"'{name}'" in one.key and one.quantity == quantity]
    return found


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
    assert noisy.smallest_visible > 0.02
    assert {word_of(judgement, f"row {i}").word for i in range(20)} == {"SAME"}
    assert judgement.contaminated == ""
    assert judgement.exit_status == 1


def test_a_change_that_is_negligible_is_the_same_however_certain():
    assert word_of(judge([*rows(), evidence("tiny", 0.005)]), "tiny").word == "SAME"
    assert word_of(judge([*rows(), evidence("tiny", 0.03, negligible=(0.05, 0.0))]), "tiny").word == "SAME"


def test_a_word_given_at_a_look_stands():
    row = evidence("later", processes=12)
    row.visits = [
        visit
        if visit.process < LOOKS[0]
        else PairedVisit(visit.process, visit.visit, visit.base_s, tuple(1.1 * s for s in visit.base_s))
        for visit in row.visits
    ]
    assert word_of(judge([*rows(), row]), "later").word == "SAME"
    assert word_of(judge([*rows(), row], looks=(12,)), "later").word == "SLOWER"


def test_a_row_that_was_drawn_is_measured_on_and_judged_by_all_its_processes():
    row = evidence("later", processes=3, is_drawn=True)
    same = rows()
    assert word_of(judge([*same, row]), "later").word == "SAME"
    assert [one is row for one in open_rows([*same, row])] == [True]
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
    assert with_one.smallest_visible < without.smallest_visible


def test_a_margin_is_for_long_kernels_alone_and_never_more_than_the_class_allows():
    slow = {"change": 0.007, "sd": 0.001}
    assert word_of(judge([*rows(), evidence("a", **slow, margin=0.003, clock="wall")]), "a").word == "SAME"
    assert word_of(judge([*rows(), evidence("b", **slow, margin=0.05)]), "b").negligible == pytest.approx(0.01)
    short = evidence("c", **slow, margin=0.003)
    short.visits = [
        replace(one, base_s=tuple(s / 100 for s in one.base_s), head_s=tuple(s / 100 for s in one.head_s))
        for one in short.visits
    ]
    assert word_of(judge([*rows(), short]), "c").word == "SAME"


def test_two_calls_in_five_that_are_slower_are_a_slower_row():
    row = evidence("now and then", processes=12)
    row.visits = [replace(one, base_s=(1e-3,) * 10, head_s=(1e-3,) * 6 + (1.5e-3,) * 4) for one in row.visits]
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
    words = {one.word for one in judge([*rows(), *tossed]).verdicts if "tossed" in one.key and one.quantity == "time"}
    assert words == {"AMBIGUOUS"}


def a_difference(name, change, *, scatter=0.7, processes=12, whole_s=10e-3):
    """What a step of 10 ms takes more than without communication: 1 ms that scatters, and `change` of the step."""
    rng = np.random.default_rng([7, *map(ord, name)])
    row = evidence(name, processes=processes, negligible=(0.02, 5e-5))
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
    times = [one for one in judgement.verdicts if one.quantity == "time" and "exposed" in one.key]
    assert {one.word for one in times} <= {"SAME", "AMBIGUOUS"}
    assert np.mean([one.change for one in times]) == pytest.approx(0.0, abs=0.01)


def test_a_difference_is_judged_in_shares_of_what_it_is_a_part_of():
    got = word_of(judge([*rows(), a_difference("exposed", 0.05)]), "exposed")
    assert got.word == "SLOWER"
    assert got.change == pytest.approx(0.05, abs=0.01)
    assert "10.0 ms" in got.reason
    assert word_of(judge([*rows(), a_difference("exposed", 0.01, scatter=0.1)]), "exposed").word == "SAME"


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


@pytest.mark.parametrize("more", [[], [(2**20, 2**20)], [(2**20, 2**19)]])
def test_a_peak_that_differs_in_one_process_alone_is_no_growth(more):
    row = evidence("row", timed=False, processes=0, head=Outcome("ok", peak_bytes=2**21))
    row.more_peaks = more
    (got,) = judge([row]).verdicts
    assert got.word == "AMBIGUOUS"


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
    assert (got.word, got.low, got.smallest_visible) == ("AMBIGUOUS", None, None)
    assert reason in got.reason


def test_visits_that_were_throttled_throughout_count_for_nothing():
    row = evidence("row", processes=0)
    row.visits = [PairedVisit(process, 0, (), (), throttled=40) for process in range(3)]
    got = word_of(judge([*rows(), row]), "row")
    assert got.word == "AMBIGUOUS"
    assert "120 pairs" in got.reason


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


def controls(count=6, **options):
    return [evidence(f"control {i}", is_control=True, **options) for i in range(count)]


def test_controls_have_no_verdict_and_hold():
    judgement = judge([*rows(), *controls()])
    assert judgement.contaminated == ""
    assert not any("control" in one.key for one in judgement.verdicts)


def test_a_control_that_moved_voids_the_report():
    judgement = judge([*rows(), *controls(), evidence("copy", 0.02, is_control=True)])
    assert "attention.FlashAttention('copy')" in judgement.contaminated
    assert "+2.0 %" in judgement.contaminated
    assert judgement.exit_status == 2


def test_a_control_that_may_have_moved_by_chance_voids_nothing():
    assert (
        judge([*rows(), *controls(), evidence("copy", 0.0125, sd=0.005, processes=3, is_control=True)]).contaminated
        == ""
    )


def test_controls_that_moved_a_little_all_together_void_the_report():
    judgement = judge([*rows(), *controls(change=-0.008)])
    assert "6 controls" in judgement.contaminated
    assert judge([*rows(), *controls(change=-0.004)]).contaminated == ""


def test_controls_of_identical_code_hardly_ever_void_a_report():
    noisy = {"sd": 0.008, "effect": 0.003}
    voided = [judge([*rows(5), *controls(seed=seed, **noisy)]).contaminated for seed in range(40)]
    assert sum(map(bool, voided)) <= 2


def same_code(name, change=0.0, **options):
    arm = Outcome("ok", peak_bytes=1, kernels=(KERNEL,), triton_kernels=(COMPILED,))
    return evidence(name, change, base=arm, head=arm, **options)


def test_rows_of_the_same_code_that_move_void_the_report():
    same = [same_code(f"same {i}") for i in range(10)]
    moved = [same_code(f"moved {i}", 0.03) for i in range(4)]
    assert judge([*same, moved[0]]).contaminated == ""
    assert "4 of 14 rows" in judge([*same, *moved]).contaminated


def test_what_was_planted_around_the_same_code_voids_nothing():
    planted = [same_code(f"planted {i}", 0.03) for i in range(14)]
    for one in planted:
        one.planted = True
    judgement = judge([*planted, *controls()])
    assert judgement.contaminated == ""
    assert {(one.word, one.same_code) for one in judgement.verdicts if one.quantity == "time"} == {("SLOWER", False)}


@pytest.mark.parametrize("options", [{"clock": "gpu_wall"}, {"kernel_us": 100.0}])
def test_the_same_kernels_may_be_waited_for_longer(options):
    arm = Outcome("ok", kernels=(("gemm", 1, options.pop("kernel_us", 1000.0)),))
    moved = [evidence(f"moved {i}", 0.05, base=arm, head=arm, **options) for i in range(6)]
    judgement = judge([*rows(**options), *moved])
    assert judgement.contaminated == ""
    got = word_of(judgement, "moved 0")
    assert (got.word, got.same_code) == ("SLOWER", True)
    assert "same machine code" in got.reason


def test_a_slower_row_says_which_kernel_it_was():
    arms = {
        "base": Outcome("ok", kernels=(KERNEL,), triton_kernels=(COMPILED,)),
        "head": Outcome(
            "ok",
            kernels=(("attention_forward", 1, 1050.0),),
            triton_kernels=(COMPILED | {"registers": 255, "spills": 12, "sass": "cd"},),
        ),
    }
    got = word_of(judge([*rows(), evidence("slow", 0.05, **arms)]), "slow")
    assert "attention_forward +50.0 us" in got.reason


def test_times_of_which_none_was_judged_are_no_green():
    many = [evidence(f"noisy {number}", sd=0.2) for number in range(20)]
    judgement = judge(many)
    assert {one.word for one in judgement.verdicts if one.quantity == "peak_memory"} == {"SAME"}
    assert judgement.exit_status == 2


@pytest.mark.parametrize(
    ("control", "reason"),
    [
        ([], "no control"),
        ([evidence("copy", is_control=True, trouble="it hung")], "it hung"),
        ([evidence("copy", is_control=True, base=None, head=None, processes=0)], "base and head"),
        ([evidence("copy", is_control=True, head=Outcome("wrong", "off"), processes=0)], "head: wrong: off"),
        ([evidence("copy", is_control=True)], ""),
    ],
)
def test_controls_without_a_time_are_named(control, reason):
    judgement = judge([*rows(), *control])
    assert reason in judgement.unwatched
    assert bool(reason) == bool(judgement.unwatched)


def test_nothing_at_all_is_no_verdict():
    assert judge([]).exit_status == 2
    assert open_rows([]) == []


def test_no_number_is_written_that_nobody_can_read():
    """Two processes a factor of e apart leave a row an interval of fifty powers of ten."""
    wild = evidence("wild", processes=2, effect=2.0)
    got = word_of(judge([*rows(), wild]), "wild")
    assert got.word == "AMBIGUOUS"
    assert (got.low, got.high) == (None, None)
    assert got.smallest_visible is None or got.smallest_visible < 1000
    assert got.reason
    endless = evidence("endless", processes=3)
    endless.visits = [replace(one, head_s=tuple(1e9 * s for s in one.head_s)) for one in endless.visits]
    assert word_of(judge([*rows(), endless]), "endless").change is None
