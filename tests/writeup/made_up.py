"""A perf folder with rows of the distributed studies, made up in their real form."""

import json
from pathlib import Path
from typing import Any

from perf.writeup.editions import BUCKETS_MB

MACHINE = "box"
XL = {"size": "xl", "context_length": 512, "precision": "bf16", "variant": "compiled_blocks", "batch": 4}


def perf_folder(folder: Path, documents: dict[str, list[dict[str, Any]]], place: str = f"{MACHINE}-x2") -> Path:
    """`folder` with these rows by study; asv measured nothing."""
    (folder / "results").mkdir(parents=True, exist_ok=True)
    (folder / "results" / "benchmarks.json").write_text("{}")
    (folder / "studies" / "results" / MACHINE).mkdir(parents=True, exist_ok=True)
    for name, rows in documents.items():
        path = folder / "studies" / "results" / place / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document(name, rows)))
    return folder


def document(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    software = {"torch": "2.11.0", "triton": "3.6.0"}
    return {"command": f"python -m perf study {name}", "device": {"name": "GPU"}, "software": software, "rows": rows}


def ddp_row(strategy: str, bucket: float = 1, step_ms: float = 100.0, exposed_ms: float = 12.5) -> dict[str, Any]:
    facts = {"calls": 8000 // int(bucket), "bytes": 8_000_000_000}
    times = {"step_s": [step_ms / 1e3] * 3, "exposed_s": [exposed_ms / 1e3] * 3}
    axes = {"device": "cuda", "strategy": strategy, "bucket_size_mb": bucket, "world_size": 2}
    return XL | axes | times | {"status": "ok", "facts": facts}


DDP = [
    ddp_row("naive", step_ms=131.25, exposed_ms=26.25),
    ddp_row("flat"),
    ddp_row("overlapped"),
    *(ddp_row("bucketed", bucket) for bucket in BUCKETS_MB),
]

ALL_REDUCE = [
    {"device": device, "world_size": ranks, "megabytes": size, "status": "ok"}
    | {"facts": {"bytes": size * 10**6}, "samples_s": [1e-3 + size * 1e-5]}
    for device in ("cuda", "cpu")
    for ranks in (2, 4, 6)
    for size in (1, 10, 100, 1000)
]
OVERLAP = [
    XL
    | {"strategy": strategy, "rank": rank, "world_size": 2}
    | {"compute": [[0.0, 1.0]], "communication": [[start, start + 0.5]]}
    for strategy, start in (("naive", 1.0), ("overlapped", 0.75))
    for rank in (0, 1)
]
SHARDING = [
    XL
    | {"sharding": sharding, "world_size": 2, "status": "ok", "samples_s": [0.2]}
    | {"facts": {"optimizer_bytes": held, "parameter_bytes": 2**33, "after_init_bytes": 2**33}}
    | {"device": "cuda"}
    for sharding, held in (("none", 2**34), ("sharded", 2**33))
]
EQUIVALENCE = [{"strategy": "naive", "world_size": 2, "equal_on_ranks": True, "difference": 3.2e-8}]

ALL = {
    "all-reduce": ALL_REDUCE,
    "ddp": DDP,
    "overlap": OVERLAP,
    "sharding": SHARDING,
    "ddp-equivalence": EQUIVALENCE,
}
