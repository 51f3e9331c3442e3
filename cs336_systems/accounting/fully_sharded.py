"""Fully sharded training (ZeRO stage 3, FSDP) of the course's model on N ranks: traffic, memory, and what hides it.

Matrices are divided by rows, the RMSNorms' gains stay whole. Gathers and gradients move `compute_bytes` per weight (4
for float32, 2 for bfloat16, whose sums are float32 where they arrive). Bytes are those of whole matrices, of which
(N - 1)/N are sent (`collectives`); rows are padded to a multiple of N.
"""

from collections.abc import Iterator, Sequence

from cs336_systems.accounting.collectives import all_gather_bytes
from cs336_systems.configs import ModelConfig

GRADIENTS_UNDER_WAY = 2
"""Whole gradients that NCCL averages at once, while one is computed: in 4 bytes, or sent and received in 2 each."""


def gathered_bytes(config: ModelConfig, num_ranks: int, compute_bytes: int, prefetch: int = 2) -> int:
    """Bytes gathered in a step: every matrix for the forward and, except the embedding, again for the backward.

    With a prefetch the head stays for its backward, which comes next: about 2P - 2Vd weights instead of 2P - Vd.
    """
    embedding, *others = matrices(config, num_ranks)
    again = others if prefetch == 0 else others[:-1]
    return compute_bytes * (embedding + sum(others) + sum(again))


def scattered_bytes(config: ModelConfig, num_ranks: int, compute_bytes: int) -> int:
    """Bytes of gradients averaged at their owners in a step."""
    return compute_bytes * sum(matrices(config, num_ranks))


def lasting_bytes(config: ModelConfig, num_ranks: int) -> int:
    """Size of a rank's parameters and Adam's moments between steps: 12/N per weight, 12 per gain. Gradients add 4."""
    weights = sum(matrices(config, num_ranks))
    gains = (2 * config.num_layers + 1) * config.d_model
    return 12 * (weights // num_ranks + gains)


def peak_state_bytes(config: ModelConfig, num_ranks: int, compute_bytes: int, prefetch: int = 2) -> int:
    """Largest size of a rank's parameters, gradients and moments in the backward, without activations.

    Each linear layer is gathered by itself; a compiled block is gathered whole, as one layer.
    """
    gains = (2 * config.num_layers + 1) * config.d_model
    return 16 * gains + peak_matrix_bytes(list(matrices(config, num_ranks)), num_ranks, compute_bytes, prefetch)


def peak_matrix_bytes(sizes: Sequence[int], num_ranks: int, compute_bytes: int, prefetch: int = 2) -> int:
    """Largest size of matrices with these weights in the backward: 16/N per weight, and what is whole at that time.

    While a layer computes, it and the `prefetch` layers before it are whole, and the gradients of it and of the two
    after it.
    """
    whole = max(
        compute_bytes * (sum(sizes[max(0, now - prefetch) : now + 1]) + sizes[now])
        + 4 * sum(sizes[now + 1 : now + 1 + GRADIENTS_UNDER_WAY])
        for now in range(len(sizes))
    )
    return 16 * sum(sizes) // num_ranks + whole


def tokens_that_hide(num_ranks: int, compute_bytes: int, flops_per_s: float, bandwidth: float) -> float:
    """Smallest tokens per rank for which matmuls hide a linear layer's collectives, in the forward as in the backward.

    The forward computes 2 FLOPs a weight and token while the next layer's weights arrive: T >= (N - 1)/N c C/(2W). The
    backward computes 4 while weights arrive and gradients leave, 2c bytes. C is the FLOP/s of a device and W the
    bandwidth out of it. With c = 2 this is `parallelism.data_parallel_limit`.
    """
    return all_gather_bytes(compute_bytes, num_ranks) * flops_per_s / (2 * bandwidth)


def matrices(config: ModelConfig, num_ranks: int) -> Iterator[int]:
    """Yield the padded number of weights of each matrix, in the order of the forward."""

    def padded(rows: int, columns: int) -> int:
        return -(-rows // num_ranks) * num_ranks * columns

    d, hidden = config.d_model, config.d_ff
    yield padded(config.vocab_size, d)
    for _ in range(config.num_layers):
        yield from [padded(d, d)] * 4
        yield from [padded(hidden, d)] * 2
        yield padded(d, hidden)
    yield padded(config.vocab_size, d)
