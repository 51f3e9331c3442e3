"""The benchmarks that the attention page knows, in its order."""

from dataclasses import dataclass

from perf.site.wording import Quantity


@dataclass(frozen=True)
class Section:
    """One asv class, in a reader's words."""

    title: str
    about: str
    ours: str = "triton"
    """The implementation that the others are held against."""

    subject: str = "our Triton attention"
    """What to call it in a sentence."""

    quantity: Quantity = "time"
    """What its cases say; memory for a class that reports no time."""

    @property
    def method(self) -> str:
        """asv's name of the series."""
        return "track_time" if self.quantity == "time" else "track_peak_memory"


SECTIONS = {
    "attention.FlashAttention": Section(
        "One causal head, every shape", "Batch 1 and one head under a causal mask: the course's grid."
    ),
    "attention.ShortAttention": Section(
        "Short sequences, launches aside",
        "One causal head where starting a kernel takes longer than the kernel: many calls in one CUDA graph.",
    ),
    "attention.MultiHeadAttention": Section(
        "Many heads, against each of PyTorch's kernels",
        "The FlashAttention papers' grid: the same number of tokens, cut into fewer and longer sequences.",
    ),
    "attention.Leaderboard": Section(
        "The CS336 leaderboard",
        "Forward, sum and backward of 16 causal heads; its rules ask for the compiled call.",
        ours="triton_compiled",
        subject="our compiled Triton attention",
    ),
    "attention.FlashVariants": Section(
        "What each step buys",
        "One causal head, step by step: eager, tiled, with a compiled backward, with kernels in Triton.",
    ),
    "attention.FirstCall": Section(
        "The wait for the first result",
        "Forward and backward of one causal head in a fresh process: compilation, loading and tuning included.",
    ),
    "attention.FirstCallShapes": Section(
        "The same wait, by the kernels that a shape gets",
        "Ours alone, of one causal head and of 32: each head dimension and dtype has kernels of its own to compile.",
    ),
    "attention.PyTorchAttention": Section(
        "Eager attention, compiled",
        "Nothing of ours: what torch.compile makes of eager attention, without heads or mask.",
        ours="reference_compiled",
        subject="compiled eager attention",
    ),
    "attention.PyTorchAttentionSaved": Section(
        "What eager attention keeps for its backward",
        "Memory in use between forward and backward: the inputs, and what the forward saved.",
        ours="reference_compiled",
        subject="compiled eager attention",
        quantity="memory",
    ),
    "smoke.SmokeAttention": Section(
        "One causal head, on a CPU",
        "Small shapes without a GPU: what any machine can measure.",
        ours="pytorch",
        subject="our tiled PyTorch attention",
    ),
    "smoke.SmokeMultiHeadAttention": Section(
        "Several heads, on a CPU",
        "Two heads without a mask, by the kernel that PyTorch has for a CPU.",
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
        "The wait for the first result, on a CPU",
        "Forward and backward of one causal head in a fresh process; nothing of it is compiled.",
        ours="pytorch",
        subject="our tiled PyTorch attention",
    ),
}
