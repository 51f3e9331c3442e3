"""Decoder-only Transformer language model, written to be read from top to bottom.

The course's model, which loads the state dict of its `BasicsTransformerLM` (2025 and 2026): RMSNorm before each
sublayer, rotary positions, SwiGLU, an untied head, no biases. Attention is injected; the model chooses no kernel.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_systems.attention.reference import scaled_dot_product_attention
from cs336_systems.checkpointing import Attention, kept_attention, run_checkpointed
from cs336_systems.checks import require_at_least
from cs336_systems.configs import Checkpointing, ModelConfig
from cs336_systems.linear_cross_entropy import LanguageModelHead
from cs336_systems.ranges import range_
from cs336_systems.rope_layout import carry_rope_layout

RMS_NORM_EPS = 1e-5


def reference_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Eager causal attention, the default. Alternative: `partial(flash_attention, is_causal=True, impl="triton")`."""
    return scaled_dot_product_attention(q, k, v, is_causal=True)


class TransformerLM(nn.Module):
    """Language model that maps ids (batch, seq_len), int64, to logits (batch, seq_len, vocab_size).

    Args:
        config: sizes; see `MODEL_CONFIGS`.
        context_length: maximum seq_len, at least 1; determines only the size of the rotation table.
        attention: attention function of every layer.
        checkpoint_every: keep only the input of every k layers for the backward, which recomputes the rest; None keeps
            all. See `checkpointing`.
        checkpoint_mode: "groups", "selective" or "nested" (`configs.CHECKPOINT_MODES`).
        checkpoint_offload: keep it in host memory.

    Keep weights as `state_dict()`: `load_state_dict` takes a dict with neither its entry `rope_distance` nor torch's
    metadata, such as `dict(model.named_parameters())`, for the course's, and reorders queries and keys (`rope_layout`).

    Raises:
        ValueError: a context_length, an attention or checkpoints other than these.
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        config: ModelConfig,
        context_length: int,
        attention: Attention = reference_attention,
        *,
        checkpoint_every: int | None = None,
        checkpoint_mode: str = "groups",
        checkpoint_offload: bool = False,
    ):
        super().__init__()
        require_at_least(1, context_length=context_length)
        if not callable(attention):
            raise ValueError(f"attention={attention!r} was given; allowed: a function that maps q, k, v to out")
        checkpointing = Checkpointing(
            1 if checkpoint_every is None else checkpoint_every, checkpoint_mode, checkpoint_offload
        )
        self.config, self.context_length = config, context_length
        self.checkpointing = None if checkpoint_every is None else checkpointing
        keeps_attention = self.checkpointing is not None and checkpoint_mode == "selective"
        self.token_embeddings = nn.Embedding(config.vocab_size, config.d_model)
        self.layers = nn.ModuleList(
            TransformerBlock(config, attention, keeps_attention) for _ in range(config.num_layers)
        )
        self.ln_final = nn.RMSNorm(config.d_model, eps=RMS_NORM_EPS)
        self.lm_head = LanguageModelHead(config.d_model, config.vocab_size)
        for name, table in zip(("cos", "sin"), _tables_of(self), strict=True):
            self.register_buffer(name, table, persistent=False)
        self.register_load_state_dict_post_hook(_leave_meta)  # weights that load_state_dict(assign=True) brings
        self.apply(initialize)
        carry_rope_layout(self)

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Tensor:
        """Compute logits or, with `targets` shaped like `ids`, their mean cross-entropy, chunk by chunk of tokens.

        Raises `ValueError` for ids of another shape or dtype, or a sequence longer than `context_length`.
        """
        if ids.ndim != 2 or ids.dtype not in (torch.int64, torch.int32):
            given = f"ids of shape {tuple(ids.shape)} and {ids.dtype}"
            raise ValueError(f"{given} were given; allowed: (batch, seq_len) and int64 or int32")
        seq_len = ids.shape[1]
        if seq_len > self.context_length:
            raise ValueError(f"a sequence of {seq_len} was given; allowed: up to context_length={self.context_length}")
        cos, sin = self.cos[:seq_len], self.sin[:seq_len]
        x = self.token_embeddings(ids)
        if self.checkpointing and torch.is_grad_enabled():
            x = run_checkpointed(self.layers, x, cos, sin, checkpointing=self.checkpointing)
        else:
            for layer in self.layers:
                x = layer(x, cos, sin)
        return self.lm_head(self.ln_final(x), targets)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "TransformerLM":
        """Also compute the tables where `fn` has replaced them, in float32: `to_empty` leaves them without values.

        No state dict has them, and `rotate` runs in float32 whatever the model's dtype is.
        """
        before = self.cos
        super()._apply(fn, recurse)
        if self.cos is not before:
            self.cos, self.sin = _tables_of(self, self.cos.device)
        return self


def _tables_of(model: TransformerLM, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    return rotations(model.config.head_dim, model.context_length, model.config.rope_theta, device)


def _leave_meta(model: TransformerLM, _: object) -> None:
    device = model.token_embeddings.weight.device
    if model.cos.is_meta and device.type != "meta":
        model.cos, model.sin = _tables_of(model, device)


class TransformerBlock(nn.Module):
    """Pre-norm layer: x + attention(norm(x)), then x + feed-forward(norm(x)), for x (batch, seq_len, d_model)."""

    def __init__(self, config: ModelConfig, attention: Attention, keeps_attention: bool = False):
        super().__init__()
        self.ln1 = nn.RMSNorm(config.d_model, eps=RMS_NORM_EPS)
        self.attn = SelfAttention(config, attention, keeps_attention)
        self.ln2 = nn.RMSNorm(config.d_model, eps=RMS_NORM_EPS)
        self.ffn = SwiGLU(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Apply the layer; `cos` and `sin` have shape (seq_len, head_dim / 2)."""
        with range_("attention"):
            x = x + self.attn(self.ln1(x), cos, sin)
        with range_("feed-forward"):
            return x + self.ffn(self.ln2(x))


