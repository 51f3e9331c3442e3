"""Triton kernels of FlashAttention-2, for any GPU and any input that attention takes."""
