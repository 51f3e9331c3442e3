"""One small case of each kernel, forward and backward, on a GPU: for tools that watch a process. Prints their names.

compute-sanitizer --tool memcheck python -m tests.attention.every_kernel
"""

from typing import Any

import torch

from cs336_systems.attention import hopper, tiles, triton_plans
from cs336_systems.attention.api import flash_attention
from cs336_systems.attention.gpu import runs_gluon
from cs336_systems.attention.hopper_tables import HOPPER_FORWARD
from cs336_systems.attention.launch import Launch
from cs336_systems.attention.planning import plans
from cs336_systems.attention.tiles import Tiles


def launched(n: int, d: int, dtype: torch.dtype, dropout_p: float = 0.0) -> set[str]:
    """Names of the kernels that two grouped heads of n queries took, forward and backward; no tile divides an odd n."""
    names: set[str] = set()
    call = Launch.__call__

    def noted(self: Launch, *tensors: Any) -> None:
        names.add(self.kernel.__name__)
        call(self, *tensors)

    plans.clear()
    Launch.__call__ = noted  # type: ignore[method-assign]
    try:
        q = torch.randn(1, 2, n, d, device="cuda", dtype=dtype, requires_grad=True)
        k, v = (torch.randn(1, 1, n, d, device="cuda", dtype=dtype, requires_grad=True) for _ in range(2))
        for is_causal in (False, True):
            out = flash_attention(q, k, v, is_causal, impl="triton", dropout_p=dropout_p)
            torch.autograd.grad(out, (q, k, v), torch.randn_like(out))
    finally:
        Launch.__call__ = call  # type: ignore[method-assign]
    torch.cuda.synchronize()
    return names


def main() -> None:
    """Each way that a call can go, however few its heads."""
    names: set[str] = set()

    def at_once(choice: Tiles | None) -> None:
        triton_plans.tiles_at_once = lambda q, k: choice

    def split(chunk: int | None) -> None:
        tiles.split_keys = lambda request, q, k: chunk

    for dtype, d in ((torch.float32, 32), (torch.bfloat16, 80)):
        at_once(None), split(None)
        names |= launched(203, d, dtype) | launched(203, d, dtype, 0.2)
    at_once(tiles.AT_ONCE_TILES), split(64)
    names |= launched(203, 64, torch.bfloat16)
    if runs_gluon(torch.device("cuda", torch.cuda.current_device())):
        split(None)
        hopper.HOPPER_MIN_KEYS = hopper.HOPPER_MIN_ODD_KEYS = 0
        few_tables = {entry: dict(choices) for entry, choices in hopper.HOPPER_FORWARD_FEW.items()}
        for choices in hopper.HOPPER_FORWARD_FEW.values():
            choices.clear()
        hopper.HOPPER_FLOAT32_SHORT = {}
        hopper.HOPPER_FLOAT32_PLAIN = {}
        hopper.HOPPER_NARROW_HEAD_DIM = 0
        hopper.tiles_at_once = lambda q, k: None
        hopper.HOPPER_FLOAT32_MIN_VISITED = 0
        for d in (16, 32, 80, *HOPPER_FORWARD):
            names |= launched(203, d, torch.bfloat16)
            for most in (0, 2**20):
                hopper.HOPPER_FLOAT32_ALONE = dict.fromkeys((16, 32, 64, 128), (most, most))
                names |= launched(203, d, torch.float32)
        hopper._splits_keys = lambda request, q, k: False
        for (d, is_causal), choices in few_tables.items():
            for choice in choices.values():
                hopper.HOPPER_FORWARD_FEW[d, is_causal] = {2**20: choice}
                names |= launched(203, d, torch.bfloat16)
        hopper.HOPPER_MANY = 0
        for long_keys in (2**20, 0):
            hopper.HOPPER_LONG_KEYS = hopper.HOPPER_LONG_ODD_KEYS = long_keys
            names |= launched(203, 64, torch.bfloat16)
    print(*sorted(names), sep="\n")


if __name__ == "__main__":
    main()
