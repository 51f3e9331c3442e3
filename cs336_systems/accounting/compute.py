"""Parameters and floating-point operations."""

from cs336_systems.configs import ModelConfig


def parameters(config: ModelConfig) -> int:
    """P = 2Vd + L(4d^2 + 3df + 2d) + d, exact: embedding and head apart, two RMSNorms a block and one after them.

    Source: the course's model (Spring 2025, section 1.1.2), which has no biases.
    """
    embeddings = config.vocab_size * config.d_model
    return 2 * embeddings + config.num_layers * block_parameters(config) + config.d_model


def block_parameters(config: ModelConfig) -> int:
    """4d^2 + 3df + 2d: four projections, three matrices of the SwiGLU, two RMSNorms."""
    return attention_weights(config) + ffn_weights(config) + 2 * config.d_model


def attention_weights(config: ModelConfig) -> int:
    """4d^2: the projections of q, k, v and out."""
    return 4 * config.d_model**2


def ffn_weights(config: ModelConfig) -> int:
    """3df: w1, w2 and w3."""
    return 3 * config.d_model * config.d_ff


def matmul_weights(config: ModelConfig) -> int:
    """P - Vd - (2L + 1)d: the parameters that multiply every token, so neither the embedding's nor the RMSNorms'."""
    d, blocks = config.d_model, config.num_layers
    return parameters(config) - config.vocab_size * d - (2 * blocks + 1) * d


def forward_flops(config: ModelConfig, batch: int, seq_len: int) -> int:
    """2(P - Vd - (2L + 1)d)BT + 4BT^2 dL floating-point operations of one forward, head included.

    A multiplication and an addition for each weight and token, and the two products with the n x n matrices of
    attention. All T^2 scores count, since that is what eager attention computes; a causal kernel may skip almost half.
    Norms, softmax, SiLU, RoPE and the loss are left out (below 1 % at the course's sizes).
    """
    tokens = batch * seq_len
    scores = 4 * tokens * seq_len * config.d_model * config.num_layers
    return 2 * matmul_weights(config) * tokens + scores


def step_flops(config: ModelConfig, batch: int, seq_len: int, *, checkpointed: bool = False) -> int:
    """3 forwards: each product has two in the backward, for its two inputs. The optimizer's ~10P are left out.

    `checkpointed` computes every block twice, but not the head: what the device does, of which the model's own share
    (MFU) is the figure without it.
    """
    again = 0
    if checkpointed:
        head = 2 * config.vocab_size * config.d_model * batch * seq_len
        again = forward_flops(config, batch, seq_len) - head
    return 3 * forward_flops(config, batch, seq_len) + again
