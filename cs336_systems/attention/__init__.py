"""Scaled dot-product attention: a reference and FlashAttention-2 in plain PyTorch and in Triton."""
