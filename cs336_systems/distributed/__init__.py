"""Data parallelism four ways, and ZeRO stage 1, over torch.distributed: gloo on CPUs and NCCL on GPUs, one code."""
