"""What Triton's compiler makes of calls a step aside, and what its errors cost; no GPU is needed."""

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from cs336_systems.attention.flash_triton import FlashAttentionTriton
from cs336_systems.attention.planning import plans
from tests.attention.gate import Shape, assert_within_gate, exact_and_eager, make_inputs, run_flash

pytest.importorskip("triton.backends.nvidia.compiler")

FAILS, COMPILED = "CompileTimeAssertionFailure", "compiled"


def printed(module: str, *arguments: str) -> list[dict[str, str]]:
    """Lines of JSON from a module of this folder, which runs with Triton's compiler and not its interpreter."""
    found = subprocess.run(
        [sys.executable, "-m", f"tests.attention.{module}", *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"TRITON_INTERPRET": "0"},
    )
    return [json.loads(line) for line in found.stdout.splitlines() if line.startswith('{"')]


def test_a_failed_compilation_costs_its_own_call_and_no_other() -> None:
    [said] = printed("failing_compilations")
    in_threads = said.pop("in eight threads at once").split()
    assert said == {name: FAILS if name.startswith("fails") else COMPILED for name in said}
    assert in_threads == [FAILS, COMPILED, COMPILED, COMPILED] * 2


ONE_QUERY = ["2x3x1x1x64x32"]
MORE = ["2x3x1x1x2048x64", "5x8x4x1x64x16", "1x2x1x1x1x128", "2x1x1x64x1x64", "1x2x2x1x100x80", "1x1x1x2x1x16"]


@pytest.mark.parametrize(
    ("shapes", "dtypes"),
    [(ONE_QUERY, "bfloat16"), pytest.param(MORE, "", marks=pytest.mark.slow)],
    ids=["one query", "one query or one key"],
)
def test_calls_of_one_query_compile(shapes: list[str], dtypes: str) -> None:
    """A size of 1 is a constant to Triton, and of a causal loop that it folds ptxas died."""
    calls = printed("compiled_calls", *shapes, *([f"--dtypes={dtypes}"] if dtypes else []))
    assert len(calls) == 2 * len(shapes) * (len(dtypes.split(",")) if dtypes else 3)
    assert [call for call in calls if call["error"] or not call["kernels"]] == []


@pytest.mark.slow
@pytest.mark.parametrize("d", [24, 88])
def test_head_vectors_of_a_multiple_of_8_are_loaded_16_bytes_at_a_time(d: int) -> None:
    """Of one head, and of many: Triton alone sees that 16 divides a stride, and not that 8 does."""
    calls = printed("compiled_calls", f"1x1x1x1024x1024x{d}", f"2x32x1x2048x2048x{d}", "--dtypes=bfloat16,float32")
    assert len(calls) == 8
    assert [call for call in calls if call["error"] or call["narrow"]] == []


@pytest.mark.gpu  # Triton's interpreter runs one kernel at a time
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_first_calls_from_several_threads_at_once(dtype: torch.dtype) -> None:
    """Half of them of one shape, the others each of their own."""
    plans.clear()
    shapes = [Shape((1, 2), 70, 70, 48 if number % 2 else 16 + 8 * number) for number in range(8)]
    ready = threading.Barrier(len(shapes))

    def call(shape: Shape) -> None:
        q, k, v, grad_out = make_inputs(shape, dtype)
        ready.wait()
        found = run_flash(FlashAttentionTriton, q, k, v, grad_out, True)
        assert_within_gate(found, *exact_and_eager(q, k, v, grad_out, True), dtype)

    with ThreadPoolExecutor(len(shapes)) as threads:
        list(threads.map(call, shapes))
