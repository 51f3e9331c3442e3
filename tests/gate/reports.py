"""Reports made up for the tests of what shows them."""

from typing import Any

from perf.gate.verdicts import Judgement, Report, Verdict

KEY = "attention.FlashAttention(8192, 64, 'bfloat16', 'forward', 'triton')"


def verdict(word: str, **changes: Any) -> Verdict:
    """A row that is 3 % slower, by default."""
    time: dict[str, Any] = {
        "key": KEY,
        "quantity": "time",
        "word": word,
        "base": 1.842e-3,
        "head": 1.901e-3,
        "change": 0.032,
        "low": 0.029,
        "high": 0.035,
        "min_detectable": 0.017,
        "same_code": False,
        "reason": "",
    }
    return Verdict(**time | changes)


def memory(word: str, base: float, head: float) -> Verdict:
    """A row of bytes."""
    share = head / base - 1
    return verdict(
        word,
        quantity="peak_memory",
        base=base,
        head=head,
        change=share,
        low=share,
        high=share,
        min_detectable=None,
    )


def report(*verdicts: Verdict, **changes: Any) -> Report:
    """With these rows."""
    whole: dict[str, Any] = {
        "base": {"commit": "1a2b3c4d" + 32 * "0", "subject": "The kernel before"},
        "head": {"commit": "5e6f7a8b" + 32 * "0", "subject": "The kernel after"},
        "judgement": Judgement(verdicts, changes.pop("contaminated", ""), cut_short=changes.pop("cut_short", 0)),
        "without": (),
        "device": {"name": "NVIDIA H200", "driver": "580.159.04"},
        "software": {"torch": "2.11.0", "triton": "3.6.0"},
        "head_software": {},
        "command": "python -m perf gate HEAD~1 HEAD",
        "seconds": 512.0,
        "spent_s": {"sample": 256.0, "warm_up": 128.0},
        "processes": 5,
        "tests_passed": True,
        "tests": "1766 passed, 391 skipped in 371.33s",
    }
    return Report(**whole | changes)
