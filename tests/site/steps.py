"""Made-up measurements of training steps, through the harness's journal."""

import itertools
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from perf.harness.journal import Journal
from perf.harness.records import read_commit
from perf.site.pages import Commit
from perf.site.step.rows import PHASES, VARIANTS, NewestCell
from tests.site.synthetic import H200, session

COMMIT = Commit("a" * 40, "Fuse <everything>", "2026-01-02")
BUSY_MS = {"forward": 20.0, "backward": 40.0, "optimizer": 10.0, "step": 60.0}
CEILING = 4e14
HOSTILE = "2 GiB <script>alert(1)</script>"


def phases(size: str = "small", **fixed: Any) -> list[dict[str, Any]]:
    """Visits of one model by both clocks: busy for `BUSY_MS`, and a third more by the wall clock."""
    found = []
    for mode, clock in itertools.product(BUSY_MS, ("gpu_wall", "device_busy")):
        params = {"size": size, "context_length": 512, "precision": "bf16", "variant": "eager"}
        params |= {"attention": "reference", "mode": mode, "clock": clock} | fixed
        milliseconds = BUSY_MS[mode] * (4 / 3 if clock == "gpu_wall" else 1)
        found.append({"benchmark": PHASES, "params": params, "clock": clock, "ms": milliseconds, "bytes": 2**30})
    return found


def way(precision: str, variant: str, attention: str, ms: float, size: str = "small") -> dict[str, Any]:
    """A visit to one way to run a step."""
    params = {"size": size, "context_length": 512, "precision": precision, "variant": variant}
    params |= {"attention": attention, "mode": "step"}
    return {"benchmark": VARIANTS[0], "params": params, "clock": "gpu_wall", "ms": ms, "bytes": 2**31}


def full(one: dict[str, Any]) -> dict[str, Any]:
    """The same where it does not fit."""
    return one | {"status": "out_of_memory", "reason": HOSTILE}


def write_records(directory: Path, cases: Iterable[dict[str, Any]], commit: str = COMMIT.hash) -> None:
    """One session with three visits to each case, which drift by `drift_ms` from one to the next."""
    journal = Journal(directory, H200, commit)
    device, versions = {"name": "NVIDIA H200", "sm_count": 132}, {"python": "3.12.3", "torch": "2.11.0"}
    journal.write(session("s", commit=commit, device=device, software=versions))
    ceilings = {"matmul_flops_per_s": {"bfloat16": CEILING, "float32": CEILING / 2}, "copy_bytes_per_s": 4e12}
    journal.write({"kind": "process", "session": "s", "package_digest": "0", "ceilings": ceilings})
    for visit, case in itertools.product(range(4), list(cases)):
        line = {"kind": "visit", "session": "s", "visit": visit, "status": "ok", "reason": "", "cache": "warm"}
        line |= {name: case[name] for name in ("benchmark", "params", "clock")}
        if case.get("status"):
            line |= {"status": case["status"], "reason": case["reason"]}
        else:
            drifted = case["ms"] + case.get("drift_ms", 0.0) * (visit - 2)
            line |= {"samples_ns": [round(drifted * 1e6)] * 5, "peak_bytes": case["bytes"]}
            line |= {"facts": case["facts"]} if "facts" in case else {}
            dtype = "float32" if case["params"].get("precision") == "fp32" else "bfloat16"
            line["floor"] = {"flops": 8e12, "matmul_dtype": dtype, "bytes_read": 0, "bytes_written": 0}
        journal.write(line)
    journal.close()


def write_results(results: Path, sizes: Iterable[str], commit: str) -> dict[str, Any]:
    """Adds to asv's results of the commit that these sizes have a time; returns the benchmark, for benchmarks.json."""
    from asv.results import Results

    axes = [["small", "xl"], [512], ["bf16"], ["eager"], ["reference"], [*BUSY_MS], ["gpu_wall", "device_busy"]]
    names = ["size", "context_length", "precision", "variant", "attention", "mode", "clock"]
    name = f"{PHASES}.track_time"
    benchmark = {"name": name, "code": "", "params": [[repr(value) for value in axis] for axis in axes]}
    benchmark |= {"param_names": names, "type": "track", "unit": "seconds", "timeout": 600, "version": "1"}
    saved = Results.load(str(results / H200 / f"{commit[:8]}-linked-py3.12.json"), H200)
    values = [0.08 if cell[0] in sizes else math.nan for cell in itertools.product(*axes)]
    nothing: list[None] = [None] * len(values)
    found = {"result": values, "samples": nothing, "number": nothing, "stderr": "", "errcode": 0, "profile": None}
    saved.add_result(benchmark, SimpleNamespace(**found), started_at=datetime(2026, 1, 20, tzinfo=UTC), duration=1.0)
    saved.save(str(results))
    return {name: benchmark}


def cells(directory: Path, cases: Iterable[dict[str, Any]], commit: str = COMMIT.hash) -> list[NewestCell]:
    """What the publisher finds of them."""
    write_records(directory, cases, commit)
    return [NewestCell(result, commit) for result in read_commit(directory, H200, commit)]
