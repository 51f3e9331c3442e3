"""Communication: XXL on TPUs, and buckets."""

from perf.studies.accounting.problem import CourseProblem, closed_forms, lines_of
from perf.units import gib
from perf.workloads import measured

BANDWIDTH, OVERHEAD = 200e9, 20e-6
"""A link and a call as an example: `study ddp` puts what it measured into the same model."""


def communication_accounting() -> CourseProblem:
    """Return parts (a) to (d)."""
    mesh = closed_forms("mesh")
    stack, tpu = mesh.XXL, mesh.TPU_V5P
    states = stack.state_bytes
    least, in_turn = mesh.min_tokens(tpu), mesh.min_tokens_in_sequence(stack, tpu)
    books = mesh.min_tokens_on_the_best_mesh(stack, tpu)
    at_books = mesh.layer_seconds(stack, books, tpu)

    def devices(tokens: int) -> int:
        return int(mesh.min_devices(stack, tokens, tpu.memory_bytes))

    return CourseProblem(
        "communication_accounting",
        10,
        "2025",
        f"L = {stack.num_layers} blocks of two matrices d x f = {stack.d_model} x {stack.d_ff}; TPU v5p: C = 4.6e14 "
        "FLOP/s, W = 2 · 9e10 B/s an axis, 95 GB; X = 16 devices of FSDP over M_X = 2 axes, Y = 4 of tensor "
        "parallelism over M_Y = 1. B is the number of tokens in all.",
        lines_of(f"""
            (a) parameters | P = 2dfL | 2 · {stack.d_model} · {stack.d_ff} · {stack.num_layers} \
                | {stack.parameters:,}
            (a) master weights, and gradients as much | 4P | | {gib(4 * stack.parameters, 0)}
            (a) Adam's moments | 8P | | {gib(8 * stack.parameters, 0)}
            (a) states in all | 16P | 16 · {stack.parameters:,} | {states / 1e9:,.2f} GB = {gib(states, 0)}
            (a) kept for the backward, a token, bfloat16 | A/B = 2(d + f)L \
                | 2 · ({stack.d_model} + {stack.d_ff}) · {stack.num_layers} | {stack.kept_bytes(1):,} B
            (a) H100s of 80 GB for the states | 16P/80e9 | {states / 80e9:.2f} \
                | {mesh.min_devices(stack, 0, 80e9)}
            (b) memory of one of N devices | M(N) = (16P + A/2)/N + A/2 | \
                | < 95 GB from N = {devices(0)} (A = 0)
            (b) devices at B = 1,024 | N >= (16P + A/2)/(95e9 - A/2) | | {devices(1024)}
            (b) devices at B = 2,048 | N >= (16P + A/2)/(95e9 - A/2) | | {devices(2048)}
            (b) devices at B = 4,096 | N >= (16P + A/2)/(95e9 - A/2) | | {devices(4096)}
            (b) devices at B = 8,192 | N >= (16P + A/2)/(95e9 - A/2) | | {devices(8192)}
            (c) intensity of an axis | C/W | 4.6e14 / 1.8e11 | {tpu.intensity:,.2f} FLOP/B
            (c) tensor parallelism is hidden, whatever B | f > Y (C/W)/M_Y | 4 · {tpu.intensity:,.2f} \
                | {mesh.min_d_ff(tpu):,.0f} < {stack.d_ff}
            (c) FSDP is hidden from | B > X (C/W)/M_X | 16 · {tpu.intensity:,.2f} / 2 \
                | {least:,.0f} tokens, {least / tpu.devices:.1f} a device
            (c) both, if they took turns, from | T_math > T_FSDP + T_TP | \
                | {in_turn:,.0f} tokens, {in_turn / tpu.devices:.1f} a device
            (c) where X may be chosen for the batch, from | B > N (C/W)^2/(M_X M_Y f) \
                | 64 · {tpu.intensity:,.2f}^2 / (2 · {stack.d_ff}) \
                | {books:,.0f} tokens, {books / tpu.devices:.1f} a device
        """),
        f"(a) One device would hold {gib(states, 0)} of states, the memory of {mesh.min_devices(stack, 0, 80e9)} H100s "
        "of 80 GB.\n\n"
        "(b) FSDP divides the states and half of the activations by N; the other half stays whole on every device.\n\n"
        f"(c) On the given mesh {least / tpu.devices:.0f} tokens a device, {least:,.0f} in all. The smaller bound of "
        f"the book [1] needs X = {mesh.best_fsdp(stack, books, tpu):.1f}: with X = 16 that batch computes a layer in "
        f"{at_books['math'] * 1e3:.2f} ms and gathers its weights in {at_books['fsdp'] * 1e3:.2f} ms.\n\n"
        "(d) By B > X (C/W)/M_X, a smaller batch stays compute-bound with a smaller X, so with more tensor "
        f"parallelism, up to Y = f M_Y W/C = {stack.d_ff / tpu.intensity:.0f}, where it stops being hidden [1]; with "
        "more axes M_X for FSDP; or with fewer bytes, since weights gathered in 8 bits [2] halve the bound. Where all "
        "weights fit, ZeRO-2 [3] gathers them once for all micro-batches of a step; under FSDP micro-batches do not "
        "help, since each gathers the weights again. Sharding within a node and "
        "replicating across nodes [4] takes the slow links out of the gathers. Pipeline stages [5] move activations "
        "instead of weights, and idle for (p - 1)/(m + p - 1) of the time with p stages and m micro-batches. Sequence "
        "parallelism [6] divides what tensor parallelism leaves whole, at the same traffic: an all-reduce is a "
        "reduce-scatter and an all-gather.\n\n"
        "[1] Austin et al., How to Scale Your Model, 2025, chapter 5. [2] Wang et al., ZeRO++, 2023, arXiv 2306.10209. "
        "[3] Rajbhandari et al., ZeRO, 2020, arXiv 1910.02054. [4] Zhao et al., PyTorch FSDP, 2023, arXiv 2304.11277. "
        "[5] Huang et al., GPipe, 2019, arXiv 1811.06965; Narayanan et al., 2021, arXiv 2104.04473. [6] Korthikanti et "
        "al., Reducing Activation Recomputation in Large Transformer Models, 2022, arXiv 2205.05198.",
    )


