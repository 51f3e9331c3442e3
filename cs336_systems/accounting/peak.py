"""Peak memory of a training step and of a forward, and the largest model that fits.

Assumes the fused AdamW, which has no temporaries, gradients that are None before the forward, and existing optimizer
moments, as after the first step. Counts torch's `requested_bytes`: no library workspaces (cuBLAS: 32 MiB on Hopper), no
rounding to 512 bytes, no fragmentation and no CUDA context.
"""

from cs336_systems.accounting.checkpointing import last_group
from cs336_systems.accounting.compute import block_parameters, ffn_weights, parameters
from cs336_systems.accounting.kept import (
    attention_kept_bytes,
    block_kept_bytes,
    blocks_cast_bytes,
    groups_kept_bytes,
    is_autocast,
    model_kept_bytes,
    residual_stream_bytes,
)
from cs336_systems.configs import MODEL_CONFIGS, Checkpointing, ModelConfig


def bytes_by_phase(
    config: ModelConfig,
    batch: int,
    seq_len: int,
    *,
    attention: str = "reference",
    precision: str = "fp32",
    checkpointing: Checkpointing | None = None,
) -> dict[str, int]:
    """Map each phase of a step that can be its peak to the bytes allocated then, in order.

    In the backward the peak of a block is in its SwiGLU or in its attention. Each of these phases holds what is kept
    below the block and the rest of the block's own activations, the gradients of everything above, and the operation's
    temporaries. With fewer entries in the vocabulary than dimensions in the model, or without layers, a phase that is
    left out can be the peak.
    """
    autocast = is_autocast(precision)
    element = 2 if autocast else 4
    stream = residual_stream_bytes(config, batch, seq_len)
    vectors, hidden = (element * batch * seq_len * width for width in (config.d_model, config.d_ff))
    logits = batch * seq_len * config.vocab_size  # elements
    scores = batch * config.num_heads * seq_len**2

    gradients, moments = 4 * parameters(config), 8 * parameters(config)
    base = _lasting_bytes(config, batch, seq_len) + moments
    kept = model_kept_bytes(
        config, batch, seq_len, attention=attention, precision=precision, checkpointing=checkpointing
    )
    block = block_kept_bytes(config, batch, seq_len, attention=attention, precision=precision)
    first_half = attention_kept_bytes(config, batch, seq_len, precision, attention)

    # Forward. logits.float() is a second tensor under autocast; log_softmax's output is kept.
    loss = (2 + 4 if autocast else 4) * logits
    casts = blocks_cast_bytes(config, precision) // max(config.num_layers, 1)  # of a block; of the last group in `kept`
    recomputed = config.num_layers - last_group(config.num_layers, checkpointing)
    phases = {"forward: loss": base + kept + loss + casts * recomputed}

    # Backward of log_softmax: the gradients of its output and of its input.
    phases["backward: loss"] = base + kept + 2 * 4 * logits
    # SwiGLU, at its elementwise product: the gradients of both factors and of the product, which is freed; the gradient
    # of w2, whose cast is freed.
    swiglu = block + 2 * hidden + stream + (2 if autocast else 4) * config.d_model * config.d_ff
    # Attention: the gradients of SwiGLU, its norm and output_proj (whose cast is freed), and of the block's output.
    rest = first_half + 4 * (ffn_weights(config) + config.d_model) + stream
    rest += (2 if autocast else 4) * config.d_model**2
    if attention == "reference":
        # At softmax: float32 gradients of its output and input, and of v; v, out and the matmul's half-precision copy
        # of the probabilities are freed.
        rest += 8 * scores - (2 * scores if autocast else 0) - vectors
    else:  # dq, dk and dv; never the peak at the course's sizes, whose SwiGLU is wider
        rest += 3 * vectors
    above = 4 * (config.vocab_size + 1) * config.d_model
    for index in reversed(range(config.num_layers)):
        earlier, inside = divmod(index, checkpointing.every) if checkpointing else (0, index)
        held = base + above + inside * block
        if checkpointing:
            present = min(earlier, 1) if checkpointing.offload else earlier  # one group is fetched ahead
            held += groups_kept_bytes(config, batch, seq_len, present, checkpointing, attention, precision)
            if checkpointing.mode == "selective" and index < recomputed:  # out of the blocks above, until all are done
                held += (checkpointing.every - 1 - inside) * vectors
            if checkpointing.mode == "nested":  # autocast's cache while everything below runs again
                phases[f"recomputation up to block {index + 1}"] = held + block + stream + (index - inside) * casts
        phases[f"backward: block {index + 1}'s SwiGLU"] = held + swiglu
        phases[f"backward: block {index + 1}'s attention"] = held + rest
        above += 4 * block_parameters(config)
    phases["backward: embedding"] = base + gradients + stream
    phases["optimizer"] = base + gradients
    return phases


