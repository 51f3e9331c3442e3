"""Where we left the handout's advice: one sentence each."""

DEVIATIONS = {
    "Loads": "Our kernels address rows by offsets and masks, because Triton has deprecated block pointers "
    "(`tl.make_block_ptr`) and is removing them.",
    "Backward": "The backward is two Triton kernels, one over keys for dK and dV and one over queries for dQ, instead "
    "of PyTorch under `torch.compile`, which holds the N × N matrices that the forward avoids; the compiled one is "
    "kept as `FlashAttentionCompiledBackward` to measure against.",
    "Mask": "Masked scores are -inf, not -1e6, which float16 cannot hold; every row sees key 0, so no row is left "
    "without a maximum.",
    "Exponentials": "Scores are in base 2, log2(e) folded into their scale, since `exp2` is what the hardware has; "
    "the log-sum-exp that is saved is the natural one.",
    "float32": "A float32 product in our kernels is six bfloat16 products and as exact as float32, where `tl.dot` "
    "would take TF32.",
    "Grid": "The kernels take strides for batch and head, and their grid has one dimension in place of "
    "(tiles, batch), whose second one ends at 65,535.",
    "Clock": "Latencies of attention are medians of CUDA events with the launches queued ahead and a cold L2, not "
    "`triton.testing.do_bench`, beside which `python -m perf study clock` sets them.",
    "Samples": "Eager attention is timed by the median of 10 to 40 samples instead of the mean of 100, and its "
    "backward runs again and again on a graph that is kept.",
    "Profiler": "Kernels are named and timed by torch.profiler, which has them from CUPTI as nsys has; "
    "`python -m perf study kernels --nsys` prints the handout's way.",
    "Memory pictures": "Timelines of memory are drawn by the study from the recorded snapshot, since memory\\_viz is a "
    "page on the internet.",
    "Model": "The Transformer is our own, with torch's softmax, SiLU and fused AdamW, where the course's basics write "
    "them out.",
    "Buckets": "`bucket_size_mb` counts MiB, as torch's `bucket_cap_mb` does, and the gradients of a bucket are "
    "reduced in one coalesced call where they lie, without a flat copy.",
    "All-reduce": "An all-reduce is timed from a barrier until the slowest rank has it, small ones twenty at a time, "
    "instead of a mean over the ranks' own clocks.",
    "Optimizer sharding": "Parameters go whole to the least loaded rank, the largest first, and each owner broadcasts "
    "them after its step.",
}
"""By what each is about."""


def chapter() -> str:
    """A list."""
    return "".join(f"- **{about}.** {sentence}\n" for about, sentence in DEVIATIONS.items())
