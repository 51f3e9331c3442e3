"""Data parallelism in four forms and ZeRO stage 1, over torch.distributed: gloo on CPUs, NCCL on GPUs."""
