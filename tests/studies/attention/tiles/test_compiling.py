"""Compiling candidates: what is found of each, and that one that fails costs the others nothing."""

import json
import os
import subprocess
import sys
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from types import SimpleNamespace

import pytest
from triton.runtime.jit import KernelInterface

from perf.studies import fresh_process
from perf.studies.attention.tiles import compiling
from perf.workloads.workload import Floor, Unavailable, Workload

# A real compiler, for a GPU that need not be here; loading, which needs one, is left out.
WITHOUT_GPU = """
import json, sys
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import CompiledKernel
from triton.runtime import driver
from perf.studies.attention.tiles.compiling import compiled

class NoGPU:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)
    def get_current_device(self):
        return 0
    def get_current_stream(self, device=0):
        return 0

driver.set_active(NoGPU())
CompiledKernel._init_handles = lambda self: None
CompiledKernel.n_regs = CompiledKernel.n_spills = -1
print(json.dumps([compiled(one) for one in json.loads(sys.argv[1])]))
"""


class Kernel:
    """As Triton's: launched it would be an error."""

    def __init__(self, shared, error=None):
        self.compiled = SimpleNamespace(metadata=SimpleNamespace(shared=shared), n_regs=shared + 1, n_spills=shared + 2)
        self.compiled._init_handles = self.load
        self.error = error

    __getitem__ = property(lambda self: KernelInterface.__getitem__.__get__(self))

    def warmup(self, *args, grid, **options):
        assert (args, grid, options) == (("x",), (3,), {"num_warps": 4})
        return self.compiled

    def load(self):
        if self.error:
            raise self.error


@pytest.fixture
def launching(monkeypatch):
    """The workload launches these kernels, or raises them."""
    monkeypatch.setattr(KernelInterface, "__getitem__", KernelInterface.__getitem__)  # so that it is put back

    def set_kernels(*kernels):
        def run():
            for kernel in kernels:
                if isinstance(kernel, Exception):
                    raise kernel
                kernel.__getitem__((3,))("x", num_warps=4)

        work = Workload(run=run, check=lambda: 0.0, floor=Floor())
        monkeypatch.setattr(compiling, "build", lambda workload, params, device: work)

    return set_kernels


def test_what_is_said_is_of_the_largest_kernel(launching):
    launching(Kernel(8), Kernel(1024), Kernel(16))
    assert compiling.compiled({}) == {"status": "ok", "registers": 1025, "spills": 1026, "shared_bytes": 1024}


def test_what_does_not_fit_or_cannot_be_is_a_reason(launching):
    launching(Kernel(8, RuntimeError("out of resource: shared memory\nmore")))
    assert compiling.compiled({}) == {
        "status": "does_not_compile",
        "reason": "RuntimeError: out of resource: shared memory",
    }
    launching(Unavailable("no multiple"))
    assert compiling.compiled({}) == {"status": "unavailable", "reason": "no multiple"}
    outer, inner = RuntimeError("at 83:12:"), ValueError("a power of 2")
    outer.__cause__ = inner
    launching(outer)
    assert compiling.compiled({}) == {"status": "does_not_compile", "reason": "ValueError: a power of 2"}


def test_one_that_the_compiler_dies_of_is_a_reply_and_the_rest_go_on(monkeypatch):
    started, ended = [], []

    class Pool:
        def submit(self, question, params):
            assert question is compiling.compiled
            done = Future()
            if params == 2:
                done.set_exception(BrokenProcessPool())
            else:
                done.set_result({"status": "ok", "of": params})
            return done

        def shutdown(self):
            ended.append(self)

    def pool(module):
        assert module == compiling.__name__
        started.append(Pool())
        return started[-1]

    monkeypatch.setattr(fresh_process, "_pool", pool)
    replies = list(compiling.compile_all([1, 2, 3, 4], 1))
    assert [reply.get("of") for reply in replies] == [1, None, 3, 4]
    assert replies[1] == {"status": "does_not_compile", "reason": "the compiler died; its output is above"}
    assert len(started) == 2, "another process takes the place of the one that died"
    assert sorted(map(id, ended)) == sorted(map(id, started))


def test_a_real_compiler_without_a_gpu():
    shape = {"tokens": 4096, "seq_len": 4096, "d_model": 16, "d": 16, "dtype": "bfloat16", "is_causal": True}
    params = [
        shape | {"kernel": kernel, "tiles": tiles} for kernel, tiles in (("dq", "24x32x4x2"), ("dq", "32x32x4x2"))
    ]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_GPU, json.dumps(params)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"TRITON_INTERPRET": "0"},
    )
    refused, taken = json.loads(done.stdout)
    assert refused["status"] == "does_not_compile"
    assert "power of 2" in refused["reason"]
    assert taken == {"status": "ok", "registers": -1, "spills": -1, "shared_bytes": taken["shared_bytes"]}
    assert 0 < taken["shared_bytes"] < 99 * 2**10
