"""A run of real asv over twenty good cases and five bad ones: twenty numbers and five reasons, everywhere."""

import json
import textwrap

import pytest
import torch

from tests.throwaway import MACHINE, Repository

pytestmark = pytest.mark.slow
ON_GPU = torch.cuda.is_available()
GOOD = [16 * n for n in range(1, 21)]
BAD = {1001: "error", 1002: "out_of_memory", 1003: "wrong", 1004: "hung", 1005: "error" if ON_GPU else "crashed"}

BENCHMARK = f"""
    from perf.harness.suite import measure_class, reported_time

    class SmokeAttention:
        version = "1"
        timeout = 120
        negligible = (0.01, 1e-6)
        params = ({[*GOOD[:10], *BAD, *GOOD[10:]]}, [16], ["float32"], ["forward"], ["pytorch"])
        param_names = ("seq_len", "d", "dtype", "mode", "impl")
        workload, device, cache = "attention", "{"cuda" if ON_GPU else "cpu"}", "{"cold" if ON_GPU else "warm"}"
        clock = "{"cuda_events" if ON_GPU else "wall"}"

        def setup_cache(self):
            return measure_class(self)

        def track_time(self, results, seq_len, d, dtype, mode, impl):
            return reported_time(self, results, seq_len, d, dtype, mode, impl)

        track_time.unit = "seconds"
"""

# The fifth writes far outside of any allocation, after which nothing works in its process; without a GPU it dies.
PACKAGE = """
    import os, threading, torch
    from torch.nn.functional import scaled_dot_product_attention

    def poison(q):
        if not q.is_cuda:
            os.abort()
        from cs336_systems.attention.poison import poison_kernel
        poison_kernel[(1,)](q)

    class FlashAttentionPyTorch:
        @staticmethod
        def apply(q, k, v, is_causal):
            fault = q.shape[-2] - 1000
            if fault == 1:
                raise RuntimeError("planted: it raises")
            if fault == 2 and q.is_cuda:
                torch.empty(2**50, dtype=torch.int8, device=q.device)
            if fault == 2:
                raise torch.OutOfMemoryError("planted: out of memory")
            if fault == 4:
                threading.Event().wait()
            if fault == 5:
                poison(q)
            out = scaled_dot_product_attention(q[None], k[None], v[None], is_causal=is_causal)[0]
            return out + 1 if fault == 3 else out
"""
POISON = """
    import triton
    import triton.language as tl

    @triton.jit
    def poison_kernel(pointer):
        tl.store(pointer + (1 << 45), 1.0)
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = Repository(tmp_path_factory.mktemp("faults") / "repository")
    repository.write_package(axis="[]")
    (repository.folder / "perf" / "benchmarks" / "smoke.py").write_text(textwrap.dedent(BENCHMARK))
    package = repository.folder / "cs336_systems" / "attention"
    (package / "flash_pytorch.py").write_text(textwrap.dedent(PACKAGE))
    (package / "poison.py").write_text(textwrap.dedent(POISON))
    repository.commit("five faults")
    return repository


@pytest.fixture(scope="module")
def run(repository):
    return repository.asv("run", "HEAD^!", "-e", "--quick", "--machine", MACHINE, "-b", "^smoke.SmokeAttention")


def test_twenty_good_cases_have_numbers_and_five_have_their_reasons_on_file(repository, run):
    results = {
        result.params["seq_len"]: result for result in repository.case_results(repository.git("rev-parse", "HEAD"))
    }
    assert {n: results[n].status for n in GOOD} == dict.fromkeys(GOOD, "ok")
    assert {n: results[n].status for n in BAD} == BAD
    assert all(results[n].reason and "\n" not in results[n].reason for n in BAD)
    if ON_GPU:
        assert "illegal" in results[1005].reason


def test_asv_stores_twenty_numbers_and_says_the_reasons(repository, run):
    stored = repository.result(repository.git("rev-parse", "HEAD"))["results"]["smoke.SmokeAttention.track_time"]
    numbers = [value for value in json.loads(json.dumps(stored[0])) if isinstance(value, float) and value == value]
    assert len(numbers) == len(GOOD)
    assert run.returncode == 2, "some cases failed"
    for status in ("error: ", "wrong: ", "hung: "):
        assert status in run.stdout, run.stdout[-3000:]


def test_the_site_says_the_reasons(repository, run):
    assert repository.asv("publish").returncode == 0
    page = next((repository.folder / ".asv").rglob("attention.html")).read_text()
    assert "planted: it raises" in page
    assert "differs from float64" in page
    assert "36 s" in page
