"""Memory of one device: attention, checkpointing, and the optimizer's state divided."""

from perf.studies.accounting.problem import CourseProblem, closed_forms, lines_of
from perf.units import gib, mib
from perf.workloads import measured

CARDS_GB = (24, 80, 141)
FLOPS, BANDWIDTH = 989e12, 450e9
"""Of an H100 or H200 by its data sheet: dense 16-bit FLOP/s, NVLink bytes/s out of a GPU."""

TOKENS = 4 * 512
"""Of a rank: the handout's batch and context."""

LENGTHS = (256, 1024, 4096, 8192, 16384)


def pytorch_attention() -> CourseProblem:
    """Return the memory of the largest shape."""
    attention = closed_forms("attention")
    batch, seq_len, head_dim = 8, 16384, 64
    kept = attention.course_kept_bytes(batch, seq_len, head_dim)
    fails = {
        card: [n for n in LENGTHS if attention.course_forward_peak_bytes(batch, n) > card * 1e9] for card in CARDS_GB
    }
    ratio = attention.matmul_flops(1, seq_len, head_dim) / attention.softmax_flops(1, seq_len)
    return CourseProblem(
        "pytorch_attention",
        2,
        "2025 and 2026",
        f"Eager attention, float32, batch {batch}, seq_len T = {seq_len}, head dimension d = {head_dim}, no heads.",
        lines_of(f"""
            one T x T matrix | 4 BT^2 | 4 · 8 · {seq_len}^2 | {gib(attention.scores_bytes(batch, seq_len))}
            kept for the backward, the course's softmax | 2 · 4 BT^2 + 12 BTd + 12 BT \
                | 2 · 4 · 8 · {seq_len}^2 + 12 · 8 · {seq_len} · {head_dim} + 12 · 8 · {seq_len} | {gib(kept)}
            the same with torch.softmax, which keeps its result alone | 4 BT^2 + 12 BTd | \
                | {gib(attention.kept_bytes(batch, seq_len, head_dim))}
            peak of the forward, four T x T matrices alive | 16 BT^2 | 16 · 8 · {seq_len}^2 \
                | {gib(attention.course_forward_peak_bytes(batch, seq_len))}
            kept by flash attention: q, k, v, out and the log-sum-exp | 16 BTd + 4 BT \
                | 16 · 8 · {seq_len} · {head_dim} + 4 · 8 · {seq_len} \
                | {mib(attention.flash_kept_bytes(batch, seq_len, head_dim), 1)}
            FLOPs of the products over those of softmax | 4 T^2 d / 5 T^2 | 4 · {head_dim} / 5 | {ratio:.1f}
        """),
        "Of the course's lengths "
        + "; ".join(
            f"{', '.join(map(str, lengths))} does not fit {card} GB" if lengths else f"all fit {card} GB"
            for card, lengths in fails.items()
        )
        + ". What is kept grows with T^2, whatever d is; flash attention keeps no T x T matrix.",
    )


def gradient_checkpointing() -> CourseProblem:
    """Return part (a), and the closed form of (b): blocks in a segment."""
    checkpointing, big = closed_forms("checkpointing"), measured("configs", "MODEL_CONFIGS")["2.7B"]
    blocks, block = 32, 3651.3125 * 2**20
    given = closed_forms("kept").residual_stream_bytes(big, 4, 2048)
    best = checkpointing.best_segment(blocks, block, given)

    forwards = checkpointing.block_forwards

    def peak(segment: float) -> str:
        return mib(checkpointing.segment_peak_bytes(blocks, block, given, segment))

    return CourseProblem(
        "gradient_checkpointing",
        4,
        "2026",
        f"N = {blocks} blocks of d = 2560, batch 4, context 2048. A compiled block keeps R = 3651.3 MiB (the course's "
        "figure, for 16 heads), its input takes a = 80 MiB.",
        lines_of(f"""
            (b) best number of blocks in a segment | sqrt(N a/R) | sqrt({blocks} · 80 / 3651.3) \
                | {(blocks * given / block) ** 0.5:.2f}, so {best}
            (b) peak with 0.5 blocks a segment | (N/k) a + k R | {blocks}/0.5 · 80 + 0.5 · 3651.3 | {peak(0.5)}
            (b) peak with 1 block a segment | (N/k) a + k R | {blocks}/1 · 80 + 1 · 3651.3 | {peak(1)}
            (b) peak with 2 blocks a segment | (N/k) a + k R | {blocks}/2 · 80 + 2 · 3651.3 | {peak(2)}
            (b) peak with 4 blocks a segment | (N/k) a + k R | {blocks}/4 · 80 + 4 · 3651.3 | {peak(4)}
            (b) peak without checkpoints | N R | {blocks} · 3651.3 | {mib(blocks * block)}
            (a) forwards of blocks, each block a checkpoint, N = 8 | 2N | | {forwards(8, "single")}
            (a) forwards of blocks, halves of halves, N = 8 | N (log2 N + 3)/2 | | {forwards(8, "binary")}
            (a) forwards of blocks, all before a block in one checkpoint, N = 8 | N(N + 1)/2 | | {forwards(8, "left")}
        """),
        "(a) Least memory has each block run on a checkpoint of all blocks before it: f(k, x) = x if k == 0 else "
        "block_k(checkpoint(f, k - 1, x)). All checkpoints keep the same x, and the backward has one block's residuals "
        "at a time, so the peak is R + O(a), whatever N is. To get the input of block k again takes k - 1 forwards, "
        "O(N^2) in all. Halves of halves cost R + O(a log N) and O(N log N) of compute, checkpoints of single blocks "
        "R + N a and one more forward.\n\n"
        "(b) Without nesting, k blocks a segment keep N/k inputs and the residuals of k blocks. R is 46 a, so the "
        "optimum is below 1: each block is a segment. Two blocks a segment need 1.4 times as much. Half a block would "
        "save half of R and add N inputs; even with equal halves that is more.",
    )


