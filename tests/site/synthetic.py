"""Made-up measurements in the real formats: records through the harness's journal, results through asv's own API."""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from perf.harness.journal import Journal
from tests.repositories import git

H200 = "nvidia-h200"
LAPTOP = "cpu-laptop"

GPU_AXES = {
    "seq_len": [1024, 4096, 16384],
    "d": [64, 128],
    "dtype": ["bfloat16", "float32"],
    "mode": ["forward", "backward", "forward_backward"],
    "impl": ["triton", "reference", "sdpa"],
}
CPU_AXES = {
    "seq_len": [128, 512],
    "d": [64],
    "dtype": ["float32"],
    "mode": ["forward", "forward_backward"],
    "impl": ["pytorch", "reference", "sdpa"],
}


TIME = ("track_time", "seconds")
MEMORY = ("track_peak_memory", "bytes")


@dataclasses.dataclass(frozen=True)
class Suite:
    """One machine and an attention benchmark that it measures."""

    machine: str
    benchmark: str
    axes: dict[str, list[Any]]
    gpu: bool
    methods: tuple[tuple[str, str], ...] = (TIME,)
    clock: str = "cuda_events"
    cache: str = "cold"
    slower_from: int = 99
    """Number of the commit from which on everything takes half as long again."""


GPU = Suite(H200, "attention.FlashAttention", GPU_AXES, True, (TIME, MEMORY))
SILENT = Suite("nvidia-b200", "attention.FlashAttention", GPU_AXES, True)
CPU = Suite(LAPTOP, "smoke.SmokeAttention", CPU_AXES, False, clock="wall", cache="warm")

