"""Data parallelism in four forms and ZeRO stages 1 and 3, over torch.distributed: gloo on CPUs, NCCL on GPUs."""
