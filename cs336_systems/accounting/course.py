"""The course's own model, with softmax and SiLU written out: its published numbers, which are not `TransformerLM`'s."""

from cs336_systems.configs import ModelConfig


def course_block_kept_bytes(config: ModelConfig, batch: int, seq_len: int, *, compiled: bool = False) -> int:
    """Bytes that one block of the course's BasicsTransformerLM keeps for its backward, in float32.

    Eager: 4(10 BTd + 5 BTf + 2 BHT^2) + 12 BHT + T^2 + 8 BT. Two n x n matrices, because its softmax divides
    exp(scores) by its sum and the division keeps both; then the index of the maximum and the sum of every row, the
    causal mask, and each RMSNorm's scale. Through torch.compile(fullgraph=True): 4(8 BTd + 3 BTf + 2 BHT^2), without
    its small terms (0.1 % of the course's 3651.31 MiB). Parameters and RoPE's tables are excluded, the input is not.

    Source: unique storages counted with `saved_tensors_hooks`; the course's text (Spring 2026, gradient_checkpointing)
    prints the compiled block of d = 2560 with 16 heads at a context of 2048.
    """
    tokens, rows = batch * seq_len, batch * config.num_heads * seq_len
    stream, hidden = (8, 3) if compiled else (10, 5)
    large = 4 * (stream * tokens * config.d_model + hidden * tokens * config.d_ff + 2 * rows * seq_len)
    return large if compiled else large + 12 * rows + seq_len**2 + 8 * tokens
