"""Benchmarks of the attention page, in its order."""

from dataclasses import dataclass

from perf.site.wording import Quantity


@dataclass(frozen=True)
class Section:
    """Title and description of one asv class."""

    title: str
    about: str
    ours: str = "triton"
    """The implementation that the others are compared with."""

    subject: str = "our Triton attention"
    """Noun phrase for `ours`."""

    quantity: Quantity = "time"
    """The quantity compared: memory for a class that reports no time."""

    @property
    def method(self) -> str:
        """asv's name of the series."""
        return "track_time" if self.quantity == "time" else "track_peak_memory"


SECTIONS = {
    "attention.FlashAttention": Section(
        "One causal head, every shape", "Batch 1 and one head under a causal mask: the course's grid."
    ),
    "attention.ShortAttention": Section(
        "Short sequences, without launch overhead",
        "One causal head whose kernels are shorter than their launch: many calls in one CUDA graph.",
    ),
    "attention.MultiHeadAttention": Section(
        "Many heads, against PyTorch's backends",
        "The FlashAttention papers' grid: a constant number of tokens in fewer, longer sequences.",
    ),
    "attention.Leaderboard": Section(
        "The CS336 leaderboard",
        "Forward, sum and backward of 16 causal heads, compiled as the rules demand.",
        ours="triton_compiled",
        subject="our compiled Triton attention",
    ),
    "attention.FlashVariants": Section(
        "Speed-up of each optimization",
        "One causal head: eager, tiled, with a compiled backward, with Triton kernels.",
    ),
    "attention.FirstCall": Section(
        "Time to the first result",
        "Forward and backward of one causal head in a fresh process: including compilation, loading and autotuning.",
    ),
    "attention.FirstCallShapes": Section(
        "Time to the first result, by shape",
        "Our kernels only, one causal head and 32: each head dimension and dtype compiles its own kernels.",
    ),
    "attention.PyTorchAttention": Section(
        "Eager attention, compiled",
        "torch.compile on eager attention, without heads or mask. No project kernel runs.",
        ours="reference_compiled",
        subject="compiled eager attention",
    ),
    "attention.PyTorchAttentionSaved": Section(
        "Memory that eager attention saves for its backward",
        "Memory in use between forward and backward: inputs and saved tensors.",
        ours="reference_compiled",
        subject="compiled eager attention",
        quantity="memory",
    ),
    "smoke.SmokeAttention": Section(
        "One causal head, on a CPU",
        "Small shapes that need no GPU.",
        ours="pytorch",
        subject="our tiled PyTorch attention",
    ),
    "smoke.SmokeMultiHeadAttention": Section(
        "Several heads, on a CPU",
        "Two heads without a mask, against PyTorch's CPU kernel.",
        ours="pytorch",
        subject="our tiled PyTorch attention",
    ),
    "smoke.SmokeLeaderboard": Section(
        "The CS336 leaderboard, on a CPU",
        "Forward, sum and backward of two causal heads.",
        ours="pytorch",
        subject="our tiled PyTorch attention",
    ),
    "smoke.SmokeFirstCall": Section(
        "Time to the first result, on a CPU",
        "Forward and backward of one causal head in a fresh process, without compilation.",
        ours="pytorch",
        subject="our tiled PyTorch attention",
    ),
}
