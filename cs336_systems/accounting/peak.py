"""Memory of a whole training step, and of a forward alone, and which model fits into it.

The fused AdamW has no temporaries; gradients are None before the forward; the optimizer's moments exist, as after the
first step. Not counted: workspaces of libraries (cuBLAS: 32 MiB on Hopper), rounding to 512 bytes and fragmentation,
the CUDA context. So this is torch's `requested_bytes`, not what nvidia-smi shows.
"""

from cs336_systems.accounting.compute import block_parameters, ffn_weights, parameters
from cs336_systems.accounting.kept import (
    attention_kept_bytes,
    block_kept_bytes,
    blocks_cast_bytes,
    end_kept_bytes,
    is_autocast,
    model_kept_bytes,
    residual_stream_bytes,
)
from cs336_systems.configs import MODEL_CONFIGS, ModelConfig


def state_bytes(config: ModelConfig) -> dict[str, int]:
    """parameters, gradients and moments: 4P, 4P and 8P, all float32, also under autocast; 16P in all."""
    single = 4 * parameters(config)
    return {"parameters": single, "gradients": single, "moments": 2 * single}


def step_moments(
    config: ModelConfig,
    batch: int,
    seq_len: int,
    *,
    attention: str = "reference",
    precision: str = "fp32",
    checkpointed: bool = False,
) -> dict[str, int]:
    """Bytes allocated at each moment of a step that can be its peak, in order: a name -> bytes.

    During the backward every block frees what it kept and adds its gradients, a fixed difference; so the highest block
    is at the first or at the last one, where its SwiGLU or its attention holds most. At each of them: what the blocks
    below keep, what this block still keeps, the gradients of everything above, and the operation's own temporaries.
    """
    autocast = is_autocast(precision)
    element = 2 if autocast else 4
    stream = residual_stream_bytes(config, batch, seq_len)
    vectors, hidden = (element * batch * seq_len * width for width in (config.d_model, config.d_ff))
    logits = batch * seq_len * config.vocab_size  # elements
    scores = batch * config.num_heads * seq_len**2

    base = _lasting_bytes(config, batch, seq_len) + state_bytes(config)["moments"]
    kept = model_kept_bytes(config, batch, seq_len, attention=attention, precision=precision, checkpointed=checkpointed)
    block = block_kept_bytes(config, batch, seq_len, attention=attention, precision=precision)
    first_half = attention_kept_bytes(config, batch, seq_len, precision, attention)
    below = (kept - end_kept_bytes(config, batch, seq_len, precision=precision)) // config.num_layers
    below *= config.num_layers - 1

    # Forward. logits.float() is a second tensor under autocast; log_softmax's output is kept.
    loss = (2 + 4 if autocast else 4) * logits
    casts = blocks_cast_bytes(config, precision) if checkpointed else 0  # otherwise kept for the backward anyway
    moments = {"forward: loss": base + kept + loss + casts}

    # Backward. log_softmax's: the gradient of its output, and of its input.
    moments["backward: loss"] = base + kept + 2 * 4 * logits
    # SwiGLU, at its product: gradients of both factors beside the product's own, with the product itself gone; w2's
    # gradient, with w2's cast gone.
    swiglu = block + 2 * hidden + stream + (2 if autocast else 4) * config.d_model * config.d_ff
    # Attention: the gradients of SwiGLU, its norm and output_proj (whose cast is gone), and of the block's output.
    rest = first_half + 4 * (ffn_weights(config) + config.d_model) + stream
    rest += (2 if autocast else 4) * config.d_model**2
    if attention == "reference":  # at softmax: gradients of its output and its input in float32, and of v; v, out gone
        rest += (
            8 * scores - (2 * scores if autocast else 0) - vectors
        )  # the product's own copy of the probabilities too
    else:  # dq, dk and dv; never the peak at the course's sizes, whose SwiGLU is wider
        rest += 3 * vectors
    above = 4 * (config.vocab_size + 1) * config.d_model
    others = 4 * (config.num_layers - 1) * block_parameters(config)
    moments["backward: last block's SwiGLU"] = base + below + above + swiglu
    moments["backward: last block's attention"] = base + below + above + rest
    moments["backward: first block's SwiGLU"] = base + above + others + swiglu
    moments["backward: first block's attention"] = base + above + others + rest
    moments["backward: embedding"] = base + state_bytes(config)["gradients"] + stream
    moments["optimizer"] = base + state_bytes(config)["gradients"]
    return moments


