"""Named model sizes for users. Benchmarks keep their own literals, so an edit here changes no axis."""

from dataclasses import dataclass

from cs336_systems.checks import is_number, require_at_least, require_one_of

MAX_THETA = 1e38
"""About the largest number whose powers float32 holds; below 1 it does not hold the angles."""


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a decoder-only Transformer, without its context length and its attention."""

    d_model: int
    d_ff: int
    """Hidden width of the SwiGLU, which has three matrices of d_model x d_ff."""

    num_layers: int
    num_heads: int
    vocab_size: int = 10_000
    rope_theta: float = 10_000.0

    def __post_init__(self) -> None:
        require_at_least(1, d_model=self.d_model, d_ff=self.d_ff, num_heads=self.num_heads, vocab_size=self.vocab_size)
        require_at_least(0, num_layers=self.num_layers)
        if not is_number(self.rope_theta) or not 1 <= self.rope_theta <= MAX_THETA:
            raise ValueError(f"rope_theta={self.rope_theta!r} was given; allowed: a number from 1 to {MAX_THETA:g}")
        if self.d_model % (2 * self.num_heads):
            raise ValueError(
                f"d_model={self.d_model} and num_heads={self.num_heads} were given; allowed: an even number of "
                "dimensions per head, since RoPE rotates them in pairs"
            )

    @property
    def head_dim(self) -> int:
        """Number of dimensions of a head."""
        return self.d_model // self.num_heads


CHECKPOINT_MODES = ("groups", "selective", "nested")
"""groups: keep each group's input. selective: keep each attention's result too. nested: keep the first input alone."""


@dataclass(frozen=True)
class Checkpointing:
    """Gradient checkpointing of a model's layers in groups, the last of which keeps all of its activations."""

    every: int = 1
    """Layers in a group; the last group has the rest. With all layers in one group nothing is recomputed."""

    mode: str = "groups"
    """One of `CHECKPOINT_MODES`."""

    offload: bool = False
    """Whether what is kept of earlier groups waits for the backward in host memory, pinned on CUDA."""

    @property
    def runs_hooks(self) -> bool:
        """Whether Python runs between the groups, so that a graph holds one layer at most."""
        return self.mode != "groups" or self.offload

    def __post_init__(self) -> None:
        require_at_least(1, checkpoint_every=self.every)
        if not isinstance(self.offload, bool):
            raise ValueError(f"checkpoint_offload={self.offload!r} was given; allowed: True or False")
        require_one_of(CHECKPOINT_MODES, checkpoint_mode=self.mode)


MODEL_CONFIGS = {
    "tiny": ModelConfig(d_model=64, d_ff=128, num_layers=2, num_heads=4, vocab_size=256),  # for laptops
    "small": ModelConfig(d_model=768, d_ff=3072, num_layers=12, num_heads=12),
    "medium": ModelConfig(d_model=1024, d_ff=4096, num_layers=24, num_heads=16),
    "large": ModelConfig(d_model=1280, d_ff=5120, num_layers=36, num_heads=20),
    "xl": ModelConfig(d_model=1600, d_ff=6400, num_layers=48, num_heads=25),
    "2.7B": ModelConfig(d_model=2560, d_ff=10240, num_layers=32, num_heads=32),
    "8B": ModelConfig(d_model=4096, d_ff=11008, num_layers=34, num_heads=32, vocab_size=151_936),
    "10B": ModelConfig(d_model=4608, d_ff=12288, num_layers=50, num_heads=36),
}
"""Sizes of the course of 2025, and of 2026 the 10B and the leaderboard's 8B. The xl of 2026 is the 2.7B here; the other
names are the same."""
