"""A fault in our kernels' source is refused by the gate's measuring process; on a GPU in the Hopper kernels."""

import shutil
from pathlib import Path

import pytest
import torch

from perf.harness.case import Case
from perf.harness.worker_process import WorkerProcess

ROOT = Path(__file__).resolve().parents[2]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = {
    "cpu": {"seq_len": 64, "d": 16, "dtype": "float16"},
    "cuda": {"tokens": 4096, "d_model": 1024, "seq_len": 4096, "d": 64, "is_causal": True, "dtype": "bfloat16"},
}

FAULTS = {
    "row sum x 1.02": {
        "triton_kernels/forward.py": ("acc / kept_sum[:, None]", "acc / (1.02 * kept_sum[:, None])"),
        "gluon_kernels/forward.py": ("out = acc[i] / gl", "out = acc[i] / 1.02 / gl"),
    },
    "lse in base 2": {
        "triton_kernels/forward.py": ("tl.log2(row_sum)) * LN_2", "tl.log2(row_sum))"),
        "gluon_kernels/forward.py": ("gl.log2(row_sum)) * LN_2", "gl.log2(row_sum))"),
    },
    "delta forgotten": {"triton_kernels/common.py": ("do.to(tl.float32), 1)", "do.to(tl.float32), 1) * 0.0")},
}
"""Fault -> file in the attention package -> the right source and its replacement."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "mode", "name"),
    [
        ("row sum x 1.02", "forward", "out"),
        ("row sum x 1.02", "forward_backward", "out"),
        ("lse in base 2", "backward", "dq"),
        ("delta forgotten", "backward", "dq"),
    ],
)
def test_a_kernel_with_a_fault_is_wrong_beside_one_without(tmp_path: Path, fault: str, mode: str, name: str) -> None:
    for arm in ("base", "head"):
        shutil.copytree(ROOT / "cs336_systems", tmp_path / arm / "cs336_systems")
    for file, (right, wrong) in FAULTS[fault].items():
        path = tmp_path / "head" / "cs336_systems" / "attention" / file
        text = path.read_text()
        assert text.count(right) == 1, "the fault has its place in the kernel"
        path.write_text(text.replace(right, wrong))
    clock, cache = ("cuda_events", "cold") if DEVICE == "cuda" else ("wall", "warm")
    case = Case(
        "attention.Kernel", "attention", SHAPES[DEVICE] | {"mode": mode, "impl": "triton"}, DEVICE, clock, cache
    )  # type: ignore[arg-type]
    process = WorkerProcess(DEVICE, tmp_path / "base", tmp_path / "head")
    try:
        process.start()
        request = {"case": case.to_json(), "arms": ["base", "head"], "first": True, "ceilings": {}}
        reply = process.ask(request, 300.0)
    finally:
        process.stop()
    assert reply["base"]["status"] == "ok", reply
    assert reply["head"]["status"] == "wrong", reply
    assert name in reply["head"]["reason"] and "float64" in reply["head"]["reason"]
    assert "base_ns" not in reply
