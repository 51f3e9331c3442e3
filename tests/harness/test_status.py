"""All statuses are of one vocabulary, and older files are read into it."""

import pytest
import torch

from perf.harness.ceilings import TooFast
from perf.harness.status import STATUSES, abbreviation, describe, failure, read, words
from perf.workloads.workload import DoesNotFit, Unavailable, WrongResult


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (Unavailable("no such precision"), "unavailable", "no such precision"),
        (WrongResult("off by 1"), "wrong", "off by 1"),
        (TooFast("1 us"), "too_fast", "1 us"),
        (DoesNotFit("needs 150 GiB"), "out_of_memory", "needs 150 GiB"),
        (torch.OutOfMemoryError("none left\nand much more"), "out_of_memory", "none left"),
        (KeyError("x"), "error", "KeyError: 'x'"),
    ],
)
def test_an_exception_is_a_status_with_its_reason(error: Exception, status: str, reason: str) -> None:
    found = failure(error)
    assert found == {"status": status, "reason": reason}
    assert found["status"] in STATUSES


@pytest.mark.parametrize(
    ("text", "status", "reason"),
    [
        ("out of memory: asked for 2.00 GiB", "out_of_memory", "asked for 2.00 GiB"),
        ("out of memory", "out_of_memory", ""),
        ("does not fit: predicted 150 GiB", "out_of_memory", "predicted 150 GiB"),
        ("does not compile: PTXASError: -11", "does_not_compile", "PTXASError: -11"),
        ("too fast: 1 us", "too_fast", "1 us"),
        ("not measured", "not_measured", ""),
        ("predicted", "not_measured", ""),
        ("out of the race: 2 ms", "too_slow", "2 ms"),
        ("RuntimeError: no compiler", "error", "RuntimeError: no compiler"),
        ("the measuring process died", "error", "the measuring process died"),
    ],
)
def test_what_older_files_say_is_read(text: str, status: str, reason: str) -> None:
    assert read({"size": "xl", "status": text}) == {"size": "xl", "status": status, "reason": reason}


def test_a_row_in_the_vocabulary_stays_as_it_is_and_has_words() -> None:
    for status in STATUSES:
        row = {"status": status, "reason": "why"}
        assert read(row) is row
        assert describe(row) == f"{words(status)}: why"
        assert len(abbreviation(status)) < 10 or status == "does_not_compile", "a cell of the site is narrow"
    assert read({"mode": "a table without a status"}) == {"mode": "a table without a status"}
