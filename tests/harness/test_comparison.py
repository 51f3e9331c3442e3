"""Which comparisons go on for how many processes: the stopping rules of the engine."""

import pytest

from perf.harness.comparison import Looks, Pilot, compare


def measured(until, comparisons):
    """What was measured, process by process; ends after 20."""
    log = []

    def in_a_process(wanted, number):
        assert number == len(log) < 20
        log.append("".join(wanted))
        yield from wanted

    assert "".join(compare(comparisons, until, in_a_process)) == "".join(log)
    return log


@pytest.mark.parametrize(
    ("most", "log"),
    [(9, ["ab", "ab", "ab", "b", "b"]), (3, ["ab"] * 3), (2, ["ab"] * 2), (0, [])],
)
def test_a_pilot_fixes_once_how_many_processes_each_comparison_gets(most, log):
    asked = []
    until = Pilot(3, most, lambda name: asked.append(name) or {"a": 3, "b": 5}[name])
    assert measured(until, ["a", "b"]) == log
    assert asked == (["a", "b"] if most > 3 else [])


def test_after_each_look_those_that_are_open_go_on():
    opened = iter((["b"], ["b", "c"], []))
    until = Looks((1, 3, 4), still_open=lambda comparisons: next(opened), can_go_on=bool)
    assert measured(until, ["a", "b", "c"]) == ["abc", "b", "b", "bc"]
    assert not list(opened)


def test_where_nothing_can_go_on_every_look_is_taken_at_once():
    looks = []
    until = Looks((2, 4), still_open=lambda comparisons: looks.append(1) or comparisons, can_go_on=lambda _: not looks)
    assert measured(until, ["a"]) == ["a", "a"]
    assert len(looks) == 2