def peak_step_bytes(
    config: ModelConfig,
    batch: int,
    seq_len: int,
    *,
    attention: str = "reference",
    precision: str = "fp32",
    checkpointing: Checkpointing | None = None,
) -> int:
    """Peak of a training step, about max(12P + activations, 16P); the tests hold it to 0.5 % of a real step.

    With few tokens beside the weights, 64 at d_model 128, another phase can be the peak: up to 2.5 % more.
    """
    phases = bytes_by_phase(
        config, batch, seq_len, attention=attention, precision=precision, checkpointing=checkpointing
    )
    return max(phases.values())


def peak_forward_bytes(
    config: ModelConfig, batch: int, seq_len: int, *, attention: str = "reference", precision: str = "fp32"
) -> int:
    """Peak of a forward with its loss under no_grad, without gradients and optimizer.

    It holds 4P, the tensors of the widest block or of the loss, and under autocast the cache of cast weights, which
    fills under no_grad too: 2(P - Vd - (2L + 1)d).
    """
    autocast = is_autocast(precision)
    logits = batch * seq_len * config.vocab_size
    head = 2 * config.vocab_size * config.d_model if autocast else 0
    loss = head + (10 if autocast else 8) * logits  # logits, their float32 form and log_softmax's output
    inside = max(_block_forward_bytes(config, batch, seq_len, attention, precision)) if config.num_layers else 0
    return _lasting_bytes(config, batch, seq_len) + blocks_cast_bytes(config, precision) + max(inside, loss)


def fits(
    config: ModelConfig,
    memory_bytes: int,
    batch: int,
    seq_len: int,
    *,
    attention: str = "reference",
    precision: str = "fp32",
    checkpointing: Checkpointing | None = None,
) -> bool:
    """Whether a training step's peak is at most `memory_bytes`. Leave room for the memory that is not counted."""
    peak = peak_step_bytes(
        config, batch, seq_len, attention=attention, precision=precision, checkpointing=checkpointing
    )
    return peak <= memory_bytes


def largest_size_that_fits(
    memory_bytes: int,
    batch: int,
    seq_len: int,
    *,
    attention: str = "reference",
    precision: str = "fp32",
    checkpointing: Checkpointing | None = None,
) -> str | None:
    """Return the name of the largest model in `MODEL_CONFIGS` that `fits`, or None."""
    names = [
        name
        for name, config in MODEL_CONFIGS.items()
        if fits(
            config,
            memory_bytes,
            batch,
            seq_len,
            attention=attention,
            precision=precision,
            checkpointing=checkpointing,
        )
    ]
    return max(names, key=lambda name: parameters(MODEL_CONFIGS[name]), default=None)


def _lasting_bytes(config: ModelConfig, batch: int, seq_len: int) -> int:
    """Size of parameters, RoPE's tables for a context of `seq_len`, and int64 ids and targets."""
    return 4 * parameters(config) + 4 * seq_len * config.head_dim + 16 * batch * seq_len


def _block_forward_bytes(
    config: ModelConfig, batch: int, seq_len: int, attention: str, precision: str
) -> tuple[int, int]:
    """Peaks of a block that keeps nothing, in its attention and in its SwiGLU, including its input."""
    autocast = is_autocast(precision)
    element = 2 if autocast else 4
    stream = residual_stream_bytes(config, batch, seq_len)
    vectors, hidden = (element * batch * seq_len * width for width in (config.d_model, config.d_ff))
    rows = batch * config.num_heads * seq_len
    weights = (2 if autocast else 0) * config.d_model  # casts that are not in the cache yet, in the last block
    # The block's input and the norm's output; q, k and v; the rotated q, and k during its rotation (in float32: halves
    # that are summed from products and then concatenated).
    before = 2 * stream + 3 * vectors
    in_rope = before + vectors + (3 if autocast else 2) * stream
    if attention == "reference":  # masked and unmasked scores with the mask; autocast: masked scores, float32, softmax
        in_softmax = 10 * rows * seq_len if autocast else 8 * rows * seq_len + seq_len**2
        # The probabilities, under autocast also their cast; out, and a copy of v where its heads lie apart.
        in_product = (6 if autocast else 4) * rows * seq_len + vectors
        if config.num_heads > 1 and seq_len > 1:
            in_product += vectors
        in_attention = 2 * vectors + max(in_softmax, in_product)
    else:
        in_attention = 3 * vectors + 4 * rows
    first_half = max(in_rope, before + in_attention) - weights * (config.d_model + 3 * config.d_ff)
    # The block's input, the residual stream and the norm's output; SiLU's output, w3 x and their product.
    return first_half, 3 * stream + 3 * hidden - weights * config.d_ff
