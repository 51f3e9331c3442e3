"""Display names of implementations, of the site, the studies' figures and the report, and their order."""

FASTEST = "fastest"
"""Pseudo-peer: the fastest peer of each case."""

LABELS = {  # what everybody knows first, then step by step to our kernels, then PyTorch's
    "reference": "eager PyTorch",
    "reference_compiled": "compiled eager",
    "pytorch": "tiled PyTorch",
    "pytorch_compiled_backward": "tiled PyTorch, compiled backward",
    "triton_forward_compiled_backward": "Triton forward, compiled backward",
    "flash_attention": "flash_attention",
    "triton": "Triton",
    "triton_tf32": "Triton, TF32 allowed",
    "triton_compiled": "compiled Triton",
    "sdpa": "SDPA",
    "sdpa_flash": "SDPA flash",
    "sdpa_cudnn": "cuDNN",
    "sdpa_efficient": "SDPA efficient",
    "sdpa_math": "SDPA math",
    "flex": "FlexAttention",
    FASTEST: "the fastest peer",
    "perf.workloads.plain_step:eager": "plain PyTorch",
    "perf.workloads.plain_step:compiled_blocks": "plain PyTorch, compiled blocks",
    "perf.workloads.plain_step:compiled": "plain PyTorch, compiled",
}


def label(impl: str) -> str:
    """Return the display name of an implementation."""
    return LABELS.get(impl, impl)


def reading_order(impl: str) -> tuple[int, str]:
    """Sort key: the order of `LABELS`, then unknown implementations."""
    known = list(LABELS)
    return (known.index(impl) if impl in known else len(known), impl)
