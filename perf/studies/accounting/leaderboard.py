"""The 8B training step of 2026's leaderboard, before it is measured."""

from perf.studies.accounting.memory import FLOPS
from perf.studies.accounting.problem import CourseProblem, closed_forms, lines_of
from perf.units import gib
from perf.workloads import measured

BATCH, SEQ_LEN, NUM_GPUS = 2, 32_768, 2
BEST_S, BASELINE_S = 3.837, 10.0
"""On two B200: the board's first entry, and the time that the handout expects to be beaten."""


def leaderboard() -> CourseProblem:
    """Return the size, the work and the states of a step."""
    compute, sharding = closed_forms("compute"), closed_forms("sharding")
    config = measured("configs", "ModelConfig")(4096, 11_008, 34, 32, vocab_size=151_936)
    parameters, flops = compute.parameters(config), compute.causal_step_flops(config, BATCH, SEQ_LEN)
    tokens = BATCH * SEQ_LEN
    return CourseProblem(
        "leaderboard",
        10,
        "2026",
        "L = 34 layers, d = 4096, f = 11008, 32 heads, V = 151,936; B = 2 sequences of T = 32,768, bfloat16; a step "
        "with AdamW on n = 2 GPUs.",
        lines_of(f"""
            parameters | P = 2Vd + L(4d^2 + 3df + 2d) + d | | {parameters:,}
            FLOPs of a step, half of the scores masked | 6 (P - Vd - (2L + 1)d) BT + 7 BT^2 dL | \
                | {flops / 1e15:.2f} PFLOP
            the board's best, two B200 | FLOPs/(2 · {BEST_S} s) | \
                | {flops / NUM_GPUS / BEST_S / 1e12:.0f} TFLOP/s a GPU
            the baseline of 10 s | FLOPs/(2 · 10 s) | | {flops / NUM_GPUS / BASELINE_S / 1e12:.0f} TFLOP/s a GPU
            two H200 at their data sheet's rate | FLOPs/(2 · 989e12) | | {flops / NUM_GPUS / FLOPS:.2f} s
            logits of both sequences | 2 BTV | | {gib(2 * tokens * config.vocab_size)}
            a rank's float32 states, sharded | 16P/n | \
                | {gib(sharding.state_bytes(parameters, NUM_GPUS, "parameters"))}
            a rank's inputs of all blocks, checkpointed | 2 BTdL/n | | {gib(tokens * config.d_model * 34)}
        """),
        f"Attention is {1 - 6 * compute.matmul_weights(config) * tokens / flops:.0%} of the FLOPs at this length. A "
        "rank's half of the logits takes more than the inputs of all its blocks, and its gradient as much again, so "
        "head and loss are fused and never hold them; the states are sharded and the blocks checkpointed.",
    )
