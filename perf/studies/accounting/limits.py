"""Maximum number of devices for which a form of parallelism is worth it: 2026's last section."""

from perf.studies.accounting.memory import BANDWIDTH, FLOPS
from perf.studies.accounting.problem import CourseProblem, closed_forms, lines_of

D_FF, TOKENS = 10_240, 65_536
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
        lines_of(f"""
            time | (N - 1) S/W
            a ring's reduce-scatter and all-gather | 2 (N - 1)/N S/W
            over that, N = 8 | N/2 | | {ratio:g}
        """),
        "Each of the N - 1 steps sends all of S instead of one N-th of it, so it is N/2 times slower.",
    )


def data_parallel_calcs() -> CourseProblem:
    """Return parts (a) to (c)."""
    limit = closed_forms("parallelism").data_parallel_limit
    return CourseProblem(
        "data_parallel_calcs",
        3,
        "2026",
        GIVEN,
        lines_of(f"""
            (a) backward, FLOPs a device | 12 BDF/N
            (b) all-reduce of 6 DF bytes of gradients | 12 (N - 1)/N DF/W
            (c) most devices | 1 + BW/C | 1 + {TOKENS:,} · 450e9/989e12 | {limit(TOKENS, FLOPS, BANDWIDTH):.2f}
            (c) at B = 2048 | 1 + BW/C | | {limit(2048, FLOPS, BANDWIDTH):.2f}
        """),
        "(a) The backward has two matmuls for each of the three matrices, 2 BDF FLOPs each, on B/N tokens a device.\n\n"
        "(b) All three gradients are whole on each device: 6 DF bytes, which a ring all-reduce sends 2 (N - 1)/N times."
        "\n\n"
        "(c) 12 (N - 1)/N DF/W <= 12 BDF/(N C) is N - 1 <= BW/C: D and F cancel, and the number of tokens decides. At "
        "2048 two devices already wait.",
    )


def fsdp_calcs() -> CourseProblem:
    """Return parts (a) to (c)."""
    limit = closed_forms("parallelism").data_parallel_limit(TOKENS, FLOPS, BANDWIDTH)
    return CourseProblem(
        "fsdp_calcs",
        3,
        "2026",
        GIVEN,
        lines_of(f"""
            (a) FLOPs a device, forward and backward | 6 BDF/N and 12 BDF/N
            (b) forward: all-gather of the weights | 6 (N - 1)/N DF/W
            (b) backward: all-gather, reduce-scatter | 12 (N - 1)/N DF/W
            (c) most devices, both passes | 1 + BW/C | | {limit:.2f}
        """),
        "(a) Once gathered, the matmuls are those of data parallelism: one for each matrix in the forward, two in the "
        "backward, on B/N tokens.\n\n"
        "(b) The forward gathers three matrices of 2 DF bytes; the backward gathers them again and reduce-scatters as "
        "many bytes of gradients. Each is a ring of (N - 1)/N of the bytes.\n\n"
        "(c) Backward: the bytes and the FLOPs of data parallelism, so its limit. Forward: half of the bytes for half "
        "of the FLOPs, so the same limit.",
    )


def tp_calcs() -> CourseProblem:
    """Return parts (a) to (d)."""
    limit = closed_forms("parallelism").tensor_parallel_limit
    return CourseProblem(
        "tp_calcs",
        4,
        "2026",
        GIVEN + " Device i holds a slice of F of each matrix: z_i = f(x W1_i) * (x W2_i), y = all-reduce(z_i W3_i).",
        lines_of(f"""
            (a) through the last product | dz_i = dy W3_i^T, dW3_i = z_i^T dy
            (a) through the gate | dx1_i = dz_i * f'(x1_i) * x2_i, dx2_i = dz_i * f(x1_i)
            (a) weights | dW1_i = x^T dx1_i, dW2_i = x^T dx2_i
            (a) input | dx = all-reduce(dx1_i W1_i^T + dx2_i W2_i^T)
            (b) FLOPs a device, forward and backward | 6 BDF/N and 12 BDF/N
            (c) communication, each way: an all-reduce of 2 BD bytes | 4 (N - 1)/N BD/W
            (d) most devices, forward | 1 + 3FW/(2C) | | {limit(D_FF, FLOPS, BANDWIDTH, "forward"):.2f}
            (d) most devices, backward | 1 + 3FW/C | | {limit(D_FF, FLOPS, BANDWIDTH, "backward"):.2f}
        """),
        "(a) Each device differentiates its slice of F alone. x is the same on all devices, so its gradient is the sum "
        "of theirs, the one collective of the backward.\n\n"
        "(b) Every matmul has one N-th of F, so a device has one N-th of the FLOPs.\n\n"
        "(c) The forward sums y, the backward dx: B x D numbers of 2 bytes, all-reduced.\n\n"
        "(d) 4 (N - 1)/N BD/W <= 12 BDF/(N C) is N - 1 <= 3FW/C in the backward; the forward has the same bytes for "
        "half of the FLOPs, 3FW/(2C), and is the tighter one. The batch cancels: wider layers allow more devices.",
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
        lines_of(f"""
            (a) FLOPs a device | 6 BDF/(N_F N_T)
            (b) communication, overlapping | max(6 DF (N_F - 1), 4 BD (N_T - 1))/(N_F N_T W)
            (c) most devices | (1 + BW/C)(1 + 3FW/(2C)) | | {both:.1f}
            (c) about | 3 BFW^2/(2C^2) | | {3 * product / 2:.1f}
            (d) one after the other | K^2/(96 BF), K = 6 BFW/C + 6F + 4B | | {in_turn:.1f}
            (d) about | 3 BFW^2/(8C^2) | | {3 * product / 8:.1f}
        """),
        "(a) FSDP divides the tokens and tensor parallelism F, so each device has one N-th of 6 BDF.\n\n"
        "(b) FSDP gathers 6 DF/N_T bytes within its axis, and tensor parallelism all-reduces 2 BD/N_F bytes within its "
        "own. They overlap, so the longer one counts.\n\n"
        "(c) Each axis must be hidden by itself, which gives N_F <= 1 + BW/C and N_T <= 1 + 3FW/(2C), independent of "
        "each other; their product is largest where both are.\n\n"
        "(d) The sum of both has to be hidden: 6F (N_F - 1) + 4B (N_T - 1) <= 6 BFW/C, that is 6F N_F + 4B N_T <= K. A "
        "product under a bound on a sum is largest where both terms are K/2, so N_F = K/(12F), N_T = K/(8B): for large "
        "K a quarter of (c), since each axis has half of the time.",
    )
