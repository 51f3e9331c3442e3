"""A training step with all states divided over N ranks, checkpointed groups of k blocks and a fused loss.

The step of `FullyShardedDataParallel` with compiled blocks, which are gathered whole, in bfloat16, of AdamW with
float32 weights, gradients and moments, and of `linear_cross_entropy`. B is the number of sequences of one rank. Blocks
keep what uncompiled ones do, so a compiled step stays below these peaks.
"""

from cs336_systems.accounting.checkpointing import recomputations, recomputed_blocks
from cs336_systems.accounting.compute import (
    attention_weights,
    block_parameters,
    causal_step_flops,
    ffn_weights,
    parameters,
)
from cs336_systems.accounting.kept import block_kept_bytes
from cs336_systems.configs import Checkpointing, ModelConfig


def peak_by_phase(
    config: ModelConfig,
    batch: int,
    seq_len: int,
    *,
    num_ranks: int,
    checkpoint_every: int,
    chunk_size: int,
    prefetch: int = 2,
) -> dict[str, int]:
    """Map each phase that can be a rank's peak to the bytes allocated then.

    Weights and moments: 12P/N, and up to 4P/N of gradients. Kept: 2 BTd for every group but one, whose k blocks keep
    all of their activations. Gathered: 2 bytes for each weight of 1 + `prefetch` blocks, as far as there are. The head
    has a chunk of c rows of logits, 2cV, the float32 sum of its weight's gradient, 4Vd, and that of its input, 2 BTd.
    """
    d, vocab, blocks = config.d_model, config.vocab_size, config.num_layers
    tokens = batch * seq_len
    norms = (2 * blocks + 1) * d  # stay whole
    states = 12 * ((parameters(config) - norms) // num_ranks + norms)
    gradients, head = states // 3, 4 * vocab * d // num_ranks
    stream, hidden = 2 * tokens * d, 2 * tokens * config.d_ff

    weights = 2 * block_parameters(config)
    block = block_kept_bytes(config, batch, seq_len, attention="flash", precision="bf16")
    block -= 2 * (attention_weights(config) + ffn_weights(config))  # the gathered weights themselves
    inputs = recomputations(blocks, Checkpointing(checkpoint_every)) * stream
    group = min(checkpoint_every, blocks) * block
    # Gradients of SwiGLU's two factors and of the block's output, of its weights, and of another block's on their way.
    averaged = 4 * block_parameters(config)
    inside = 2 * hidden + stream + weights + averaged + min(1 + prefetch, blocks) * weights if blocks else 0
    end = 8 * tokens * d  # the final norm's input and output, float32
    loss = 4 * vocab * d + stream  # both gradients, between the loss's forward and its backward
    return {
        "forward: head": states + inputs + group + end + loss + 2 * vocab * d + 2 * chunk_size * vocab,
        "backward: head": states + inputs + group + end + loss + 4 * tokens * d + 6 * vocab * d + head,
        "backward: last group": states + head + inputs + group + inside,
        "backward: first group": states + gradients - head + group + inside,
        "optimizer": states + gradients,
    }


def best_checkpoint_every(config: ModelConfig, batch: int, seq_len: int, **options: int) -> int:
    """Return the k with the lowest peak, and of several the largest; `options` are the rest of `peak_by_phase`."""

    def peak(every: int) -> int:
        return max(peak_by_phase(config, batch, seq_len, checkpoint_every=every, **options).values())

    return min(range(max(config.num_layers, 1), 0, -1), key=peak)


def rank_flops(config: ModelConfig, batch: int, seq_len: int, *, checkpoint_every: int) -> int:
    """FLOPs of a rank's step: `causal_step_flops`, and a second forward of all groups but the last."""
    tokens = batch * seq_len
    matrices = attention_weights(config) + ffn_weights(config)
    block = 2 * matrices * tokens + 2 * tokens * seq_len * config.d_model  # half of the scores
    again = recomputed_blocks(config.num_layers, Checkpointing(checkpoint_every))
    return causal_step_flops(config, batch, seq_len) + again * block


def rank_seconds(
    config: ModelConfig,
    batch: int,
    seq_len: int,
    *,
    num_ranks: int,
    checkpoint_every: int,
    flops_per_s: float,
    bytes_per_s: float,
) -> float:
    """Least time of a step: `rank_flops` at the matmul rate, then AdamW's 28P/N bytes; everything else overlaps."""
    flops = rank_flops(config, batch, seq_len, checkpoint_every=checkpoint_every)
    return flops / flops_per_s + 28 * parameters(config) / num_ranks / bytes_per_s