SHORT = Suite(
    H200,
    "attention.ShortAttention",
    GPU_AXES | {"seq_len": [128, 256, 512], "dtype": ["bfloat16"]},
    True,
    clock="cuda_graph",
    cache="warm",
)
MANY_HEADS = Suite(
    H200,
    "attention.MultiHeadAttention",
    {"tokens": [32768], "d_model": [2048], "seq_len": [512, 4096, 16384], "d": [64, 128], "is_causal": [True, False]}
    | {"dtype": ["bfloat16"], "mode": ["forward", "backward"]}
    | {"impl": ["triton", "sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "flex"]},
    True,
    (TIME, MEMORY),
)
LEADERBOARD = Suite(
    H200,
    "attention.Leaderboard",
    {"num_heads": [16], "seq_len": [16384], "d": [64], "dtype": ["bfloat16"]}
    | {"impl": ["triton", "triton_compiled", "sdpa_cudnn", "sdpa_flash", "flex"]},
    True,
    (TIME, MEMORY),
    slower_from=3,
)
STEPS = ["pytorch", "pytorch_compiled_backward", "triton", "triton_forward_compiled_backward", "reference"]
VARIANTS = Suite(
    H200,
    "attention.FlashVariants",
    {"seq_len": [1024, 8192], "d": [64], "dtype": ["bfloat16", "float32"], "mode": ["backward", "forward_backward"]}
    | {"impl": [*STEPS, "reference_compiled", "sdpa"]},
    True,
    (TIME, MEMORY),
)
FIRST_CALL = Suite(
    H200,
    "attention.FirstCall",
    {"seq_len": [4096], "d": [64], "dtype": ["bfloat16"], "mode": ["forward_backward"]}
    | {"impl": ["triton", "triton_compiled", "pytorch_compiled_backward", "reference", "sdpa_flash", "flex"]},
    True,
    clock="first_call",
)
SAVED = Suite(
    H200,
    "attention.PyTorchAttentionSaved",
    {"batch": [8], "seq_len": [256, 1024, 4096], "d": [16, 32, 64], "is_causal": [False], "dtype": ["float32"]}
    | {"mode": ["before_backward"], "impl": ["reference", "reference_compiled"]},
    True,
    (MEMORY,),
)
COMPILED = dataclasses.replace(
    SAVED,
    benchmark="attention.PyTorchAttention",
    axes=SAVED.axes | {"mode": ["forward", "backward"]},
    methods=(TIME, MEMORY),
)
ALONE = Suite(
    LAPTOP,
    "smoke.SmokeLeaderboard",
    {"num_heads": [2], "seq_len": [256], "d": [32], "dtype": ["float32"], "impl": ["pytorch"]},
    False,
    clock="wall",
    cache="warm",
)
ALL = (GPU, SHORT, MANY_HEADS, LEADERBOARD, VARIANTS, FIRST_CALL, COMPILED, SAVED, CPU, ALONE)


def cases(suite: Suite) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*suite.axes.values()):
        yield dict(zip(suite.axes, values, strict=True))


def work(params: dict[str, Any]) -> tuple[float, float]:
    """FLOPs and bytes of a causal case with one head; what waits before its backward does nothing."""
    products = {"forward": 2, "backward": 5, "before_backward": 0}.get(params.get("mode", ""), 7)
    size = 2 if params["dtype"] == "bfloat16" else 4
    return (
        products * params["seq_len"] ** 2 * params["d"],
        2 * products * params["seq_len"] * params["d"] * size,
    )


def failure(params: dict[str, Any]) -> tuple[str, str]:
    """Some cases fail, as they do on a real machine."""
    if params["impl"] == "reference" and params["seq_len"] >= 65536:
        return "out_of_memory", "tried to allocate 16.00 GiB with 9.12 GiB free"
    if params["impl"] == "triton" and params == params | {"seq_len": 16384, "d": 128, "dtype": "float32"}:
        return "wrong", "out: error 0.31 above 0.02 <script>alert(1)</script>"
    if params["impl"] == "flex" and params.get("seq_len") == 512 and params.get("mode") == "backward":
        return "error", "RuntimeError: no kernel"
    if params["impl"] == "sdpa_flash" and params["dtype"] == "float32":
        return "unavailable", "FlashAttention only supports fp16 and bf16"
    return "ok", ""


def seconds(suite: Suite, params: dict[str, Any]) -> float:
    """A plausible time: a launch plus work at a rate that saturates with the length."""
    flops, _ = work(params)
    peak = {"bfloat16": 6.4e14, "float32": 2.6e14}[params["dtype"]] if suite.gpu else 2e11
    slower = {"triton": 1.0, "pytorch": 1.0, "reference": 7.0 if suite.gpu else 0.6, "sdpa": 1.15}
    saturation = params["seq_len"] / (params["seq_len"] + 9000)
    launch = {"reference": 34e-6, "triton": 7e-6}.get(params["impl"], 11e-6)
    shape = 0.75 if params["d"] == 128 and params["impl"] == "sdpa" else 1.0
    return launch + flops / (peak * saturation) * slower.get(params["impl"], 1.0) * shape


def samples_ns(suite: Suite, params: dict[str, Any], visit: int) -> list[int]:
    base = seconds(suite, params) * 1e9 * (1 + 0.004 * math.sin(3 * visit + params["d"]))
    return [round(base * (1 + 0.003 * math.sin(7 * i))) for i in range(12)]


def peak_bytes(params: dict[str, Any]) -> int:
    squares = {"reference": 2, "reference_compiled": 1}.get(params["impl"], 0)
    return round(work(params)[1]) + squares * params["seq_len"] ** 2 * 4


def session(name: str, **known: Any) -> dict[str, Any]:
    """A session's line of records: of one commit on the H200, but for what is `known` otherwise."""
    line = {"kind": "session", "id": name, "started_at": "2026-01-02T03:04:05+00:00", "day": "2026-01-02"}
    line |= {"harness": "2", "effort": "full", "machine": H200, "commit": "a" * 40, "device": {}, "software": {}}
    return line | known


def write_records(
    directory: Path,
    suite: Suite,
    commit: str,
    visits: int = 4,
    harness: str = "1",
) -> None:
    """One session, as the harness would have written it."""
    journal = Journal(directory, suite.machine, commit)
    gpu = {"name": "NVIDIA H200", "sm_count": 132, "memory_bytes": 150_110_011_392, "driver": "580.95.05"}
    identity = gpu if suite.gpu else {"name": "Some Laptop CPU", "threads": 2}
    versions = {"triton": "3.6.0", "cuda": "13.0", "cudnn": "91900"} if suite.gpu else {}
    software = {"python": "3.12.3", "torch": "2.11.0"} | versions
    where = {"machine": suite.machine, "commit": commit, "device": identity}
    journal.write(session("s1", harness=harness, software=software, **where))
    rates = {"bfloat16": 8.0e14, "float32": 3.6e14} if suite.gpu else {"float32": 3.0e11}
    ceilings = {"matmul_flops_per_s": rates, "copy_bytes_per_s": 4.2e12 if suite.gpu else 2e10}
    journal.write({"kind": "process", "session": "s1", "package_digest": "0", "ceilings": ceilings})
    for visit in range(visits):
        for params in cases(suite):
            status, reason = failure(params)
            flops, moved = work(params)
            line: dict[str, Any] = {
                "kind": "visit",
                "session": "s1",
                "benchmark": suite.benchmark,
                "params": params,
                "cache": suite.cache,
                "visit": visit,
                "status": status,
                "reason": reason,
                "clock": suite.clock,
                "floor": {"flops": flops, "matmul_dtype": params["dtype"]}
                | {"bytes_read": moved * 0.75, "bytes_written": moved * 0.25},
            }
            if status == "ok":
                line["samples_ns"] = samples_ns(suite, params, visit)
                line["peak_bytes"] = peak_bytes(params) if MEMORY in suite.methods else None
            journal.write(line)
    journal.close()


def make_repo(repo: Path, subjects: list[str]) -> list[str]:
    """A repository with one commit per subject; their hashes, oldest first."""
    repo.mkdir(parents=True)
    git(repo, "init", "--quiet", "--initial-branch=main")
    hashes = []
    for number, subject in enumerate(subjects):
        (repo / "version.txt").write_text(f"{number}\n")
        git(repo, "add", "version.txt")
        when = f"2026-01-{number + 1:02d}T12:00:00Z"
        git(repo, "commit", "--quiet", "-m", subject, "--date", when)
        hashes.append(git(repo, "rev-parse", "HEAD"))
    return hashes


def write_results(results_dir: Path, suite: Suite, commit: str, number: int) -> None:
    """What `asv run` would have left for one commit: the machine's file and the result file."""
    from asv import util
    from asv.results import Results

    params = {"machine": suite.machine, "gpu": "", "os": "Linux", "arch": "x86_64", "cpu": "", "ram": ""}
    util.write_json(str(results_dir / suite.machine / "machine.json"), params, 1)
    date = util.datetime_to_js_timestamp(datetime(2026, 1, number + 1, 12, tzinfo=UTC))
    saved = results_dir / suite.machine / f"{commit[:8]}-linked-py3.12.json"
    results = (
        Results.load(str(saved), suite.machine)
        if saved.exists()  # of another suite
        else Results(params | {"python": "3.12"}, {}, commit, date, "3.12", "linked-py3.12", {})
    )
    factor = (1.1 - 0.02 * number) * (1.5 if number >= suite.slower_from else 1.0)
    for benchmark in benchmarks(suite).values():
        timed = benchmark["unit"] == "seconds"
        rows = [(params, failure(params)[0] == "ok") for params in cases(suite)]
        samples = [
            [ns * 1e-9 * factor for ns in samples_ns(suite, params, 1)] if ok and timed else None for params, ok in rows
        ]
        found = SimpleNamespace(
            result=[float(peak_bytes(params)) if ok else math.nan for params, ok in rows],  # asv takes samples first
            samples=samples,
            number=[1 if one else None for one in samples],
            stderr="",
            errcode=0,
            profile=None,
        )
        results.add_result(benchmark, found, started_at=datetime(2026, 1, 20, tzinfo=UTC), duration=1.0)
    results.save(str(results_dir))


def benchmarks(suite: Suite) -> dict[str, dict[str, Any]]:
    """asv's description of the suite's benchmarks, as discovery finds it."""
    return {
        f"{suite.benchmark}.{method}": {
            "name": f"{suite.benchmark}.{method}",
            "code": "",
            "params": [[repr(value) for value in values] for values in suite.axes.values()],
            "param_names": list(suite.axes),
            "type": "track",
            "unit": unit,
            "timeout": 600,
            "version": "1",
        }
        for method, unit in suite.methods
    }
