"""Compiling candidates: what is found of each, and that one that fails costs the others nothing."""

import json
import os
import subprocess
import sys
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import ClassVar

import torch
from triton.runtime.jit import KernelInterface

from cs336_systems.attention import gpu, hopper
from cs336_systems.attention.request import Request
from perf.studies import fresh_process
from perf.studies.attention.tiles import compiling

# A real compiler, for a GPU that need not be here; loading, which needs one, is left out.
WITHOUT_GPU = """
import json, sys
from triton.compiler.compiler import CompiledKernel
from triton.runtime import driver
from perf.studies.attention.tiles.compiling import compiled
from tests.attention.no_gpu import NoGPU

driver.set_active(NoGPU())
CompiledKernel._init_handles = lambda self: None
CompiledKernel.n_regs = CompiledKernel.n_spills = -1
print(json.dumps([compiled(one) for one in json.loads(sys.argv[1])]))
"""


class Pool:
    """A process that dies of candidate 2; `all` lists those that were started, `ended` those that were shut down."""

    all: ClassVar[list["Pool"]] = []
    ended: ClassVar[list["Pool"]] = []

    def __init__(self, module, method):
        assert module == compiling.__name__
        self.all.append(self)

    def submit(self, function, params):
        assert function.args == (compiling.compiled,)
        future = Future()
        if params == 2:
            future.set_exception(BrokenProcessPool())
        else:
            future.set_result({"status": "ok", "of": params})
        return future

    def shutdown(self, *, cancel_futures):
        self.ended.append(self)


def test_a_candidate_that_kills_its_compiler_is_a_reply_and_the_rest_go_on(monkeypatch):
    monkeypatch.setattr(fresh_process, "_pool", Pool)
    replies = list(compiling.compile_all([1, 2, 3, 4], 1))
    assert [reply.get("of") for reply in replies] == [1, None, 3, 4]
    assert replies[1]["status"] == "does_not_compile"
    assert len(Pool.all) == 2, "another process takes the place of the one that died"
    assert Pool.ended == Pool.all


def test_a_real_compiler_without_a_gpu():
    shape = {"tokens": 4096, "seq_len": 4096, "d_model": 16, "d": 16, "dtype": "bfloat16", "is_causal": True}
    params = [
        shape | {"kernel": kernel, "tiles": tiles}
        for kernel, tiles in (("dq", "24x32x4x2"), ("dq", "32x32x4x2"), ("split", "16x16x4x1x3"))
    ]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_GPU, json.dumps(params)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"TRITON_INTERPRET": "0"},
    )
    refused, taken, unavailable = json.loads(done.stdout)
    assert refused["status"] == "does_not_compile"
    assert refused["reason"].startswith("ValueError: ") and "power of 2" in refused["reason"], "the innermost cause"
    assert unavailable["status"] == "unavailable"
    assert taken == {"status": "ok", "registers": -1, "spills": -1, "shared_bytes": taken["shared_bytes"]}
    assert 0 < taken["shared_bytes"] < 99 * 2**10


def test_what_triton_prints_of_a_refused_kernel_is_not_shown(monkeypatch, capsys):
    class Refused:
        def run(self):
            print("all of its PTX")
            raise RuntimeError("ptxas refuses it")

    monkeypatch.setattr(KernelInterface, "__getitem__", KernelInterface.__getitem__)  # restored after the test
    monkeypatch.setattr(compiling, "plan_for_this_gpu", lambda: None)
    monkeypatch.setattr(compiling, "build", lambda *_: Refused())
    assert compiling.compiled({})["reason"] == "RuntimeError: ptxas refuses it"
    assert capsys.readouterr().out == ""


def test_planning_without_memory_sees_the_gpu(monkeypatch):
    """By itself "meta" has no multiprocessors and no Gluon, and other kernels would be compiled."""
    facts = {"multiprocessors": 132, "shared_bytes": 227 * 2**10, "l2_bytes": 50 * 2**20, "runs_gluon": True}
    for name, fact in facts.items():
        monkeypatch.setattr(gpu, name, lambda device, fact=fact: fact if device.type == "cuda" else 0)
    q = torch.empty(4, 16, 4096, 64, dtype=torch.bfloat16, device="meta")
    request = Request(is_causal=True, scale=0.125)
    assert not hopper.hopper_forward(request, q, q, q)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    compiling.plan_for_this_gpu.__wrapped__()
    assert hopper.hopper_forward(request, q, q, q) == hopper.HOPPER_FORWARD_MANY[64]
