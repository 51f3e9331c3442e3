"""Activations: what a forward of `TransformerLM` keeps for its backward, on CUDA, uncompiled.

Modelled are CUDA's kernels and its autocast (torch 2.11 to 2.13): RMSNorm is fused and keeps its input and one scale a
token; under autocast RMSNorm, softmax and the loss compute in float32, products in half precision. The CPU differs: its
RMSNorm also keeps x * scale (4 BTd more for each norm), and its softmax stays in half precision (4 BHT^2 less a block).
Compiled forwards keep less. What exists anyway is excluded: parameters, RoPE's tables, ids and targets.
"""

from cs336_systems.accounting.compute import attention_weights, block_parameters, ffn_weights
from cs336_systems.configs import ModelConfig

ATTENTIONS = ("reference", "flash")
"""reference: eager, keeps the n x n probabilities. flash: keeps q, k, v, out and lse (ours, in PyTorch or Triton)."""

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
"""Those of `training`. tf32 takes the memory of fp32; bf16 and fp16 are autocast, over float32 parameters."""


def residual_stream_bytes(config: ModelConfig, batch: int, seq_len: int) -> int:
    """4 BTd: one tensor of the residual stream, float32 in every precision (autocast leaves the embedding's dtype)."""
    return 4 * batch * seq_len * config.d_model


def hidden_bytes(config: ModelConfig, batch: int, seq_len: int) -> int:
    """4 BTf: one of the SwiGLU's tensors, float32."""
    return 4 * batch * seq_len * config.d_ff


def logits_bytes(config: ModelConfig, batch: int, seq_len: int) -> int:
    """4 BTV: float32."""
    return 4 * batch * seq_len * config.vocab_size


def is_autocast(precision: str) -> bool:
    """Whether products are in half precision. Raises `ValueError` for what is none of `PRECISIONS`."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r} was given; allowed: {', '.join(PRECISIONS)}")
    return precision in ("bf16", "fp16")


def block_kept_bytes(
    config: ModelConfig, batch: int, seq_len: int, *, attention: str = "reference", precision: str = "fp32"
) -> int:
    """Bytes that one block keeps for its backward, its input included; exact on CUDA but for the allocator's rounding.

    float32: 4(8 BTd + 4 BTf + BHT^2) + T^2 + 8 BT with the reference attention, 4(9 BTd + 4 BTf + BHT) + 8 BT with
    flash. Autocast: 26 BTd + 8 BTf + 6 BHT^2 + T^2 + 8 BT, or 28 BTd + 8 BTf + 4 BHT + 8 BT, and 2(4d^2 + 3df) of
    cast weights. The terms are explained where they are summed. Source: derived from the model, counted in the tests.
    """
    return sum(half(config, batch, seq_len, precision, attention) for half in (attention_kept_bytes, _ffn_kept))


def attention_kept_bytes(config: ModelConfig, batch: int, seq_len: int, precision: str, attention: str) -> int:
    """Bytes kept by a block's first half: RMSNorm, projections, RoPE (which keeps its tables alone), attention."""
    if attention not in ATTENTIONS:
        raise ValueError(f"attention={attention!r} was given; allowed: {', '.join(ATTENTIONS)}")
    autocast = is_autocast(precision)
    element = 2 if autocast else 4
    tokens, rows = batch * seq_len, batch * config.num_heads * seq_len
    vectors = 3 * element  # q, k, v
    vectors += element  # attention's output with its heads side by side, the input of output_proj
    if attention == "reference":
        # The probabilities; under autocast in float32 for softmax's backward, and in half for the product's.
        scores = (4 + 2 if autocast else 4) * rows * seq_len + seq_len**2  # and the causal mask, a byte each
    else:
        vectors += element  # out, head by head: putting the heads side by side copies it
        scores = 4 * rows  # lse
    weights = 2 * attention_weights(config) if autocast else 0
    return _norm_kept(config, tokens, 3, autocast) + vectors * tokens * config.d_model + scores + weights


def _ffn_kept(config: ModelConfig, batch: int, seq_len: int, precision: str, _attention: str) -> int:
    """Bytes kept by a block's second half: RMSNorm and SwiGLU, which keeps w1 x, its SiLU, w3 x and their product."""
    autocast = is_autocast(precision)
    tokens = batch * seq_len
    hidden = 4 * (2 if autocast else 4) * tokens * config.d_ff
    weights = 2 * ffn_weights(config) if autocast else 0
    return _norm_kept(config, tokens, 2, autocast) + hidden + weights


def _norm_kept(config: ModelConfig, tokens: int, readers: int, autocast: bool) -> int:
    """An RMSNorm and the input of the `readers` matrices after it.

    The norm keeps its input and a scale, 4 BTd + 4 BT. Its output is kept by the products: once in float32; under
    autocast the float32 is dropped and every matrix keeps a cast of its own, since only casts of weights are cached.
    """
    normed = 2 * readers if autocast else 4
    return (4 + normed) * tokens * config.d_model + 4 * tokens


def model_kept_bytes(
    config: ModelConfig,
    batch: int,
    seq_len: int,
    *,
    attention: str = "reference",
    precision: str = "fp32",
    checkpointed: bool = False,
) -> int:
    """Bytes kept between the end of the forward, loss included, and the backward.

    L blocks (checkpointed: L residual streams of 4 BTd), and the end: RMSNorm and the head's input, 8 BTd + 4 BT
    (autocast: 6 BTd + 4 BT, and 2 Vd of cast weights), log_softmax's output in float32, 4 BTV, and the loss's
    denominator, 4 bytes. Logits are not kept: log_softmax needs its output alone. Exact, as `block_kept_bytes`.
    """
    block = residual_stream_bytes(config, batch, seq_len)
    if not checkpointed:
        block = block_kept_bytes(config, batch, seq_len, attention=attention, precision=precision)
    return config.num_layers * block + end_kept_bytes(config, batch, seq_len, precision=precision)


def end_kept_bytes(config: ModelConfig, batch: int, seq_len: int, *, precision: str = "fp32") -> int:
    """The part of `model_kept_bytes` after the last block: final RMSNorm, head and loss."""
    autocast = is_autocast(precision)
    tokens = batch * seq_len
    weights = 2 * config.vocab_size * config.d_model if autocast else 0
    return _norm_kept(config, tokens, 1, autocast) + weights + logits_bytes(config, batch, seq_len) + 4


def blocks_cast_bytes(config: ModelConfig, precision: str) -> int:
    """2L(4d^2 + 3df) bytes: the blocks' weights in half precision, in autocast's cache until it is left; else 0."""
    weights = block_parameters(config) - 2 * config.d_model
    return 2 * config.num_layers * weights if is_autocast(precision) else 0