class SelfAttention(nn.Module):
    """Causal multi-head self-attention with rotary positions.

    With `keeps_attention`, groups of "selective" checkpoints keep what `attention` returns.
    """

    def __init__(self, config: ModelConfig, attention: Attention, keeps_attention: bool = False):
        super().__init__()
        self.num_heads, self.attention, self.keeps_attention = config.num_heads, attention, keeps_attention
        self.q_proj, self.k_proj, self.v_proj, self.output_proj = (
            nn.Linear(config.d_model, config.d_model, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attend within each sequence of x (batch, seq_len, d_model)."""
        q, k, v = (
            projection(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        attention = partial(kept_attention, self.attention) if self.keeps_attention else self.attention
        with range_("scaled dot product attention"):
            out = attention(rotate(q, cos, sin), rotate(k, cos, sin), v)
        return self.output_proj(out.transpose(1, 2).flatten(-2))


class SwiGLU(nn.Module):
    """Gated feed-forward: w2(silu(w1 x) * w3 x)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.w1 = nn.Linear(config.d_model, config.d_ff, bias=False)
        self.w2 = nn.Linear(config.d_ff, config.d_model, bias=False)
        self.w3 = nn.Linear(config.d_model, config.d_ff, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Transform x (..., d_model)."""
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


def rotations(
    head_dim: int, context_length: int, theta: float, device: torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """Return cos and sin of the angle of each position and pair of dimensions, (context_length, head_dim / 2) each.

    In float32, whatever the default dtype is: in 16 bits neighbouring positions are the same number. The CPU computes
    them: a GPU rounds otherwise, and a model would compute something else wherever it was built.
    """
    device = torch.get_default_device() if device is None else torch.device(device)
    with torch.device("meta" if device.type == "meta" else "cpu"):
        dimensions = torch.arange(0, head_dim, 2, dtype=torch.float32)
        positions = torch.arange(context_length, dtype=torch.float32)
        angles = torch.outer(positions, float(theta) ** -(dimensions / head_dim))
    return angles.cos().to(device), angles.sin().to(device)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary position embedding (Su et al. 2021) to x (..., seq_len, head_dim), in float32.

    Pairs dimension i with i + head_dim / 2, whose halves are contiguous. The course pairs neighbours, 2i with 2i + 1,
    which is the same model with the dimensions of each head in another order; see `rope_layout`.
    """
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)


def initialize(module: nn.Module) -> None:
    """Initialize linear weights with variance 2 / (in + out) and embeddings with 1, truncated at 3 sigma."""
    if isinstance(module, nn.Linear):
        std = (2 / (module.in_features + module.out_features)) ** 0.5
        nn.init.trunc_normal_(module.weight, std=std, a=-3 * std, b=3 * std)
    elif isinstance(module, nn.Embedding):
        nn.init.trunc_normal_(module.weight, std=1.0, a=-3.0, b=3.0)
