"""Activations that an uncompiled forward of `TransformerLM` keeps for its backward on CUDA.

The model follows CUDA's kernels and autocast (torch 2.11 to 2.13): the fused RMSNorm keeps its input and one scale per
token; under autocast RMSNorm, softmax and the loss run in float32, matmuls in half precision. On the CPU each RMSNorm
also keeps x * scale (4 BTd more), and softmax stays in half precision (4 BHT^2 less per block). Compiled forwards keep
less. Parameters, RoPE's tables, ids and targets are excluded. The course's own model is at the end.
"""

from cs336_systems.accounting.checkpointing import last_group
from cs336_systems.accounting.compute import attention_weights, block_parameters, ffn_weights
from cs336_systems.checks import require_one_of
from cs336_systems.configs import Checkpointing, ModelConfig

ATTENTIONS = ("reference", "flash")
"""reference: eager, keeps the T x T probabilities. flash: keeps q, k, v, out and lse, in PyTorch or Triton."""

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
"""Precisions of `training` except bf16_weights. tf32 needs the memory of fp32; bf16 and fp16 are autocast."""


def residual_stream_bytes(config: ModelConfig, batch: int, seq_len: int) -> int:
    """Size of one tensor of the residual stream: 4 BTd, since autocast leaves the embedding in float32."""
    return 4 * batch * seq_len * config.d_model


def logits_bytes(config: ModelConfig, batch: int, seq_len: int) -> int:
    """Size of the float32 logits: 4 BTV."""
    return 4 * batch * seq_len * config.vocab_size


def is_autocast(precision: str) -> bool:
    """Whether matmuls run in half precision. Raises `ValueError` for a precision that is not in `PRECISIONS`."""
    require_one_of(PRECISIONS, precision=precision)
    return precision in ("bf16", "fp16")


def block_kept_bytes(
    config: ModelConfig, batch: int, seq_len: int, *, attention: str = "reference", precision: str = "fp32"
) -> int:
    """Bytes that one block keeps for its backward, including its input. Exact on CUDA up to the allocator's rounding.

    float32: 4(8 BTd + 4 BTf + BHT^2) + T^2 + 8 BT with the reference attention, 4(9 BTd + 4 BTf + BHT) + 8 BT with
    flash. Autocast: 26 BTd + 8 BTf + 6 BHT^2 + T^2 + 8 BT, or 28 BTd + 8 BTf + 4 BHT + 8 BT, and 2(4d^2 + 3df) of
    cast weights. With H = 1 or T = 1 flash keeps one BTd less. Derived from the model term by term below; the tests
    count the storages of a real forward.
    """
    return sum(half(config, batch, seq_len, precision, attention) for half in (attention_kept_bytes, _ffn_kept))


def attention_kept_bytes(config: ModelConfig, batch: int, seq_len: int, precision: str, attention: str) -> int:
    """Bytes kept by a block's first half: RMSNorm, projections, RoPE (which keeps only its tables), attention."""
    require_one_of(ATTENTIONS, attention=attention)
    autocast = is_autocast(precision)
    element = 2 if autocast else 4
    tokens, rows = batch * seq_len, batch * config.num_heads * seq_len
    vectors = 3 * element  # q, k, v
    vectors += element  # attention's output with concatenated heads, the input of output_proj
    if attention == "reference":
        # The probabilities; under autocast in float32 for softmax's backward and in half precision for the matmul's.
        scores = (4 + 2 if autocast else 4) * rows * seq_len + seq_len**2  # and the causal mask, one byte per score
    else:
        if config.num_heads > 1 and seq_len > 1:
            vectors += element  # out by head, which concatenating the heads copies
        scores = 4 * rows  # lse
    weights = 2 * attention_weights(config) if autocast else 0
    return _norm_kept(config, tokens, 3, autocast) + vectors * tokens * config.d_model + scores + weights


def _ffn_kept(config: ModelConfig, batch: int, seq_len: int, precision: str, _attention: str) -> int:
    """Bytes kept by a block's second half: RMSNorm and SwiGLU (w1 x, its SiLU, w3 x and the product of both)."""
    autocast = is_autocast(precision)
    tokens = batch * seq_len
    hidden = 4 * (2 if autocast else 4) * tokens * config.d_ff
    weights = 2 * ffn_weights(config) if autocast else 0
    return _norm_kept(config, tokens, 2, autocast) + hidden + weights


def _norm_kept(config: ModelConfig, tokens: int, readers: int, autocast: bool) -> int:
    """Bytes kept by an RMSNorm and by the `readers` matmuls of its output.

    The norm keeps its input and a scale, 4 BTd + 4 BT. The matmuls keep its output: once in float32; under autocast
    each keeps a half-precision cast of its own, since only casts of weights are cached.
    """
    normed = 2 * readers if autocast else 4
    return (4 + normed) * tokens * config.d_model + 4 * tokens


