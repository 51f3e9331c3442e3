"""Number of parameters, floating-point operations, and the optimizer's memory traffic."""

from cs336_systems.accounting.checkpointing import recomputations, recomputed_blocks
from cs336_systems.configs import Checkpointing, ModelConfig


def parameters(config: ModelConfig) -> int:
    """Exact number of parameters: P = 2Vd + L(4d^2 + 3df + 2d) + d, for an untied head and 2L + 1 RMSNorms.

    Source: the course's model (Spring 2025, section 1.1.2), which has no biases.
    """
    embeddings = config.vocab_size * config.d_model
    return 2 * embeddings + config.num_layers * block_parameters(config) + config.d_model


def block_parameters(config: ModelConfig) -> int:
    """Parameters of a block: 4d^2 + 3df + 2d, for four projections, three SwiGLU matrices and two RMSNorms."""
    return attention_weights(config) + ffn_weights(config) + 2 * config.d_model


def attention_weights(config: ModelConfig) -> int:
    """Weights of the q, k, v and output projections: 4d^2."""
    return 4 * config.d_model**2


def ffn_weights(config: ModelConfig) -> int:
    """Weights of the SwiGLU, w1, w2 and w3: 3df."""
    return 3 * config.d_model * config.d_ff


def matmul_weights(config: ModelConfig) -> int:
    """Weights that multiply every token, all but the embedding and the RMSNorms: P - Vd - (2L + 1)d."""
    d, blocks = config.d_model, config.num_layers
    return parameters(config) - config.vocab_size * d - (2 * blocks + 1) * d


def forward_flops(config: ModelConfig, batch: int, seq_len: int) -> int:
    """FLOPs of one forward, head included: 2(P - Vd - (2L + 1)d)BT + 4BT^2 dL.

    Counts a multiplication and an addition per weight and token, and the two matmuls with the T x T matrices of
    attention. All T^2 scores count, as eager attention computes them; a causal kernel may skip almost half. Norms,
    softmax, SiLU, RoPE and the loss are left out (below 1 % at the course's sizes).
    """
    tokens = batch * seq_len
    scores = 4 * tokens * seq_len * config.d_model * config.num_layers
    return 2 * matmul_weights(config) * tokens + scores


def step_flops(config: ModelConfig, batch: int, seq_len: int, *, checkpointing: Checkpointing | None = None) -> int:
    """FLOPs of a step: three forwards, since each matmul has two in the backward. The optimizer's ~10P are left out.

    Checkpoints add the forwards of `recomputed_blocks`, selective ones without attention's two matmuls. A recomputation
    stops before its last matmul, SwiGLU's w2, whose result the backward does not need. The device computes all that;
    MFU counts the figure without it.
    """
    blocks = recomputed_blocks(config.num_layers, checkpointing)
    tokens = batch * seq_len
    block = 2 * tokens * (attention_weights(config) + ffn_weights(config))
    if checkpointing is None or checkpointing.mode != "selective":
        block += 4 * tokens * seq_len * config.d_model
    spared = recomputations(config.num_layers, checkpointing) * 2 * tokens * config.d_model * config.d_ff
    return 3 * forward_flops(config, batch, seq_len) + blocks * block - spared


def causal_step_flops(config: ModelConfig, batch: int, seq_len: int) -> int:
    """FLOPs of a step with fused causal attention: 6(P - Vd - (2L + 1)d)BT + 7BT^2 dL.

    Attention skips half of the scores, and has two matmuls in the forward and five in the backward, which computes the
    scores again. Source: Dao 2023 (FlashAttention-2), section 4.1; the course (Spring 2026, leaderboard).
    """
    tokens = batch * seq_len
    return 6 * matmul_weights(config) * tokens + 7 * tokens * seq_len * config.d_model * config.num_layers


def optimizer_bytes(num_parameters: int) -> int:
    """Bytes that float32 AdamW reads (parameters, gradients, two moments) and writes (all but the gradients): 28P."""
    return 28 * num_parameters
