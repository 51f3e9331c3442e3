"""The @triton.jit functions of FlashAttention-2, and nothing else."""
