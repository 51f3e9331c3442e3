"""Kernels of a training step by phase, and what limits the step."""