def peak_step_bytes(
    config: ModelConfig,
    batch: int,
    seq_len: int,
    *,
    attention: str = "reference",
    precision: str = "fp32",
    checkpointed: bool = False,
) -> int:
    """The highest of `step_moments`: about max(12P + activations, 16P). An estimate; its tests say how good."""
    return max(
        step_moments(
            config, batch, seq_len, attention=attention, precision=precision, checkpointed=checkpointed
        ).values()
    )


def peak_forward_bytes(
    config: ModelConfig, batch: int, seq_len: int, *, attention: str = "reference", precision: str = "fp32"
) -> int:
    """The peak of a forward with its loss under no_grad, with neither gradients nor optimizer.

    4P, what the widest block or the loss holds, and under autocast the cache of cast weights, which fills without
    gradients too: 2(P - Vd - (2L + 1)d).
    """
    autocast = is_autocast(precision)
    logits = batch * seq_len * config.vocab_size
    head = 2 * config.vocab_size * config.d_model if autocast else 0
    loss = head + (10 if autocast else 8) * logits  # logits, their float32 form and log_softmax's output
    inside = max(_block_forward_bytes(config, batch, seq_len, attention, precision))
    return _lasting_bytes(config, batch, seq_len) + blocks_cast_bytes(config, precision) + max(inside, loss)


def fits(
    config: ModelConfig,
    memory_bytes: int,
    batch: int,
    seq_len: int,
    *,
    attention: str = "reference",
    precision: str = "fp32",
    checkpointed: bool = False,
) -> bool:
    """Whether a training step's peak is at most `memory_bytes`: leave room for what this module does not count."""
    peak = peak_step_bytes(config, batch, seq_len, attention=attention, precision=precision, checkpointed=checkpointed)
    return peak <= memory_bytes


def largest_size_that_fits(
    memory_bytes: int,
    batch: int,
    seq_len: int,
    *,
    attention: str = "reference",
    precision: str = "fp32",
    checkpointed: bool = False,
) -> str | None:
    """The name in `MODEL_CONFIGS` with the most parameters that `fits`, or None."""
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
            checkpointed=checkpointed,
        )
    ]
    return max(names, key=lambda name: parameters(MODEL_CONFIGS[name]), default=None)


def _lasting_bytes(config: ModelConfig, batch: int, seq_len: int) -> int:
    """Parameters, RoPE's tables for a context of `seq_len`, ids and targets (int64)."""
    return 4 * parameters(config) + 4 * seq_len * config.head_dim + 16 * batch * seq_len


def _block_forward_bytes(
    config: ModelConfig, batch: int, seq_len: int, attention: str, precision: str
) -> tuple[int, int]:
    """What a block that keeps nothing holds at most, in its attention and in its SwiGLU, its input included."""
    autocast = is_autocast(precision)
    element = 2 if autocast else 4
    stream = residual_stream_bytes(config, batch, seq_len)
    vectors, hidden = (element * batch * seq_len * width for width in (config.d_model, config.d_ff))
    rows = batch * config.num_heads * seq_len
    weights = (2 if autocast else 0) * config.d_model  # casts that the cache does not hold yet, in the last block
    # The block's input and the norm's output; q, k and v, and those that RoPE turned: q, and k while it turns (in
    # float32, halves that are summed from products and then joined).
    before = 2 * stream + 3 * vectors
    in_rope = before + vectors + (3 if autocast else 2) * stream
    if attention == "reference":  # masked and unmasked scores with the mask; autocast: masked scores, float32, softmax
        in_attention = 2 * vectors + (10 * rows * seq_len if autocast else 8 * rows * seq_len + seq_len**2)
    else:
        in_attention = 3 * vectors + 4 * rows
    first_half = max(in_rope, before + in_attention) - weights * (config.d_model + 3 * config.d_ff)
    # The block's input, the residual stream and the norm's output; SiLU's output, w3 x and their product.
    return first_half, 3 * stream + 3 * hidden - weights * config.d_ff