def attention_result_bytes(
    config: ModelConfig, batch: int, seq_len: int, *, attention: str = "flash", precision: str = "fp32"
) -> int:
    """Bytes that "selective" checkpoints keep of one attention, out and lse: 4 BTd + 4 BHT (autocast: 2 BTd + 4 BHT).

    Raises `ValueError` for the reference attention, which keeps its probabilities.
    """
    if attention != "flash":
        raise ValueError(f"attention={attention!r} was given with checkpoint_mode='selective'; allowed: flash")
    element = 2 if is_autocast(precision) else 4
    return batch * seq_len * (element * config.d_model + 4 * config.num_heads)


def model_kept_bytes(
    config: ModelConfig,
    batch: int,
    seq_len: int,
    *,
    attention: str = "reference",
    precision: str = "fp32",
    checkpointing: Checkpointing | None = None,
) -> int:
    """Bytes kept on the device between the end of the forward, loss included, and the backward.

    L blocks (checkpointed: see `groups_kept_bytes`, and all of the last group), and the end: RMSNorm and the head's
    input, 8 BTd + 4 BT (autocast: 6 BTd + 4 BT, and 2 Vd of cast weights), log_softmax's output in float32, 4 BTV, and
    the loss's denominator, 4 bytes. Logits are not kept, because log_softmax needs only its output. As exact as
    `block_kept_bytes`.
    """
    last = last_group(config.num_layers, checkpointing)
    blocks = last * block_kept_bytes(config, batch, seq_len, attention=attention, precision=precision)
    if checkpointing and not checkpointing.offload:
        earlier = (config.num_layers - last) // checkpointing.every
        blocks += groups_kept_bytes(config, batch, seq_len, earlier, checkpointing, attention, precision)
    return blocks + end_kept_bytes(config, batch, seq_len, precision=precision)


def groups_kept_bytes(
    config: ModelConfig,
    batch: int,
    seq_len: int,
    count: int,
    checkpointing: Checkpointing,
    attention: str = "flash",
    precision: str = "fp32",
) -> int:
    """Bytes kept of `count` whole groups until their backward, on the device or offloaded.

    groups: the input of each, 4 BTd. selective: `attention_result_bytes` of each layer too. nested: the first input.
    """
    one = residual_stream_bytes(config, batch, seq_len)
    if checkpointing.mode == "nested":
        return min(count, 1) * one
    if checkpointing.mode == "selective":
        one += checkpointing.every * attention_result_bytes(
            config, batch, seq_len, attention=attention, precision=precision
        )
    return count * one


def end_kept_bytes(config: ModelConfig, batch: int, seq_len: int, *, precision: str = "fp32") -> int:
    """Part of `model_kept_bytes` after the last block: final RMSNorm, head and loss."""
    autocast = is_autocast(precision)
    tokens = batch * seq_len
    weights = 2 * config.vocab_size * config.d_model if autocast else 0
    return _norm_kept(config, tokens, 1, autocast) + weights + logits_bytes(config, batch, seq_len) + 4


def blocks_cast_bytes(config: ModelConfig, precision: str) -> int:
    """Size of the blocks' weights in autocast's cache, 2L(4d^2 + 3df); 0 without autocast."""
    weights = block_parameters(config) - 2 * config.d_model
    return 2 * config.num_layers * weights if is_autocast(precision) else 0


def course_block_kept_bytes(config: ModelConfig, batch: int, seq_len: int, *, compiled: bool = False) -> int:
    """Bytes that one float32 block of the course's BasicsTransformerLM keeps for its backward, including its input.

    Eager: 4(10 BTd + 5 BTf + 2 BHT^2) + 12 BHT + T^2 + 8 BT. Its softmax and SiLU are written out: the division of
    exp(scores) by its sum keeps both, two T x T matrices. The small terms are the index of the maximum and the sum of
    each row, the causal mask, and the scale of each RMSNorm. torch.compile(fullgraph=True): 4(8 BTd + 3 BTf + 2 BHT^2),
    without its small terms (0.1 % of the course's 3651.31 MiB). Parameters and RoPE's tables are excluded.

    Source: unique storages counted with `saved_tensors_hooks`; the course's text (Spring 2026, gradient_checkpointing)
    prints the compiled block of d = 2560 with 16 heads at a context of 2048.
    """
    tokens, rows = batch * seq_len, batch * config.num_heads * seq_len
    stream, hidden = (8, 3) if compiled else (10, 5)
    large = 4 * (stream * tokens * config.d_model + hidden * tokens * config.d_ff + 2 * rows * seq_len)
    return large if compiled else large + 12 * rows + seq_len**2 + 8 * tokens
