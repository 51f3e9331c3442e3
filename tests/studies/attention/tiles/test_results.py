"""What given rows say: the fastest of a cell, and a sentence for each entry of the tables."""

import pytest

from perf.harness.status import read
from perf.studies.attention.tiles.kernels import TileCell
from perf.studies.attention.tiles.results import shown, verdicts

ENTRY = "FORWARD_TILES[64] bfloat16"


def rows(times, present="p", seq_len=1024, against=None, **statuses):
    """Of one cell; `times` are the seconds of each candidate, the same in three processes."""
    against = against or present
    cell = TileCell("forward", 1, 2, seq_len, 64, "bfloat16", True, "forward", "cuda_events", "cold", ENTRY, against)
    found = []
    for impl in (*times, *statuses):
        status = statuses.get(impl, "ok")
        row = cell.axes() | read({"impl": impl, "is_present": impl == present, "status": status})
        row["role"] = "against" if impl == against else "ours"
        row["samples_s"] = [[times[impl]] * 2] * 3 if status == "ok" else []
        found.append(row | {"registers": 168, "spills": 4, "shared_bytes": 98304})
    return found


def said(*found):
    (sentence,) = verdicts([row for one in found for row in one])
    return sentence.removeprefix(f"{ENTRY}: ")


def test_the_present_choice_is_the_fastest():
    assert said(rows({"p": 1.0, "a": 1.1})) == "the present choice, p, is the fastest in the one cell."
    assert said(rows({"p": 1.0}, a="out of the race: 2 ms")).startswith("the present choice, p, is the fastest")


def test_what_is_a_little_faster_is_no_reason_to_change():
    sentence = said(rows({"p": 1.0, "a": 0.985, "b": 0.99}))
    expected = "the present choice, p, is within 2% of the fastest: a is 1.015\u00d7 ± 0.0 % as fast in the one cell."
    assert sentence == expected


def test_what_is_faster_over_all_cells_by_the_geometric_mean():
    cells = rows({"p": 1.0, "a": 0.5, "b": 0.7}), rows({"p": 4.0, "a": 4.0, "b": 4.0}, seq_len=64)
    expected = "a is 1.414\u00d7 ± 0.0 % as fast as the present choice, p, over all 2 cells (geometric mean)."
    assert said(*cells) == expected


def test_only_what_has_a_time_in_every_cell_counts():
    cells = rows({"p": 1.0, "a": 0.5, "b": 0.9}), rows({"p": 1.0, "b": 0.9}, seq_len=64, a="does not compile: spills")
    assert said(*cells).startswith("b is 1.111\u00d7 ")


def test_a_candidate_that_is_the_present_choice_elsewhere_counts_there_too():
    cells = rows({"p": 1.0, "q": 0.64}), rows({"q": 1.0, "p": 1.2}, present="q", seq_len=64)
    expected = "q is 1.250\u00d7 ± 0.0 % as fast as the present choice, p/q, over all 2 cells (geometric mean)."
    assert said(*cells) == expected


def test_a_gain_that_is_not_known_is_none():
    found = rows({"p": 1.0, "a": 1.0})
    found[1]["samples_s"] = [[0.8] * 2, [0.9] * 2, [1.1] * 2]
    assert said(found).startswith("no candidate is known to be faster than the present choice, p: a is 1.081\u00d7 ± ")


def test_a_present_choice_that_does_not_run_here_is_said_with_what_is_best_instead():
    found = rows({"a": 1.0, "b": 0.9}, against="a", p="does not compile: shared memory")
    assert said(found) == (
        "the present choice, p, has no time in 1x2x1024x64, causal: does not compile: shared memory; "
        "the fastest of those that have one is b, in the one cell."
    )
    assert said(rows({}, p="error: no")) == "nothing was compared with the present choice, p."


def test_entries_have_a_sentence_each():
    found = rows({"p": 1.0, "a": 1.1})
    other = [row | {"entry": "AT_ONCE_TILES"} for row in found]
    assert [sentence.partition(":")[0] for sentence in verdicts([*found, *other])] == [ENTRY, "AT_ONCE_TILES"]


def test_the_fastest_few_and_the_present_choice_are_shown_with_what_they_take():
    times = {"p": 1.0} | {f"a{number}": 0.5 + number / 100 for number in range(8)}
    title, table, *failed = shown(rows(times, b="out of the race: 2 ms at first", c="out of the race: 3 ms"))
    assert title == "\nforward, d 64, bfloat16: the fastest, with their speed-up over the present choice"
    lines = [line.split() for line in table.splitlines()[2:]]
    assert [line[2] for line in lines] == ["a0", "a1", "a2", "a3", "a4", "p"]
    assert lines[0][3:] == ["500.0", "2.000\u00d7", "±", "0.0", "%", "168", "4", "96"]
    assert lines[-1][3:] == ["(present)", "1000", "1", "168", "4", "96"]
    assert failed == ["out of the race: 2, as b in 1x2x1024x64, causal: 2 ms at first"]


@pytest.mark.parametrize("missing", ["registers", "shared_bytes"])
def test_what_no_compiler_said_is_a_dash(missing):
    found = rows({"p": 1.0, "a": 0.5})
    for row in found:
        del row[missing]
    assert " - " in next(line for line in list(shown(found))[1].splitlines() if " a " in line) + " "
