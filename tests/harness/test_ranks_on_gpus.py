"""Cases on two GPUs, with NCCL: every strategy is right, also as a CUDA graph, and a fault leaves no memory behind."""

import time
from pathlib import Path

import pytest
import torch

from perf.harness.case import Case
from perf.harness.measure import Worker
from perf.harness.ranks import Ranks

ROOT = Path(__file__).parents[2]
MODEL = {"size": "tiny", "context_length": 64, "batch": 4, "precision": "bf16", "variant": "eager", "world_size": 2}
STEP = MODEL | {"strategy": "bucketed", "bucket_size_mb": 0.1, "mode": "step"}
CEILINGS = {"matmul_flops_per_s": {"bfloat16": 1e15}, "copy_bytes_per_s": 1e13}

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs 2 GPUs")]


@pytest.fixture(scope="module")
def worker():
    made = Worker("cuda", ROOT)
    yield made
    made._pool.close()


def answer(worker, workload, params):
    case = Case("a.Test", workload, params, "cuda", "ranks", "warm")
    return worker.answer({"case": case.to_json(), "first": True, "stop": {"max_samples": 3}, "ceilings": CEILINGS})


@pytest.mark.parametrize("mode", ["step", "exposed"])
@pytest.mark.parametrize("variant", ["eager", "compiled_blocks", "cuda_graph"])
@pytest.mark.parametrize("strategy", ["naive", "flat", "overlapped", "bucketed"])
def test_every_strategy_is_right(worker, strategy, variant, mode):
    found = answer(worker, "data_parallel", STEP | {"strategy": strategy, "variant": variant, "mode": mode})
    assert found["status"] == "ok", found
    assert found["facts"]["bytes"] == found["facts"]["parameter_bytes"]
    assert found["peak_bytes"] > 3 * found["facts"]["parameter_bytes"]


@pytest.mark.parametrize("strategy", ["torch", "torch_static"])
def test_what_ours_is_compared_with_is_right(worker, strategy):
    found = answer(worker, "data_parallel", STEP | {"strategy": strategy, "mode": "exposed"})
    assert found["status"] == "ok", found


@pytest.mark.parametrize("sharding", ["none", "sharded", "sharded_reducing", "torch"])
def test_every_sharding_takes_adamws_step(worker, sharding):
    found = answer(worker, "sharded_optimizer", MODEL | {"sharding": sharding})
    assert found["status"] == "ok", found


def test_a_large_all_reduce_is_right(worker):
    assert answer(worker, "collectives", {"world_size": 2, "megabytes": 100})["status"] == "ok"


@pytest.mark.parametrize("strategy", ["overlapped", "torch"])
def test_communication_is_told_from_compute(strategy):
    ranks = Ranks("cuda", 2, ROOT)
    try:
        ranks.build(Case("a.Test", "data_parallel", STEP | {"strategy": strategy}, "cuda", "ranks", "warm")).run()
        for spans in ranks.spans():
            assert min(len(spans["compute"]), len(spans["communication"])) > 0
    finally:
        ranks.close()


def test_a_killed_rank_leaves_no_memory_behind_and_the_next_case_is_measured(worker):
    assert answer(worker, "data_parallel", STEP)["status"] == "ok"
    held = [free_bytes(gpu) for gpu in range(2)]
    worker._pool.ranks._processes[1].kill()
    found = answer(worker, "data_parallel", STEP)
    assert found["status"] == "error" and "SIGKILL" in found["reason"]
    deadline = time.monotonic() + 30  # the driver takes back what a killed process held
    while not all(free_bytes(gpu) > before + 2**28 for gpu, before in enumerate(held)):  # a context is as much
        assert time.monotonic() < deadline, "memory of a dead rank is still held"
    assert answer(worker, "data_parallel", STEP)["status"] == "ok"


def free_bytes(gpu):
    return torch.cuda.mem_get_info(gpu)[0]
