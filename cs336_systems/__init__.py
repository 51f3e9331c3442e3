"""Training systems of a Transformer language model: attention kernels, data parallelism, sharded optimizer state."""

__version__ = "0.1.0"
