"""Memory of one device: attention, checkpointing, and the optimizer's state divided."""

from perf.studies.accounting.problem import CourseProblem, Line, closed_forms
from perf.units import gib, mib
from perf.workloads import measured

CARDS_GB = (24, 80, 141)
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
        (
            Line("one T x T matrix", "4 BT^2", f"4 · 8 · {seq_len}^2", gib(attention.scores_bytes(batch, seq_len))),
            Line(
                "kept for the backward, the course's softmax",
                "2 · 4 BT^2 + 12 BTd + 12 BT",
                f"2 · 4 · 8 · {seq_len}^2 + 12 · 8 · {seq_len} · {head_dim} + 12 · 8 · {seq_len}",
                gib(kept),
            ),
            Line(
                "the same with torch.softmax, which keeps its result alone",
                "4 BT^2 + 12 BTd",
                "",
                gib(attention.kept_bytes(batch, seq_len, head_dim)),
            ),
            Line(
                "peak of the forward, four T x T matrices alive",
                "16 BT^2",
                f"16 · 8 · {seq_len}^2",
                gib(attention.course_forward_peak_bytes(batch, seq_len)),
            ),
            Line(
                "kept by flash attention: q, k, v, out and the log-sum-exp",
                "16 BTd + 4 BT",
                f"16 · 8 · {seq_len} · {head_dim} + 4 · 8 · {seq_len}",
                mib(attention.flash_kept_bytes(batch, seq_len, head_dim), 1),
            ),
            Line(
                "FLOPs of the products over those of softmax", "4 T^2 d / 5 T^2", f"4 · {head_dim} / 5", f"{ratio:.1f}"
            ),
        ),
        "Of the course's lengths "
        + "; ".join(
            f"{', '.join(map(str, lengths))} does not fit {card} GB" if lengths else f"all fit {card} GB"
            for card, lengths in fails.items()
        )
        + ". What is kept grows with T^2, whatever d is; flash attention keeps no T x T matrix.",
    )


def gradient_checkpointing() -> CourseProblem:
    """Return part (b): blocks in a segment."""
    checkpointing, big = closed_forms("checkpointing"), measured("configs", "MODEL_CONFIGS")["2.7B"]
    blocks, block = 32, 3651.3125 * 2**20
    given = closed_forms("kept").residual_stream_bytes(big, 4, 2048)
    best = checkpointing.best_segment(blocks, block, given)

    def peak(segment: int) -> Line:
        return Line(
            f"peak with {segment} block{'s' if segment > 1 else ''} a segment",
            "(N/k) a + k R",
            f"{blocks}/{segment} · 80 + {segment} · 3651.3",
            mib(checkpointing.segment_peak_bytes(blocks, block, given, segment)),
        )

    return CourseProblem(
        "gradient_checkpointing",
        4,
        "2026",
        f"N = {blocks} blocks of d = 2560, batch 4, context 2048. A compiled block keeps R = 3651.3 MiB (the course's "
        "figure, for 16 heads), its input takes a = 80 MiB.",
        (
            Line(
                "best number of blocks in a segment",
                "sqrt(N a/R)",
                f"sqrt({blocks} · 80 / 3651.3)",
                f"{(blocks * given / block) ** 0.5:.2f}, so {best}",
            ),
            peak(1),
            peak(2),
            peak(4),
            Line("peak without checkpoints", "N R", f"{blocks} · 3651.3", mib(blocks * block)),
            *(
                Line(
                    f"forwards of blocks, {words}, N = 8",
                    formula,
                    "",
                    str(checkpointing.block_forwards(8, nesting)),
                )
                for nesting, words, formula in (
                    ("single", "each block a checkpoint", "2N"),
                    ("binary", "halves of halves", "N log2 N"),
                    ("left", "all before a block in one checkpoint", "N(N + 1)/2"),
                )
            ),
        ),
        "(a) Least memory: f_k(x) = block_k(checkpoint(f_{k-1}, x)), whose checkpoints all keep the same x: R + O(a), "
        "for O(N^2) of compute. Halves of halves: R + O(a log N) for O(N log N). (b) One block a segment is best, as a "
        "block keeps far more than its input; the next size up needs 1.4 times as much.",
    )


def optimizer_state_sharding_accounting() -> CourseProblem:
    """Return parts (a) and (c); (b), the time, is measured."""
    sharding, compute, configs = closed_forms("sharding"), closed_forms("compute"), measured("configs", "MODEL_CONFIGS")
    parameters = compute.parameters(configs["xl"])
    divided = sharding.states_by_phase(parameters, 2, "moments")
    return CourseProblem(
        "optimizer_state_sharding_accounting",
        5,
        "2025 and 2026",
        f"xl, P = {parameters:,}, float32, Adam, n = 2 ranks. Activations come on top.",
        (
            Line("(a) after the model is made", "4P", f"4 · {parameters:,}", gib(divided["after init"], 3)),
            Line(
                "(a) before the first optimizer step, without moments yet",
                "8P, with the gradients",
                "",
                gib(divided["before step"], 3),
            ),
            Line("(a) after it, and around every later one, sharded", "8P + 8P/n", "", gib(divided["after step"], 3)),
            Line("(a) the same, whole", "16P", "", gib(sharding.state_bytes(parameters, 2, "nothing"), 3)),
            Line(
                "(c) elements sent in a step, the course's form",
                "3P: all-reduce 2P, broadcasts P",
                "",
                f"{sharding.exchanged_elements(parameters, 'moments', reduces_gradients=False):,}",
            ),
            Line(
                "(c) elements sent in a step, ZeRO-1",
                "2P: reduce-scatter P, all-gather P",
                "",
                f"{sharding.exchanged_elements(parameters, 'moments'):,}",
            ),
        ),
        "(a) On two ranks a quarter of the states is saved, and on many at most half of them, the moments.\n\n"
        "(c) ZeRO's P_os (Rajbhandari et al. 2020) divides the same states, and float32 masters, which are the "
        "parameters here. It divides them as equal flat parts instead of whole parameters, so that no rank has more "
        "than another. It reduces each gradient to its owner alone and gathers the parameters after the step, 2P "
        "elements, where the course's all-reduce and broadcasts send 3P.",
    )


def fsdp_accounting() -> CourseProblem:
    """Return part (a)."""
    sharding, compute, configs = closed_forms("sharding"), closed_forms("compute"), measured("configs", "MODEL_CONFIGS")
    parameters = compute.parameters(configs["2.7B"])
    moments, everything, nothing = (
        sharding.state_bytes(parameters, 2, divided) for divided in ("moments", "parameters", "nothing")
    )
    return CourseProblem(
        "fsdp_accounting",
        5,
        "2026",
        f"2026's xl (2.7B here), P = {parameters:,}, float32, Adam, n = 2 ranks; buffers for gathered layers left out.",
        (
            Line("a rank with everything divided", "16P/n", "", gib(everything)),
            Line("with the optimizer's state divided", "8P + 8P/n", "", gib(moments)),
            Line("with nothing divided", "16P", "", gib(nothing)),
            Line(
                "saved against the sharded optimizer", "8P (1 - 1/n)", f"4 · {parameters:,}", gib(moments - everything)
            ),
        ),
        "Gradients and parameters are divided too, so on two ranks 4 bytes a parameter are saved; the RMSNorms' "
        "weights stay whole. It costs a third all-gather of P elements a step.",
    )
