"""The course's interface to this package: its tests call these names and nothing else."""


def get_flashattention_autograd_function_pytorch() -> type:
    """The class (not its apply) of FlashAttention-2 in PyTorch."""
    from cs336_systems.attention.flash_pytorch import FlashAttentionPyTorch

    return FlashAttentionPyTorch


def get_flashattention_autograd_function_triton() -> type:
    """The class (not its apply) of FlashAttention-2 in Triton."""
    from cs336_systems.attention.flash_triton import FlashAttentionTriton

    return FlashAttentionTriton
