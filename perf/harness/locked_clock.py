"""GPUs with a locked clock: they count as a machine of their own, and their clock is verified under load."""

import os

VARIABLE = "PERF_LOCKED_MHZ"
"""The clock given to `nvidia-smi -lgc`; unset if the clock is not locked."""

STEP_MHZ = 15  # a GPU runs at its step nearest to the locked clock


def locked_mhz() -> int | None:
    """Read the locked clock from the environment. Raises `SystemExit` with one line for an invalid value."""
    text = os.environ.get(VARIABLE, "")
    if text and not text.isdecimal():
        raise SystemExit(f"perf: {VARIABLE}={text!r} was given; allowed: the locked clock in MHz, such as 1500")
    return int(text) if text else None


def unlocked(sm_mhz: int) -> str:
    """Describe a clock under load that differs from the locked one; "" if it does not, or none is locked."""
    locked = locked_mhz()
    if locked is None or abs(sm_mhz - locked) <= STEP_MHZ:
        return ""
    return f"clock at {sm_mhz} MHz, not at the {locked} of {VARIABLE}"
