"""The Transformer's exact loss and a directional derivative in float64, layer by layer, from weights of our own."""

import functools
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

BATCH = 4
EPSILON = 1e-5
"""Step of the central difference along the direction; in float64 the slope then has six digits."""


Weights = Callable[[str, tuple[int, ...], str], Any]
"""A weight by name, shape and device, float32: `initial`, or a model's own."""


class Size(NamedTuple):
    """Positional arguments of `ModelConfig`."""

    d_model: int
    d_ff: int
    num_layers: int
    num_heads: int
    vocab_size: int = 10_000

    @property
    def matmul_parameters(self) -> int:
        """Count the parameters of the matrices that multiply activations, without embedding and norms."""
        block = 4 * self.d_model**2 + 3 * self.d_model * self.d_ff
        return self.num_layers * block + self.vocab_size * self.d_model

    @property
    def parameters(self) -> int:
        """Count all parameters: 2Vd + L(4d^2 + 3 d d_ff + 2d) + d."""
        norms = (2 * self.num_layers + 1) * self.d_model
        return self.matmul_parameters + self.vocab_size * self.d_model + norms


SIZES = {
    "tiny": Size(64, 128, 2, 4, 256),
    "small": Size(768, 3072, 12, 12),
    "medium": Size(1024, 4096, 24, 16),
    "large": Size(1280, 5120, 36, 20),
    "xl": Size(1600, 6400, 48, 25),
    "2.7B": Size(2560, 10240, 32, 32),
    "8B": Size(4096, 11008, 34, 32, 151_936),
    "10B": Size(4608, 12288, 50, 36),
}


@dataclass(frozen=True)
class ExactStep:
    """Exact values for the initial weights on the batch of `batch_of`."""

    loss: float
    slope: float
    """Derivative of the loss along `direction`: the gradient, projected."""


def batch_of(size: Size, context_length: int, device: str, batch: int = BATCH) -> tuple[Any, Any]:
    """Return ids and targets, (batch, context_length) each: the same random tokens every time."""
    import torch

    generator = torch.Generator(device).manual_seed(0)
    shape = (2, batch, context_length)
    ids, targets = torch.randint(size.vocab_size, shape, generator=generator, device=device)
    return ids, targets


def batch_of_rank(size: Size, context_length: int, device: str, batch: int) -> tuple[Any, Any]:
    """Return `batch_of` with ids of this rank's own."""
    import torch.distributed as dist

    ids, targets = batch_of(size, context_length, device, batch)
    return (ids + 7 * dist.get_rank()) % size.vocab_size, targets


def initial(name: str, shape: tuple[int, ...], device: str) -> Any:
    """Return the weight of this name, float32; it is reproducible, so that it need not be stored."""
    noise = _noise("initial", name, shape, device)
    if len(shape) == 1:  # a norm's
        return 1 + 0.1 * noise
    return noise if "embeddings" in name else noise * (2 / sum(shape)) ** 0.5


def direction(name: str, shape: tuple[int, ...], device: str) -> Any:
    """Return this weight's part of a random direction in weight space, float32, of variance 1."""
    return _noise("direction", name, shape, device)


def weights_of(size: Size, device: str) -> dict[str, Any]:
    """Return every weight of `initial` by its name, float32."""
    d, f, layers, _, vocab = size
    block: dict[str, tuple[int, ...]] = {"ln1.weight": (d,), "ln2.weight": (d,)}
    block |= {f"attn.{name}_proj.weight": (d, d) for name in ("q", "k", "v", "output")}
    block |= {"ffn.w1.weight": (f, d), "ffn.w2.weight": (d, f), "ffn.w3.weight": (f, d)}
    shapes: dict[str, tuple[int, ...]] = {"token_embeddings.weight": (vocab, d)}
    shapes |= {f"layers.{layer}.{name}": shape for layer in range(layers) for name, shape in block.items()}
    shapes |= {"ln_final.weight": (d,), "lm_head.weight": (vocab, d)}
    return {name: initial(name, shape, device) for name, shape in shapes.items()}


@functools.cache
def oracle(size_name: str, context_length: int, device: str, batch: int = BATCH) -> ExactStep:
    """Call `exact_of` with the initial weights and the batch of `batch_of`: 90 TFLOP for 2.7B at context 1024."""
    size = SIZES[size_name]
    return exact_of(size, *batch_of(size, context_length, device, batch), initial)


def exact_of(size: Size, ids: Any, targets: Any, weights: Weights) -> ExactStep:
    """Compute loss and slope by three forwards in float64, requesting each matrix only where it is used."""
    device = str(ids.device)

    def loss(epsilon: float) -> float:
        def weight(name: str, *shape: int) -> Any:
            value = weights(name, shape, device).double()
            return value + epsilon * direction(name, shape, device).double() if epsilon else value

        return exact_loss(size, ids, targets, weight)

    return ExactStep(loss(0.0), (loss(EPSILON) - loss(-EPSILON)) / (2 * EPSILON))


def exact_loss(size: Size, ids: Any, targets: Any, weight: Callable[..., Any]) -> float:
    """Compute the mean cross-entropy in the dtype of `weight(name, *shape)`, without the model's own code."""
    import torch

    d, f, layers, heads, vocab = size
    batch, seq_len = ids.shape
    x = weight("token_embeddings.weight", vocab, d)[ids]
    pairs = torch.arange(d // heads // 2, dtype=torch.float64, device=ids.device)
    angles = torch.arange(seq_len, device=ids.device)[:, None] * 10_000.0 ** (-2 * pairs * heads / d)
    rotation = torch.polar(torch.ones_like(angles), angles)
    hidden = torch.ones(seq_len, seq_len, dtype=torch.bool, device=ids.device).triu(1)

    def norm(y: Any, name: str) -> Any:
        return y * (y.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight(name, d)

    def rotated(y: Any) -> Any:
        z = torch.complex(*y.chunk(2, -1)) * rotation
        return torch.cat((z.real, z.imag), -1)

    for layer in range(layers):
        at = f"layers.{layer}."
        y = norm(x, at + "ln1.weight")
        q, k, v = (
            (y @ weight(f"{at}attn.{name}_proj.weight", d, d).T).view(batch, seq_len, heads, -1).transpose(1, 2)
            for name in "qkv"
        )
        scores = rotated(q) @ rotated(k).transpose(-1, -2) * (heads / d) ** 0.5
        y = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
        x = x + y.transpose(1, 2).reshape(batch, seq_len, d) @ weight(at + "attn.output_proj.weight", d, d).T
        y = norm(x, at + "ln2.weight")
        gate = y @ weight(at + "ffn.w1.weight", f, d).T
        x = (
            x
            + (gate * gate.sigmoid() * (y @ weight(at + "ffn.w3.weight", f, d).T))
            @ weight(at + "ffn.w2.weight", d, f).T
        )
    logits = norm(x, "ln_final.weight") @ weight("lm_head.weight", vocab, d).T
    return float(-logits.log_softmax(-1).gather(-1, targets[..., None]).mean())


def _noise(purpose: str, name: str, shape: tuple[int, ...], device: str) -> Any:
    import torch

    generator = torch.Generator(device).manual_seed(zlib.crc32(f"{purpose} {name}".encode()))
    return torch.randn(*shape, dtype=torch.float32, generator=generator, device=device)
