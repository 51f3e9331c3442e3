"""Which kernels a training step runs, in which phase, and what limits it."""
