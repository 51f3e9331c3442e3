"""The least time that arithmetic and memory traffic allow (Williams, Waterman, Patterson 2009)."""


def seconds(flops: float, num_bytes: float, flops_per_s: float, bytes_per_s: float) -> float:
    """max(flops / C, bytes / W): both go on at once, and neither faster than the device can."""
    return max(flops / flops_per_s, num_bytes / bytes_per_s)


def ridge(flops_per_s: float, bytes_per_s: float) -> float:
    """C / W, in FLOPs a byte: work of a higher intensity is limited by arithmetic, of a lower one by memory."""
    return flops_per_s / bytes_per_s


def optimizer_bytes(num_parameters: int) -> int:
    """28P: AdamW reads parameters, gradients and two moments and writes all but the gradients, float32."""
    return 28 * num_parameters
