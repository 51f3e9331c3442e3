"""A case as the records have it, made up, with numbers that are easy to work out by hand."""

import dataclasses
from typing import Any

from perf.harness.records import CaseResult, Session

SESSION = Session(
    id="s",
    started_at="2026-01-02T03:04:05+00:00",
    day="2026-01-02",
    harness="1",
    effort="full",
    machine="m",
    commit="c" * 40,
    device={"name": "GPU"},
    software={"torch": "2.11.0"},
    ceilings={"matmul_flops_per_s": {"bfloat16": 1e12}, "copy_bytes_per_s": 1e9},
)


def case(impl: str = "triton", visits: tuple[tuple[float, ...], ...] = ((1.0,) * 4,) * 3, **changes: Any) -> CaseResult:
    params = {"seq_len": 128, "d": 64, "dtype": "bfloat16", "mode": "forward"} | changes.pop("params", {})
    return dataclasses.replace(
        CaseResult(
            benchmark="attention.FlashAttention",
            params=params | {"impl": impl},
            status="ok",
            reason="",
            visits_s=visits,
            peak_bytes=1024,
            facts={},
            cache="cold",
            clock="cuda_events",
            flops=5e11,
            min_bytes=1e8,
            matmul_dtype="bfloat16",
            session=SESSION,
        ),
        **changes,
    )
