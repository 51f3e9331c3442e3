"""Up to how many devices a form of parallelism is worth it: 2026's last section."""

from perf.studies.accounting.problem import CourseProblem, Line, closed_forms

FLOPS, BANDWIDTH, D_FF, TOKENS = 989e12, 450e9, 10_240, 65_536
GIVEN = (
    f"A feed-forward of three matrices D x F, 16 bits, rings: put in are C = 989e12 FLOP/s, W = 450e9 B/s, F = {D_FF}, "
    f"B = {TOKENS:,} tokens."
)


def alternate_ring_all_reduce() -> CourseProblem:
    """Return its time."""
    collectives = closed_forms("collectives")
    ratio = collectives.alternate_all_reduce_seconds(1.0, 8, 1.0) / collectives.all_reduce_seconds(1.0, 8, 1.0)
    return CourseProblem(
        "alternate_ring_all_reduce",
        1,
        "2026",
        "N devices pass the whole of S bytes round the ring, adding as they go.",
        (
            Line("time", "(N - 1) S/W"),
            Line("a ring's reduce-scatter and all-gather", "2 (N - 1)/N S/W"),
            Line("over that, N = 8", "N/2", "", f"{ratio:g}"),
        ),
        "Every step sends all of S instead of one N-th of it, so it is N/2 times slower.",
    )


def data_parallel_calcs() -> CourseProblem:
    """Return parts (a) to (c)."""
    limit = closed_forms("parallelism").data_parallel_limit
    return CourseProblem(
        "data_parallel_calcs",
        3,
        "2026",
        GIVEN,
        (
            Line("(a) backward, FLOPs a device", "12 BDF/N"),
            Line("(b) all-reduce of 6 DF bytes of gradients", "12 (N - 1)/N DF/W"),
            Line(
                "(c) most devices",
                "1 + BW/C",
                f"1 + {TOKENS:,} · 450e9/989e12",
                f"{limit(TOKENS, FLOPS, BANDWIDTH):.2f}",
            ),
            Line("(c) at B = 2048", "1 + BW/C", "", f"{limit(2048, FLOPS, BANDWIDTH):.2f}"),
        ),
        "Limited by communication where N - 1 > BW/C: what counts is the number of tokens, and at 2048 two devices "
        "already wait.",
    )


def fsdp_calcs() -> CourseProblem:
    """Return parts (a) to (c)."""
    limit = closed_forms("parallelism").data_parallel_limit(TOKENS, FLOPS, BANDWIDTH)
    return CourseProblem(
        "fsdp_calcs",
        3,
        "2026",
        GIVEN,
        (
            Line("(a) FLOPs a device, forward and backward", "6 BDF/N and 12 BDF/N"),
            Line("(b) forward: all-gather of the weights", "6 (N - 1)/N DF/W"),
            Line("(b) backward: all-gather, reduce-scatter", "12 (N - 1)/N DF/W"),
            Line("(c) most devices, both passes", "1 + BW/C", "", f"{limit:.2f}"),
        ),
        "The same limit as data parallelism's: the backward moves as much, and the forward half of it for half of the "
        "FLOPs.",
    )


def tp_calcs() -> CourseProblem:
    """Return parts (a) to (d)."""
    limit = closed_forms("parallelism").tensor_parallel_limit
    return CourseProblem(
        "tp_calcs",
        4,
        "2026",
        GIVEN + " Device i holds a slice of F of each matrix: z_i = f(x W1_i) * (x W2_i), y = all-reduce(z_i W3_i).",
        (
            Line("(a) through the last product", "dz_i = dy W3_i^T, dW3_i = z_i^T dy"),
            Line("(a) through the gate", "dx1_i = dz_i * f'(x1_i) * x2_i, dx2_i = dz_i * f(x1_i)"),
            Line("(a) weights", "dW1_i = x^T dx1_i, dW2_i = x^T dx2_i"),
            Line("(a) input", "dx = all-reduce(dx1_i W1_i^T + dx2_i W2_i^T)"),
            Line("(b) FLOPs a device, forward and backward", "6 BDF/N and 12 BDF/N"),
            Line("(c) communication, each way: an all-reduce of 2 BD bytes", "4 (N - 1)/N BD/W"),
            Line("(d) most devices, forward", "1 + 3FW/(2C)", "", f"{limit(D_FF, FLOPS, BANDWIDTH, 'forward'):.2f}"),
            Line("(d) most devices, backward", "1 + 3FW/C", "", f"{limit(D_FF, FLOPS, BANDWIDTH, 'backward'):.2f}"),
        ),
        "The limit does not know the batch: wider layers allow more devices, and the forward is the tighter one.",
    )


def fsdp_tp_calcs() -> CourseProblem:
    """Return parts (a) to (d)."""
    parallelism = closed_forms("parallelism")
    both = parallelism.two_dimensional_limit(TOKENS, D_FF, FLOPS, BANDWIDTH)
    in_turn = parallelism.two_dimensional_limit_in_sequence(TOKENS, D_FF, FLOPS, BANDWIDTH)
    product = TOKENS * D_FF * (BANDWIDTH / FLOPS) ** 2
    return CourseProblem(
        "fsdp_tp_calcs",
        6,
        "2026",
        GIVEN + " N_F devices of FSDP times N_T of tensor parallelism, forward.",
        (
            Line("(a) FLOPs a device", "6 BDF/(N_F N_T)"),
            Line(
                "(b) communication, overlapping",
                "max(6 DF (N_F - 1), 4 BD (N_T - 1))/(N_F N_T W)",
            ),
            Line("(c) most devices", "(1 + BW/C)(1 + 3FW/(2C))", "", f"{both:.1f}"),
            Line("(c) about", "3 BFW^2/(2C^2)", "", f"{3 * product / 2:.1f}"),
            Line("(d) one after the other", "K^2/(96 BF), K = 6 BFW/C + 6F + 4B", "", f"{in_turn:.1f}"),
            Line("(d) about", "3 BFW^2/(8C^2)", "", f"{3 * product / 8:.1f}"),
        ),
        "Each axis brings its own limit, so they multiply. Communication that takes turns leaves a quarter: each axis "
        "then has half of the time, N_F = K/(12F) and N_T = K/(8B).",
    )
