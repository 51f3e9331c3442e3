"""The statuses of a case, a visit or a row of a study: one vocabulary for all writers and readers."""

from typing import Any, Literal, get_args

from perf.harness.ceilings import TooFast
from perf.workloads.workload import DoesNotFit, Unavailable, WrongResult

Status = Literal[
    "ok",
    "unavailable",  # this commit or machine cannot run it
    "out_of_memory",  # in a run, or predicted
    "wrong",  # the output differs from the oracle
    "too_fast",  # below the physical floor
    "throttled",  # by the device
    "error",
    "crashed",  # the process died
    "hung",
    "does_not_compile",
    "too_slow",  # to be worth more samples
    "not_measured",  # not yet, or only predicted
]
STATUSES: tuple[Status, ...] = get_args(Status)

GOES_ON: tuple[Status, ...] = ("ok", "throttled")
"""Statuses of a visit after which its case is visited again; every other status ends the case."""

NOT_APPLICABLE: tuple[Status, ...] = ("unavailable", "out_of_memory")
"""Statuses that asv shows as n/a; every other failure fails the asv case, and asv exits with status 2."""

ANSWERED: tuple[Status, ...] = ("ok", "out_of_memory")
"""Statuses that answer a question about time or memory: with a number, or that it does not fit."""

PHASES = {
    "sample": "sampling",
    "warm_up": "warm-up",
    "build": "allocation of inputs",
    "first_run": "first calls",
    "check": "checks",
    "memory": "memory passes",
    "explain": "explanations",
    "watch": "recording what each case runs",
    "start": "starting processes",
}
"""Labels of a visit's phases, as `measure.Spent` names them."""

_NO_CPU_MEMORY = "DefaultCPUAllocator: can't allocate memory"
"""How torch says in a `RuntimeError` that the CPU's memory does not suffice."""

_BY_KIND: dict[type[Exception], Status] = {
    Unavailable: "unavailable",
    WrongResult: "wrong",
    TooFast: "too_fast",
    DoesNotFit: "out_of_memory",
}


def refusals(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """Return the exceptions that are results rather than faults, with `more`."""
    import torch

    return (torch.OutOfMemoryError, *_BY_KIND, *more)


def failure(error: BaseException) -> dict[str, Any]:
    """Return `status` and `reason` of work that raised `error`."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError) or _NO_CPU_MEMORY in str(error):
        error.__traceback__ = None  # its frames keep the tensors alive
        return {"status": "out_of_memory", "reason": one_line(error) or type(error).__name__}
    if status := next((known for kind, known in _BY_KIND.items() if isinstance(error, kind)), None):
        return {"status": status, "reason": str(error)}
    return {"status": "error", "reason": f"{type(error).__name__}: {one_line(error)}".removesuffix(": ")}


def one_line(error: BaseException) -> str:
    """The first line of an error's message, at most 300 characters."""
    return (str(error).strip().splitlines() or [""])[0][:300]


def words(status: Status) -> str:
    """ "out of memory": a status as every page, table and message names it."""
    return status.replace("_", " ")


def abbreviation(status: Status) -> str:
    """ "OOM": a status in a narrow cell."""
    return {"unavailable": "n/a", "out_of_memory": "OOM", "not_measured": "-"}.get(status) or words(status)


def describe(row: dict[str, Any]) -> str:
    """Describe status and reason: "out of memory: asked for 2.00 GiB"."""
    return f"{words(row['status'])}: {row['reason']}" if row.get("reason") else words(row["status"])


def read(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with `status` and `reason`; older files have both in one text."""
    text = row.get("status", "ok")
    if text in STATUSES or not isinstance(text, str):  # the second is the form's to refuse
        return row
    word, _, reason = text.partition(": ")
    status = _OLDER.get(word.replace("_", " "), word.replace(" ", "_"))
    reason = reason or row.get("reason", "")
    return row | ({"status": status, "reason": reason} if status in STATUSES else {"status": "error", "reason": text})


_OLDER = {"does not fit": "out_of_memory", "predicted": "not_measured", "out of the race": "too_slow"}
