"""Compiles every kernel of the library once for compute capability 9.0, where there is no GPU. Prints their names.

TRITON_INTERPRET=0 python -m tests.attention.every_kernel_compiled
"""

import torch

from cs336_systems.attention import flash_float32, flash_hopper, flash_plain
from cs336_systems.attention.flash_plain import Options
from cs336_systems.attention.tile_choices import AT_ONCE_TILES, HOPPER_BACKWARD, HOPPER_FLOAT32, HOPPER_FORWARD
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
        options = Options(is_causal=True, scale=0.1, input_precision="bf16x6" if is_float32 else "ieee")
        forwards = [
            flash_plain.plan_forward(q, q, q, options),
            flash_float32.plan_forward(q, q, q, options, HOPPER_FLOAT32[d, 3])
            if is_float32
            else flash_hopper.plan_forward(q, q, q, options, HOPPER_FORWARD[d]),
        ]
        backwards = [
            flash_plain.plan_backward(q, q, q, q, q, options),
            flash_float32.plan_backward(q, q, q, q, q, options, HOPPER_FLOAT32[d, 3])
            if is_float32
            else flash_hopper.plan_backward(q, q, q, q, q, options, HOPPER_BACKWARD[d]),
        ]
        if not is_float32:
            forwards.append(flash_plain.plan_split_forward(q, q, q, options, 256))
            at_once = flash_plain.launch_at_once(q, q, q, q, q, options, AT_ONCE_TILES)
            at_once(q, q, q, q, q, lse, q, q, q, None)
        for forward in forwards:
            forward(q, q, q, None)
        for backward in backwards:
            backward(q, q, q, q, lse, q, None)
    x = torch.empty(4096)
    state = {"exp_avg": x, "exp_avg_sq": x, "step": torch.zeros(()), "master": x}
    rule = AdamWRule(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    adamw_update_triton(x.bfloat16(), x.bfloat16(), state, rule)
    print(*sorted({name for name, _ in compiled}), sep="\n")


if __name__ == "__main__":
    main()
