"""Compiles every kernel of the library once for compute capability 9.0, where there is no GPU. Prints their names.

TRITON_INTERPRET=0 python -m tests.attention.every_kernel_compiled
"""

import torch

from cs336_systems.attention import gluon_plans, triton_plans
from cs336_systems.attention.hopper_tables import HOPPER_BACKWARD, HOPPER_FLOAT32, HOPPER_FORWARD
from cs336_systems.attention.request import Request
from cs336_systems.attention.tiles import AT_ONCE_TILES
from cs336_systems.cross_entropy_kernel import cross_entropy_triton_
from cs336_systems.distributed.mean_kernel import mean_triton
from cs336_systems.optimizer.adamw import AdamWRule
from cs336_systems.optimizer.adamw_kernel import adamw_update_triton
from tests.attention.hopper_compiled import compile_instead_of_launching


def main() -> None:
    """Causal, of a length that no tile divides: every branch of a kernel is compiled."""
    compiled = compile_instead_of_launching()
    lse = torch.empty(1, 2, 333)
    for d, dtype in ((64, torch.bfloat16), (128, torch.bfloat16), (64, torch.float32)):
        q = torch.empty(1, 2, 333, d, dtype=dtype)
        is_float32 = dtype == torch.float32
        request = Request(is_causal=True, scale=0.1, products="bf16x6" if is_float32 else "ieee")
        forwards = [
            triton_plans.plain_forward(request, q, q, q),
            gluon_plans.pieces_forward(request, q, q, q, HOPPER_FLOAT32[d, 3])
            if is_float32
            else gluon_plans.gluon_forward(request, q, q, q, HOPPER_FORWARD[d]),
        ]
        backwards = [
            triton_plans.plain_backward(request, q, q, q, q, q),
            gluon_plans.pieces_backward(request, q, q, q, q, q, HOPPER_FLOAT32[d, 3])
            if is_float32
            else gluon_plans.gluon_backward(request, q, q, q, q, q, HOPPER_BACKWARD[d]),
        ]
        if not is_float32:
            forwards.append(triton_plans.split_forward(request, q, q, q, 256))
            at_once = triton_plans.at_once_launch(request, q, q, q, q, q, AT_ONCE_TILES)
            at_once(q, q, q, q, q, lse, q, q, q, None)
        for forward in forwards:
            forward(q, q, q, None)
        for backward in backwards:
            backward(q, q, q, q, lse, q, None)
    x = torch.empty(4096)
    state = {"exp_avg": x, "exp_avg_sq": x, "step": torch.zeros(()), "master": x}
    rule = AdamWRule(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    adamw_update_triton(x.bfloat16(), x.bfloat16(), state, rule)
    cross_entropy_triton_(torch.empty(4, 333), torch.zeros(4, dtype=torch.int64), x, -100, True)
    mean_triton(x.bfloat16(), torch.empty(1, 4096, dtype=torch.bfloat16), torch.float32)
    print(*sorted({name for name, _ in compiled}), sep="\n")


if __name__ == "__main__":
    main()
