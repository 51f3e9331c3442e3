"""Made-up measurements over several ranks that follow the closed forms, as `steps.write_records` takes them."""

from typing import Any

from perf.site.distributed.rows import FULLY_SHARDED, SHARDING, STRATEGIES, SWEEPS

GRADIENTS = 8e9
BANDWIDTH, OVERHEAD = 200e9, 20e-6
CALLS = {1: 400, 10: 386, 25: 190, 100: 80, 1000: 8}
"""Of ours by MiB: 1 and 10 cut nearly alike, as where matrices are larger than both."""

AXES = {"size": "xl", "context_length": 1024, "batch": 16, "precision": "bf16", "variant": "compiled_blocks"}
AXES |= {"world_size": 2}
NO_GPUS = {"status": "unavailable", "reason": "needs 4 GPUs, 2 are here <script>alert(1)</script>", "ms": 0, "bytes": 0}


def strategy(
    name: str, mode: str, ms: float, *, bucket: float = 25, benchmark: str = STRATEGIES[0], **more: Any
) -> Any:
    """A case of one strategy in one mode."""
    params = {"strategy": name, "bucket_size_mb": bucket, **AXES, "mode": mode} | more.pop("params", {})
    calls = {"naive": 435, "overlapped": 435, "flat": 1}.get(name, CALLS.get(int(bucket), 190))
    facts = {"parameter_bytes": GRADIENTS} | ({} if name == "torch" else {"calls": calls, "bytes": GRADIENTS})
    case = {"benchmark": benchmark, "params": params, "clock": "ranks", "ms": ms, "bytes": 40 * 2**30, "facts": facts}
    return case | {"drift_ms": 0.1} | more


def strategies() -> list[dict[str, Any]]:
    """Four and torch's: the step, and of it what nothing hides; and the same on more ranks than there are GPUs."""
    cases = []
    for name, step, exposed in (
        ("naive", 130.0, 26.0),
        ("flat", 128.0, 24.0),
        ("overlapped", 106.0, 2.0),
        ("bucketed", 105.0, 1.05),
        ("torch", 107.1, -0.5),
    ):
        cases += [strategy(name, "step", step), strategy(name, "exposed", exposed)]
        cases += [strategy(name, mode, 0, params={"world_size": 4}) | NO_GPUS for mode in ("step", "exposed")]
    return cases


def model_ms(calls: float) -> float:
    """By the course's model."""
    return 1e3 * (GRADIENTS / (calls * BANDWIDTH) + calls * OVERHEAD)


def sweep() -> list[dict[str, Any]]:
    """Bucket sizes of ours, which follow the model, and torch's."""
    cases = []
    for bucket, calls in CALLS.items():
        for name, exposed in (("bucketed", model_ms(calls)), ("torch", 1.2 * model_ms(calls))):
            for mode, ms in (("exposed", exposed), ("step", 100 + exposed)):
                cases.append(strategy(name, mode, ms, bucket=bucket, benchmark=SWEEPS[0]))
    return cases


def collectives(benchmark: str = "collectives.AllReduce") -> list[dict[str, Any]]:
    """Two ranks at 100 GB/s of algbw and four at 50."""
    return [
        {
            "benchmark": benchmark,
            "params": {"world_size": world_size, "megabytes": megabytes},
            "clock": "ranks",
            "ms": megabytes * 1e6 / (200e9 / world_size) * 1e3,
            "bytes": 0,
            "facts": {"bytes": megabytes * 10**6},
        }
        for world_size in (2, 4)
        for megabytes in (1, 1000)
    ]


def sharding() -> list[dict[str, Any]]:
    """Of a model of P parameters, whole and divided by two; peaks above the closed form by two GiB of activations."""
    parameters, activations = 1_998_235_200, 2**31
    cases = []
    for name, ms, states, moments in (
        ("none", 100.0, 16, 8),
        ("sharded", 120.0, 12, 4),
        ("sharded_reducing", 110.0, 12, 4),
        ("torch", 125.0, 12, 4.4),
    ):
        facts = {"parameter_bytes": 4 * parameters, "optimizer_bytes": moments * parameters}
        facts |= {"after_init_bytes": 4 * parameters, "before_step_bytes": states * parameters + activations}
        facts |= {"after_step_bytes": states * parameters + activations + 2**20}
        facts |= {} if name in ("none", "torch") else {"communicated_bytes": 4 * parameters}
        params = {"sharding": name, **AXES, "context_length": 512}
        cases.append(
            {"benchmark": SHARDING[0], "params": params, "clock": "ranks", "ms": ms, "bytes": 1, "facts": facts}
        )
    return cases


def fully_sharded() -> list[dict[str, Any]]:
    """Of the same model on two ranks, which move the bytes of the closed forms."""
    weights, head = 1_998_080_000, 16_000_000
    cases = []
    for name, step, exposed in (("prefetch_0", 130.0, 26.0), ("prefetch_2", 104.0, 2.6), ("torch", 107.12, 4.0)):
        facts = {"after_init_bytes": 2**33, "before_step_bytes": 2**35, "after_step_bytes": 2**34}
        if name != "torch":
            again = 2 * head if name == "prefetch_2" else head
            facts |= {"gathered_bytes": 2 * (2 * weights - again), "scattered_bytes": 2 * weights}
        for mode, ms in (("step", step), ("exposed", exposed)):
            params = {"sharding": name, "compute_dtype": "bfloat16", **AXES, "mode": mode}
            case = {"benchmark": FULLY_SHARDED[0], "params": params, "clock": "ranks", "ms": ms, "bytes": 1}
            cases.append(case | {"facts": facts, "drift_ms": 0.1})
    return cases


def everything() -> list[dict[str, Any]]:
    """All of it."""
    return [*strategies(), *sweep(), *collectives(), *sharding(), *fully_sharded()]
