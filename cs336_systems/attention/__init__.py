"""Scaled dot-product attention: an eager reference, and FlashAttention-2 in PyTorch, Triton and Gluon."""

from cs336_systems.attention.api import flash_attention as flash_attention
