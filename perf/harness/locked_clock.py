"""A GPU whose owner has locked its clock: a machine of its own, whose clock is looked at under load."""

import os

VARIABLE = "PERF_LOCKED_MHZ"
"""What `nvidia-smi -lgc` was given. Unset: the clock is not locked."""

STEP_MHZ = 15  # the nearest step that the GPU has is what it runs at


def locked_mhz() -> int | None:
    """What the machine's owner says. Raises `SystemExit` with one line for what is no clock."""
    text = os.environ.get(VARIABLE, "")
    if text and not text.isdecimal():
        raise SystemExit(f"perf: {VARIABLE}={text!r} was given; allowed: the locked clock in MHz, such as 1500")
    return int(text) if text else None


def unlocked(sm_mhz: int) -> str:
    """What is wrong with this clock under load, "" if it is the locked one or none is."""
    locked = locked_mhz()
    if locked is None or abs(sm_mhz - locked) <= STEP_MHZ:
        return ""
    return f"clock at {sm_mhz} MHz, not at the {locked} of {VARIABLE}"
