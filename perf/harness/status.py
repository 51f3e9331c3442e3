"""What became of a case, a visit or a row of a study: one vocabulary for whoever writes or reads it."""

from typing import Any, Literal, get_args

from perf.harness.ceilings import TooFast
from perf.workloads.workload import DoesNotFit, Unavailable, WrongResult

Status = Literal[
    "ok",
    "unavailable",  # this commit or machine cannot do it
    "out_of_memory",  # tried, or known beforehand not to fit
    "wrong",  # the output differs from the oracle
    "too_fast",  # below the physical floor
    "throttled",  # the device slowed itself down
    "error",
    "crashed",  # the process died
    "hung",
    "does_not_compile",
    "out_of_the_race",  # too slow to be worth more samples
    "not_measured",  # not yet, or predicted alone
]
STATUSES: tuple[Status, ...] = get_args(Status)

GOES_ON: tuple[Status, ...] = ("ok", "throttled")
"""Statuses of a visit after which its case is visited again; any other ends the case."""

ANSWERED: tuple[Status, ...] = ("ok", "out_of_memory")
"""Statuses that answer how fast or how large something is: with a number, or that it does not fit."""

_BY_KIND: dict[type[Exception], Status] = {
    Unavailable: "unavailable",
    WrongResult: "wrong",
    TooFast: "too_fast",
    DoesNotFit: "out_of_memory",
}


def refusals(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """Exceptions that are an answer, `more` among them; any other is a fault."""
    import torch

    return (torch.OutOfMemoryError, *_BY_KIND, *more)


def failure(error: Exception) -> dict[str, Any]:
    """`status` and `reason` of work that raised `error`."""
    import torch

    if isinstance(error, torch.OutOfMemoryError):
        error.__traceback__ = None  # it holds the frames, and they the tensors
        return {"status": "out_of_memory", "reason": one_line(error)}
    if status := next((known for kind, known in _BY_KIND.items() if isinstance(error, kind)), None):
        return {"status": status, "reason": str(error)}
    return {"status": "error", "reason": f"{type(error).__name__}: {one_line(error)}"}


def one_line(error: BaseException) -> str:
    """The first line of an error's message, at most 300 characters."""
    return (str(error).strip().splitlines() or [""])[0][:300]


def told(row: dict[str, Any]) -> str:
    """Status and reason in words: "out of memory: asked for 2.00 GiB"."""
    words = row["status"].replace("_", " ")
    return f"{words}: {row['reason']}" if row.get("reason") else words


def read(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a file with `status` and `reason`; files from before this vocabulary have both in one text."""
    text = row.get("status", "ok")
    if text in STATUSES:
        return row
    word, _, reason = text.partition(": ")
    status = _OLDER.get(word, word.replace(" ", "_"))
    return row | ({"status": status, "reason": reason} if status in STATUSES else {"status": "error", "reason": text})


_OLDER = {"does not fit": "out_of_memory", "predicted": "not_measured"}
