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


UNSURE = rows({"p": 1.0, "a": 1.0})
UNSURE[1]["samples_s"] = [[0.8] * 2, [0.9] * 2, [1.1] * 2]


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([rows({"p": 1.0, "a": 1.1}, b="too slow: 2 ms")], ["present choice, p, is the fastest"]),
        (
            [rows({"p": 1.0, "a": 0.985, "b": 0.99})],
            ["present choice, p, is within 2% of the fastest", "a is 1.015\u00d7"],
        ),
        (
            [rows({"p": 1.0, "a": 0.5, "b": 0.7}), rows({"p": 4.0, "a": 4.0, "b": 4.0}, seq_len=64)],
            ["a is 1.414\u00d7", "over all 2 cells"],
        ),
        (
            [rows({"p": 1.0, "a": 0.5, "b": 0.9}), rows({"p": 1.0, "b": 0.9}, seq_len=64, a="does not compile: no")],
            ["b is 1.111\u00d7"],
        ),
        (
            [rows({"p": 1.0, "q": 0.64}), rows({"q": 1.0, "p": 1.2}, present="q", seq_len=64)],
            ["q is 1.250\u00d7", "present choice, p/q,"],
        ),
        ([UNSURE], ["no candidate is known to be faster", "a is 1.081\u00d7"]),
        (
            [rows({"a": 1.0, "b": 0.9}, against="a", p="does not compile: no")],
            ["present choice, p, has no time in 1x2x1024x64, causal", "is b, in the one cell"],
        ),
        ([rows({}, p="error: no")], ["nothing was compared with the present choice, p"]),
        ([rows({"p": 1.0}, a="error: no")], ["nothing was compared with the present choice, p"]),
    ],
    ids=["fastest", "close", "mean", "everywhere", "present elsewhere", "unsure", "present fails", "nothing", "alone"],
)
def test_the_verdict_on_an_entry_follows_from_its_cells(cells, words):
    (sentence,) = verdicts([row for cell in cells for row in cell])
    assert sentence.startswith(f"{ENTRY}: ")
    assert all(word in sentence for word in words), sentence


def test_the_fastest_few_and_the_present_choice_are_shown_with_their_resources():
    times = {"p": 1.0} | {f"a{number}": 0.5 + number / 100 for number in range(8)}
    mine = rows(times, b="too slow: 2 ms at first", c="too slow: 3 ms")
    del mine[1]["registers"]
    _, table, *failed = shown(mine)
    lines = [line.split() for line in table.splitlines()[2:]]
    assert [line[2] for line in lines] == ["a0", "a1", "a2", "a3", "a4", "p"]
    assert lines[0][3:] == ["500.0", "2.000\u00d7", "±", "0.0", "%", "-", "4", "96"]
    assert lines[-1][3:] == ["(present)", "1000", "1", "168", "4", "96"]
    assert len(failed) == 1 and "b in 1x2x1024x64 bfloat16, causal" in failed[0]


def choice(kernel, present, times, seq_len=1024, dtype="bfloat16"):
    """Rows of one cell of a choice of kernels; `times` are the seconds of its ways by number."""
    made = rows({str(way): time for way, time in times.items()}, present=str(present), seq_len=seq_len)
    return [row | {"group": kernel, "dtype": dtype, "entry": f"{kernel} {seq_len} {dtype}"} for row in made]


def test_the_report_on_the_choice_names_each_problem_that_another_kernel_wins_and_by_how_much():
    mine = [
        *choice("forward-choice", 0, {0: 1.0, 1: 0.8, 2: 0.9}),
        *choice("forward-choice", 2, {0: 1.2, 2: 1.0}, dtype="float32"),
        *choice("forward-choice", 2, {0: 1.0, 2: 1.04}, seq_len=64),
        *choice("backward-choice", 2, {0: 3.0, 1: 1.5, 2: 1.0}),
    ]
    (title, table), (forward, backward) = shown(mine), verdicts(mine)
    assert title.startswith("\nforward-choice, ")
    lines = [line.split("  ") for line in table.splitlines()[2:]]
    assert [[cell.strip() for cell in line if cell.strip()] for line in lines] == [
        ["1x2x1024x64 bfloat16, causal", "plain", "1000", "split", "1.250\u00d7 \u00b1 0.0 %"],
        ["1x2x64x64 bfloat16, causal", "gluon", "1040", "plain", "1.040\u00d7 \u00b1 0.0 %"],
    ]
    assert "in 1 of 3 cells" in forward and "1x2x1024x64 bfloat16, causal, split is 1.250" in forward
    assert backward == "backward-choice: the choice is the fastest of our kernels in all 1 cells."
