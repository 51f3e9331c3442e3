"""What the compiler makes of the kernels in Gluon for compute capability 9.0, where there is no GPU.

TRITON_INTERPRET=0 python -m tests.attention.hopper_compiled 64 bfloat16|float16|float32
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def compile_instead_of_launching() -> list[tuple[str, Any]]:
    """From now on a launch compiles for 9.0 and does no more: names of kernels and what became of them."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    from tests.attention.no_gpu import NoGPU

    driver.set_active(NoGPU())
    compiled: list[tuple[str, Any]] = []

    def compile_only(kernel: Any, grid: Any) -> Any:
        return lambda *args, **kwargs: compiled.append((kernel.__name__, kernel.warmup(*args, grid=grid, **kwargs)))

    JITFunction.__getitem__ = compile_only
    return compiled


def resources(d: int, dtype: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each launch in words, and its registers, bytes of spill stores, shared bytes, and whether wgmma is serialized."""
    import torch

    compiled = compile_instead_of_launching()

    from cs336_systems.attention.gluon_plans import gluon_backward, gluon_forward, pieces_backward, pieces_forward
    from cs336_systems.attention.hopper import tile_columns
    from cs336_systems.attention.hopper_tables import (
        HOPPER_BACKWARD,
        HOPPER_FLOAT32,
        HOPPER_FORWARD,
        HOPPER_FORWARD_FEW,
        HOPPER_FORWARD_LONG,
        HOPPER_FORWARD_MANY,
        HOPPER_FORWARD_PING_PONG,
    )
    from cs336_systems.attention.request import Request

    padded = tile_columns(torch.empty(d, dtype=getattr(torch, dtype)))
    if dtype != "float32":
        plans = gluon_forward, gluon_backward
        tables = {
            "": HOPPER_FORWARD,
            "many tiles ": HOPPER_FORWARD_MANY,
            "long ": HOPPER_FORWARD_LONG,
            "ping-pong ": HOPPER_FORWARD_PING_PONG,
        }
        forwards = {name: table[padded] for name, table in tables.items() if padded in table}
        few = {
            mask: {f"{n} tiles ": how for n, how in HOPPER_FORWARD_FEW[padded, mask].items()} for mask in (False, True)
        }
        backwards: dict[str, Any] = {"": HOPPER_BACKWARD[padded]}
    else:
        plans = pieces_forward, pieces_backward
        backwards = {f"{pieces} pieces ": HOPPER_FLOAT32[padded, pieces] for pieces in (2, 3)}
        alone = {f"{name}alone ": how._replace(consumers=1) for name, how in backwards.items()}
        forwards = backwards | alone
        few = {False: {}, True: {}}

    ungrouped = ((True, 512, 1, 1), (True, 333, 1, 1), (False, 512, 1, 1), (False, 333, 1, 1))
    for is_causal, n, group, splits in (*ungrouped, (True, 512, 2, 1), (True, 512, 2, 2), (False, 333, 1, 3)):
        q = torch.empty(1, 2, n, d, dtype=getattr(torch, dtype))
        k = torch.empty(1, 2 // group, n, d, dtype=q.dtype)
        lse = torch.empty(1, 2, n)
        request = Request(is_causal, 0.1)
        launches = [
            *((name, plans[0](request, q, k, k, how), (q, k, k)) for name, how in (forwards | few[is_causal]).items()),
            *(
                (name, plans[1](request, q, k, k, q, q, how._replace(splits=splits)), (q, k, k, q, lse, q))
                for name, how in backwards.items()
            ),
        ]
        for variant, launch, tensors in launches:
            launch(*tensors, None)
            for name, kernel in compiled:
                if "hopper" in name:
                    mask = "causal" if is_causal else "full"
                    yield f"{name} {variant}{n} {mask} group {group} in {splits}", _resources(kernel)
            compiled.clear()


def _resources(kernel: Any) -> dict[str, Any]:
    from triton.backends.nvidia.compiler import get_ptxas

    with tempfile.TemporaryDirectory() as folder:
        ptx = Path(folder) / "kernel.ptx"
        ptx.write_text(kernel.asm["ptx"])
        command = [get_ptxas(90).path, "-v", "--gpu-name", "sm_90a", str(ptx), "-o", str(ptx.with_suffix(".cubin"))]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return {
        "registers": max(int(one) for one in re.findall(r"Used (\d+) registers", said)),
        "spilled_bytes": sum(int(one) for one in re.findall(r"(\d+) bytes spill stores", said)),
        "shared_bytes": kernel.metadata.shared,
        "serialized": "serializ" in said,
    }


if __name__ == "__main__":
    print(json.dumps(dict(resources(int(sys.argv[1]), sys.argv[2]))))
