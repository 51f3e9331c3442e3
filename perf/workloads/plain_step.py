"""A training step of plain PyTorch: the baseline of `study train-step`, with none of the measured package's code.

The course's model in torch.nn, SDPA, autocast to bfloat16 on a GPU, and torch's fused AdamW. Each function is called
and checked as `peer_step.build` says. The rotation table, the eps of the norms and the loss are the model's.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = Callable[[], Tensor]


class _Model(nn.Module):
    """Maps ids (batch, seq_len) to logits (batch, seq_len, vocab_size); weights have the names of `TransformerLM`'s."""

    def __init__(self, config: Any, context_length: int):
        super().__init__()
        self.token_embeddings = nn.Embedding(config.vocab_size, config.d_model)
        self.layers = nn.ModuleList(_Block(config) for _ in range(config.num_layers))
        self.ln_final = nn.RMSNorm(config.d_model, eps=1e-5)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        pairs = torch.arange(0, config.head_dim, 2) / config.head_dim
        angles = torch.outer(torch.arange(context_length), config.rope_theta**-pairs)
        self.register_buffer("rotation", torch.stack((angles.cos(), angles.sin())), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token_embeddings(ids)
        for layer in self.layers:
            x = layer(x, self.rotation)
        return self.lm_head(self.ln_final(x))


class _Block(nn.Module):
    """Pre-norm layer of x (batch, seq_len, d_model)."""

    def __init__(self, config: Any):
        super().__init__()
        self.ln1, self.ln2 = (nn.RMSNorm(config.d_model, eps=1e-5) for _ in range(2))
        self.attn, self.ffn = _Attention(config), _FeedForward(config)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x), rotation)
        return x + self.ffn(self.ln2(x))


class _Attention(nn.Module):
    """Causal self-attention with rotary positions, which pair dimension i with i + head_dim / 2."""

    def __init__(self, config: Any):
        super().__init__()
        self.num_heads = config.num_heads
        self.q_proj, self.k_proj, self.v_proj, self.output_proj = (
            nn.Linear(config.d_model, config.d_model, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        q, k, v = (
            projection(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = F.scaled_dot_product_attention(_rotated(q, rotation), _rotated(k, rotation), v, is_causal=True)
        return self.output_proj(out.transpose(1, 2).flatten(-2))


class _FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: Any):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(config.d_model, config.d_ff, bias=False) for _ in range(2))
        self.w2 = nn.Linear(config.d_ff, config.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


def _rotated(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate x (..., seq_len, head_dim) in float32."""
    cos, sin = rotation
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)


def eager(config: Any, weights: Mapping[str, Tensor], ids: Tensor, targets: Tensor) -> Step:
    """Step that is not compiled."""
    model = _loaded(config, weights, ids)
    return _step(model, model, _loss, ids, targets)


def compiled_blocks(config: Any, weights: Mapping[str, Tensor], ids: Tensor, targets: Tensor) -> Step:
    """Step of a model whose layers are compiled, each by itself, and its loss."""
    model = _loaded(config, weights, ids)
    for layer in model.layers:
        layer.compile(dynamic=False)
    return _step(model, model, torch.compile(_loss, dynamic=False), ids, targets)


def compiled(config: Any, weights: Mapping[str, Tensor], ids: Tensor, targets: Tensor) -> Step:
    """Step of a model that is compiled as a whole, and its loss."""
    model = _loaded(config, weights, ids)
    run, loss = (torch.compile(each, dynamic=False) for each in (model, _loss))
    return _step(model, run, loss, ids, targets)


def _loaded(config: Any, weights: Mapping[str, Tensor], ids: Tensor) -> _Model:
    with ids.device:
        model = _Model(config, ids.shape[1])
    model.load_state_dict(weights)
    return model


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def _step(
    model: _Model, run: Callable[..., Tensor], loss_of: Callable[..., Tensor], ids: Tensor, targets: Tensor
) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=ids.is_cuda):
            logits = run(ids)
        loss = loss_of(logits, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