def optimizer_state_sharding_accounting(size: str = "xl") -> CourseProblem:
    """Return parts (a) and (c) for the size that a handout calls xl; (b), the time, is measured."""
    sharding, compute, configs = closed_forms("sharding"), closed_forms("compute"), measured("configs", "MODEL_CONFIGS")
    parameters = compute.parameters(configs[size])
    divided = sharding.states_by_phase(parameters, 2, "moments")
    return CourseProblem(
        "optimizer_state_sharding_accounting",
        5,
        "2025 and 2026",
        f"{size}, P = {parameters:,}, float32, Adam, n = 2 ranks. Activations come on top.",
        lines_of(f"""
            (a) after the model is made | 4P | 4 · {parameters:,} | {gib(divided["after init"], 3)}
            (a) before the first optimizer step, without moments yet | 8P, with the gradients | \
                | {gib(divided["before step"], 3)}
            (a) after it, and around every later one, sharded | 8P + 8P/n | | {gib(divided["after step"], 3)}
            (a) the same, whole | 16P | | {gib(sharding.state_bytes(parameters, 2, "nothing"), 3)}
            (c) elements sent in a step, the course's form | 3P: all-reduce 2P, broadcasts P | \
                | {sharding.exchanged_elements(parameters, "moments", reduces_gradients=False):,}
            (c) elements sent in a step, ZeRO-1 | 2P: reduce-scatter P, all-gather P | \
                | {sharding.exchanged_elements(parameters, "moments"):,}
        """),
        "(a) On two ranks a quarter of the states is saved, and on many at most half of them, the moments.\n\n"
        "(c) ZeRO's P_os (Rajbhandari et al. 2020) divides the same states, and float32 masters, which are the "
        "parameters here. It divides them as equal flat parts instead of whole parameters, so that no rank has more "
        "than another. It reduces each gradient to its owner alone and gathers the parameters after the step, 2P "
        "elements, where the course's all-reduce and broadcasts send 3P.",
    )


def fsdp_accounting() -> CourseProblem:
    """Return part (a), and the closed form of (b), whose timings are measured."""
    parallelism = closed_forms("parallelism")
    sharding, compute, configs = closed_forms("sharding"), closed_forms("compute"), measured("configs", "MODEL_CONFIGS")
    big = configs["2.7B"]
    parameters = compute.parameters(big)
    gather_s = parallelism.fsdp_seconds(big.d_model, big.d_ff, 2, BANDWIDTH, "forward")
    math_s = parallelism.math_seconds(2 * TOKENS, big.d_model, big.d_ff, 2, FLOPS, "forward")
    hidden = closed_forms("fully_sharded").tokens_that_hide
    tokens = hidden(2, 2, FLOPS, BANDWIDTH)
    moments, everything, nothing = (
        sharding.state_bytes(parameters, 2, divided) for divided in ("moments", "parameters", "nothing")
    )
    return CourseProblem(
        "fsdp_accounting",
        5,
        "2026",
        f"The handout's xl (2.7B here), P = {parameters:,}, float32, Adam, n = 2 ranks, without gather buffers.",
        lines_of(f"""
            (a) a rank with everything divided | 16P/n | | {gib(everything)}
            (a) with the optimizer's state divided | 8P + 8P/n | | {gib(moments)}
            (a) with nothing divided | 16P | | {gib(nothing)}
            (a) saved against the sharded optimizer | 8P (1 - 1/n) | 4 · {parameters:,} | {gib(moments - everything)}
            (b) gather of a block's SwiGLU, 16 bits | 6 (n - 1)/n DF/W | | {gather_s * 1e3:.3f} ms
            (b) its matmuls in the forward | 6 BDF/(n C) | | {math_s * 1e3:.3f} ms
            (b) least tokens of a rank | (n - 1)/n C/W | | {tokens:,.0f}
        """),
        "(a) Gradients and parameters are divided too, so on two ranks 4 bytes a parameter are saved; the RMSNorms' "
        "weights stay whole. It costs a third collective of P elements a step.\n\n"
        "(b) By the closed form, yes: with batch 4 and context 512 on each rank, at the data sheet's W = 450e9 B/s and "
        f"C = 989e12 FLOP/s, the gather of a SwiGLU takes {gather_s / math_s:.2f} of the time of its matmuls, and it "
        f"starts a layer ahead. From {tokens:,.0f} tokens on, a rank's forward hides its gathers, and its backward its "
        "gathers and its gradients, which are sent in 16 bits and summed in float32. Real matmuls are slower than C, "
        "which leaves them more time; the first layers have nothing to hide behind.",
    )
