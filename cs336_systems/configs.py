"""Named model sizes, for users. Benchmarks keep literals of their own, so that an edit here moves no axis."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only Transformer: everything but its context length and its attention."""

    d_model: int
    d_ff: int
    """Width of the SwiGLU's hidden layer; it has three matrices of d_model x d_ff."""

    num_layers: int
    num_heads: int
    vocab_size: int = 10_000
    rope_theta: float = 10_000.0

    def __post_init__(self) -> None:
        if self.d_model % (2 * self.num_heads):
            raise ValueError(
                f"d_model={self.d_model} and num_heads={self.num_heads} were given; allowed: an even number of "
                "dimensions for every head, since RoPE turns them in pairs"
            )

    @property
    def head_dim(self) -> int:
        """Dimensions of one head."""
        return self.d_model // self.num_heads


MODEL_CONFIGS = {
    "tiny": ModelConfig(d_model=64, d_ff=128, num_layers=2, num_heads=4, vocab_size=256),  # for laptops
    "small": ModelConfig(d_model=768, d_ff=3072, num_layers=12, num_heads=12),
    "medium": ModelConfig(d_model=1024, d_ff=4096, num_layers=24, num_heads=16),
    "large": ModelConfig(d_model=1280, d_ff=5120, num_layers=36, num_heads=20),
    "xl": ModelConfig(d_model=1600, d_ff=6400, num_layers=48, num_heads=25),
    "2.7B": ModelConfig(d_model=2560, d_ff=10240, num_layers=32, num_heads=32),
    "10B": ModelConfig(d_model=4608, d_ff=12288, num_layers=50, num_heads=36),
}
"""The course's sizes of 2025, and the 10B of 2026."""

EDITION_2026 = {"small": "small", "medium": "medium", "large": "large", "xl": "2.7B", "10B": "10B"}
"""What the course of 2026 calls its sizes -> the same model here: its xl is the 2.7B of 2025."""