def ddp_bucketed_benchmarking() -> CourseProblem:
    """Return part (b)."""
    buckets = closed_forms("collectives")
    num_bytes = 4 * closed_forms("compute").parameters(measured("configs", "MODEL_CONFIGS")["xl"])
    best = buckets.best_bucket_bytes(num_bytes, BANDWIDTH, OVERHEAD)

    def costs(megabytes: float) -> str:
        seconds = buckets.exposed_seconds(num_bytes, num_bytes / (megabytes * 1e6), BANDWIDTH, OVERHEAD)
        return f"{seconds * 1e3:.2f} ms" if seconds < 0.1 else f"{seconds * 1e3:.1f} ms"

    return CourseProblem(
        "ddp_bucketed_benchmarking",
        3,
        "2025",
        "xl's gradients, s = 7.993 GB in n equal buckets, over an example of a link, w = 200 GB/s and o = 20 us a "
        "call; a bucket is computed in the time in which it is sent.",
        lines_of(f"""
            (b) what communication adds: the last bucket, and every call | s/(n w) + n o
            (b) with buckets of 1 MB | n = {num_bytes / 1e6:,.1f} | | {costs(1)}
            (b) with buckets of 10 MB | n = {num_bytes / 10e6:,.1f} | | {costs(10)}
            (b) with buckets of 100 MB | n = {num_bytes / 100e6:,.1f} | | {costs(100)}
            (b) with buckets of 1000 MB | n = {num_bytes / 1000e6:,.1f} | | {costs(1000)}
            (b) best size of a bucket | sqrt(s w o) | sqrt(7.993e9 · 200e9 · 20e-6) | {best / 1e6:.1f} MB
            (b) what it costs | 2 sqrt(s o/w), n = {num_bytes / best:.1f} | | {costs(best / 1e6)}
        """),
        "Small buckets pay for calls, large ones for the last bucket, which nothing hides. If the time to compute a "
        "bucket is taken to hide the call's overhead as well, the sum falls with n and has no best size.",
    )
