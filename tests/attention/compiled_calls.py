"""Compile what a call of flash_attention would launch on a GPU of compute capability 9.0, where there is no GPU.

TRITON_INTERPRET=0 python -m tests.attention.compiled_calls 2x3x1x1x2048x64 [...] [--dtypes=bfloat16]

A shape is batch x query heads x heads of each key head x queries x keys x head_dim.
"""

import json
import re
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

DTYPES = ("bfloat16", "float16", "float32")


def compile_calls(shapes: list[str], dtypes: tuple[str, ...] = DTYPES) -> Iterator[dict[str, Any]]:
    """For each call: what it is, its kernels, those that load narrowly, and the compiler's error ("" if none).

    Narrow loads of head vectors have 2 bytes, or 4 in the kernel that splits float32: 8 elements are 16 bytes or more.
    """
    import torch
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    from cs336_systems.attention import gpu, launch, planning
    from cs336_systems.attention.request import Request
    from tests.attention.no_gpu import NoGPU

    driver.set_active(NoGPU())
    kernels: list[str] = []
    narrow: set[str] = set()

    def compile_only(kernel: Any, grid: Any) -> Any:
        def compiled(*arguments: Any, **constants: Any) -> None:
            kernels.append(kernel.__name__)
            ptx = kernel.warmup(*arguments, grid=grid, **constants).asm["ptx"]
            width = "b32" if kernel.__name__ == "split_kernel" else "b16"
            if re.search(rf"ld\.global(?![^;]*\.v[248])[^;]*\.{width} ", ptx):
                narrow.add(kernel.__name__)

        return compiled

    with (
        mock.patch.object(JITFunction, "__getitem__", compile_only),
        mock.patch.object(planning, "require_launchable"),
        mock.patch.object(launch, "compile_side_by_side"),
        mock.patch.object(gpu, "multiprocessors", return_value=132),
        mock.patch.object(gpu, "shared_bytes", return_value=227 * 2**10),
        mock.patch.object(gpu, "runs_gluon", return_value=True),
    ):
        for shape in shapes:
            batch, heads, group, n_q, n_k, d = map(int, shape.split("x"))
            for dtype in dtypes:
                for is_causal in (False, True):
                    q = torch.empty(batch, heads, n_q, d, dtype=getattr(torch, dtype))
                    k = torch.empty(batch, heads // group, n_k, d, dtype=q.dtype)
                    kernels.clear(), narrow.clear()
                    error = ""
                    try:
                        products = "bf16x6" if dtype == "float32" else "ieee"
                        plan = planning.Plan(Request(is_causal, None, products), q, k, k)
                        out, lse = plan.forward(q, k, k, None)
                        plan.backward(q, k, k, out, lse, q, None)
                    except Exception as reason:
                        error = f"{type(reason).__name__}: {str(reason)[-200:]}"
                    call = f"{shape} {dtype} {'causal' if is_causal else 'full'}"
                    yield {"call": call, "kernels": list(kernels), "narrow": sorted(narrow), "error": error}


if __name__ == "__main__":
    asked = [one.removeprefix("--dtypes=").split(",") for one in sys.argv[1:] if one.startswith("--dtypes=")]
    shapes = [one for one in sys.argv[1:] if not one.startswith("-")]
    for call in compile_calls(shapes, *map(tuple, asked)):
        print(json.dumps(call), flush=True)
