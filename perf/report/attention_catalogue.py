"""What the attention page knows by name: benchmarks, implementations, axes and outcomes, in the order of the page."""

from dataclasses import dataclass
from typing import Any, Literal

Quantity = Literal["time", "memory"]


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

FASTEST = "fastest"
"""The pseudo-peer: in each case the best of the others."""

LABELS = {  # what everybody knows first, then step by step to our kernels, then PyTorch's
    "reference": "eager PyTorch",
    "reference_compiled": "compiled eager",
    "pytorch": "tiled PyTorch",
    "pytorch_compiled_backward": "tiled PyTorch, compiled backward",
    "triton_forward_compiled_backward": "Triton forward, compiled backward",
    "triton": "Triton",
    "triton_compiled": "compiled Triton",
    "sdpa": "SDPA",
    "sdpa_flash": "SDPA flash",
    "sdpa_cudnn": "SDPA cuDNN",
    "sdpa_efficient": "SDPA efficient",
    "sdpa_math": "SDPA math",
    "flex": "FlexAttention",
    FASTEST: "the fastest peer",
}
STATUS = {  # in words, and short enough for a cell
    "unavailable": ("not available", "n/a"),
    "out_of_memory": ("out of memory", "OOM"),
    "wrong": ("wrong result", "wrong"),
    "too_fast": ("faster than the hardware allows", "too fast"),
    "throttled": ("the device throttled", "throttled"),
    "error": ("error", "error"),
    "crashed": ("crashed", "crash"),
    "hung": ("hung", "hung"),
}
_VALUES = {
    ("is_causal", True): "causal",
    ("is_causal", False): "no mask",
    ("mode", "forward_backward"): "forward + backward",
    ("mode", "before_backward"): "before the backward",
}
_SELF_EXPLAINING = ("mode", "dtype", "is_causal")


def label(impl: str) -> str:
    """An implementation as a reader knows it."""
    return LABELS.get(impl, impl)


def reading_order(impl: str) -> tuple[int, str]:
    """Sorts implementations as `LABELS` has them; what it does not know comes last."""
    known = list(LABELS)
    return (known.index(impl) if impl in known else len(known), impl)


def status(name: str) -> tuple[str, str]:
    """A status in words, and short."""
    return STATUS.get(name, (name, name))


def value_text(axis: str, value: Any) -> str:
    """A value under its axis's name, as in a table."""
    return _VALUES.get((axis, value), str(value))


def words(axis: str, value: Any) -> str:
    """A value by itself, as in a sentence: "causal", "d 64"."""
    return value_text(axis, value) if axis in _SELF_EXPLAINING else f"{axis} {value}"
