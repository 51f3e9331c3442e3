"""Fully sharded training (ZeRO stage 3, FSDP) of the course's model on N ranks: traffic, memory, and what hides it.

Matrices are divided by rows, the RMSNorms' gains stay whole. Gathers move `compute_bytes` per weight (4 for float32, 2
for bfloat16), gradients 4. Bytes are those of whole matrices, of which a ring sends (N - 1)/N (`collectives`); rows are
padded to a multiple of N.
"""

from collections.abc import Iterator, Sequence

from cs336_systems.accounting.collectives import all_gather_bytes
from cs336_systems.configs import ModelConfig

GRADIENTS_UNDER_WAY = 3
"""Whole gradients that exist at once: one is computed while two are averaged."""


def gathered_bytes(config: ModelConfig, num_ranks: int, compute_bytes: int, prefetch: int = 2) -> int:
    """Bytes gathered in a step: every matrix for the forward and, except the embedding, again for the backward.

    With a prefetch the head stays for its backward, which comes next: about 2P - 2Vd weights instead of 2P - Vd.
    """
    embedding, *others = matrices(config, num_ranks)
    again = others if prefetch == 0 else others[:-1]
    return compute_bytes * (embedding + sum(others) + sum(again))


def scattered_bytes(config: ModelConfig, num_ranks: int) -> int:
    """Bytes of gradients averaged at their owners in a step: 4 per weight of a matrix."""
    return 4 * sum(matrices(config, num_ranks))


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
        compute_bytes * sum(sizes[max(0, now - prefetch) : now + 1]) + 4 * sum(sizes[now : now + GRADIENTS_UNDER_WAY])
        for now in range(len(sizes))
    )
    return 16 * sum(sizes) // num_ranks + whole


def tokens_that_hide(num_ranks: int, compute_bytes: int, flops_per_s: float, bandwidth: float, which: str) -> float:
    """Smallest tokens per rank for which matmuls hide a linear layer's collectives, in the forward or the backward.

    The forward computes 2 FLOPs a weight and token while the next layer's weights arrive: T >= (N - 1)/N c C/(2W). The
    backward computes 4 while weights arrive and gradients leave: T >= (N - 1)/N (c + 4) C/(4W). C is the FLOP/s of a
    device and W the bandwidth out of it. With c = 2 and gradients in 2 bytes both would be the (N - 1)/N C/W of
    `parallelism.data_parallel_limit`.
    """
    if which not in ("forward", "backward"):
        raise ValueError(f"which={which!r} was given; allowed: forward, backward")
    moved, flops = (compute_bytes, 2) if which == "forward" else (compute_bytes + 4, 4)
    return all_gather_bytes(moved, num_ranks) * flops_per_s / (flops * bandwidth)


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
