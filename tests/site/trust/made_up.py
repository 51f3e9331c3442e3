"""Made-up self-tests of a gate in the real format: written by the gate's own writer, from made-up verdicts."""

import json
import math
import random
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perf.gate.evidence import Arm, Evidence, Outcome, PairedVisit
from perf.gate.report import SELF_TEST_VERSION, SelfTest, own_test, read_self_test
from perf.gate.self_test import SelfTestResult
from perf.gate.self_test_case import PLANTED, SelfTestCase
from perf.gate.verdicts import Judgement, Verdict, Word
from perf.harness.case import ARMS, Case

COMMIT = "0123456789abcdef" * 2 + "01234567"
HOSTILE = '<script>alert(1)</script><img src=x onerror=alert(2)>" onmouseover="alert(3)\' **bold** `x`'
DEVICE = {"name": "NVIDIA H200", "driver": "580.95.05", "memory_bytes": 150754820096}
SOFTWARE = {"torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0"}
CLASSES = (("attention.FlashAttention", 2e-4, 0.002), ("attention.ShortAttention", 6e-6, 0.012))
"""Class, seconds of its shortest row, standard deviation of a visit."""

Say = Callable[[int, str], Word]
"""The word of a row, by its number and the name of the part."""


def plausible(number: int, part: str) -> Word:
    """Nothing false; 1 % is seldom found, 2 % nearly always."""
    if part == "identical code":
        return "AMBIGUOUS" if number % 9 == 8 else "SAME"
    if part.startswith("1 MiB"):
        return "LARGER"
    if part.startswith(("0.5 %", "1 %")):
        return "SLOWER" if number % 3 == 0 else "AMBIGUOUS"
    return "AMBIGUOUS" if part.startswith("2 %") and number == 1 else "SLOWER"


def document(
    *,
    rows: int = 24,
    say: Say = plausible,
    contaminated: tuple[str, ...] = (),
    reason: str = "",
    commit: str = COMMIT,
    started_at: datetime = datetime(2026, 1, 20, 12, tzinfo=UTC),
) -> dict[str, Any]:
    """A self-test of so many rows; `contaminated` names the parts whose controls moved."""
    evidence = [_evidence(number) for number in range(rows)]
    ended = []
    for part in (SelfTestCase(None), *PLANTED):
        verdicts = tuple(_verdict(number, one, say(number, part.title), reason) for number, one in enumerate(evidence))
        moved = "controls.Controls('matmul', 'cold') moved by +3.1 %" if part.title in contaminated else ""
        ended.append(SelfTestResult(part, Judgement(verdicts, moved), evidence, 60.0, 12))
    greeting = {"software": SOFTWARE, "device": DEVICE}
    parts = [result.to_json() for result in ended]
    return json.loads(own_test(SELF_TEST_VERSION, Arm(commit, "Made up"), greeting, started_at, parts=parts))


def write(directory: Path, machine: str, name: str, found: dict[str, Any] | str) -> Path:
    """The file of a document, or of a text that is none."""
    path = directory / machine / "self-test" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(found if isinstance(found, str) else json.dumps(found))
    return path


def read(found: dict[str, Any]) -> SelfTest:
    """The self-test of a document."""
    with tempfile.TemporaryDirectory() as folder:
        return read_self_test(write(Path(folder), "box", "self-test", found))


def _evidence(number: int) -> Evidence:
    benchmark, shortest, sd = CLASSES[number % len(CLASSES)]
    params = {"seq_len": 128 * (number + 1), "d": 64, "dtype": "bfloat16", "mode": "forward", "impl": "triton"}
    case = Case(benchmark, "attention", params, "cuda", "cuda_events", "cold")
    noise = random.Random(number)
    base = shortest * (1 + number)
    visits = [
        PairedVisit(process, visit, (base,), (base * math.exp(noise.gauss(0, sd)),))
        for process in range(3)
        for visit in range(6)
    ]
    return Evidence(case, (0.01, 3e-7), False, outcomes={arm: Outcome("ok") for arm in ARMS}, visits=visits)


def _verdict(number: int, one: Evidence, word: Word, reason: str) -> Verdict:
    bytes_only = word in ("LARGER", "SMALLER")
    base = one.visits[0].base_s[0]
    return Verdict(
        key=one.case.key,
        quantity="peak_memory" if bytes_only else "time",
        word=word,
        base=2.0**26 if bytes_only else base,
        head=2.0**26 + 2**20 if bytes_only else base,
        change=2**-6 if bytes_only else 0.0,
        low=-0.001,
        high=0.001,
        min_detectable=None
        if bytes_only
        else max(0.02 if number % 2 else 0.01, 3e-7 / base) + 0.001 * (1 + number % 7),
        same_code=True,
        reason=reason,
        negligible=None if bytes_only else max(0.02 if number % 2 else 0.01, 3e-7 / base),
    )
