"""Traffic and memory of fully sharded training: by hand, and against what a real model sends and holds."""

import pytest
import torch

from cs336_systems.accounting import fully_sharded
from cs336_systems.configs import MODEL_CONFIGS, ModelConfig
from cs336_systems.distributed.fsdp import FullyShardedDataParallel
from cs336_systems.transformer import TransformerLM
from tests.distributed.ranks import on_a_gpu, spawn, spawn_processes

ODD = ModelConfig(d_model=12, d_ff=20, num_layers=2, num_heads=2, vocab_size=31)


def train(rank, dtype):
    """Map each prefetch to the bytes that were gathered, scattered and are held."""
    results = {}
    for prefetch in (0, 1, 2):
        net = FullyShardedDataParallel(TransformerLM(ODD, 8), dtype, prefetch=prefetch)
        optimizer = torch.optim.AdamW(net.parameters())
        for _ in range(2):
            net(torch.arange(8)[None] + rank).float().square().mean().backward()
            net.finish_gradient_synchronization()
            optimizer.step()
        state = [value for values in optimizer.state.values() for value in values.values() if value.ndim]
        held = sum(value.nbytes for value in [*net.parameters(), *state])
        results[prefetch] = net.traffic.gathered.num_bytes, net.traffic.scattered.num_bytes, held
    return results


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize(("dtype", "compute_bytes"), [(None, 4), (torch.bfloat16, 2)], ids=str)
def test_a_real_model_sends_and_holds_the_bytes_of_the_formulas(dtype, compute_bytes):
    ranks = spawn(train, 3, dtype)
    for prefetch, (gathered, scattered, held) in ranks[0].items():
        assert gathered == fully_sharded.gathered_bytes(ODD, 3, compute_bytes, prefetch)
        assert scattered == fully_sharded.scattered_bytes(ODD, 3, compute_bytes)
        assert held == fully_sharded.lasting_bytes(ODD, 3), "the first rank's shards are full"


def test_two_ranks_of_xl():
    xl = MODEL_CONFIGS["xl"]
    weights, vocabulary = 1_998_080_000, 10_000 * 1600
    assert sum(fully_sharded.matrices(xl, 2)) == weights
    assert fully_sharded.gathered_bytes(xl, 2, 2, 0) == 2 * (2 * weights - vocabulary)
    assert fully_sharded.gathered_bytes(xl, 2, 2) == 2 * (2 * weights - 2 * vocabulary)
    assert fully_sharded.scattered_bytes(xl, 2, 4) == 4 * weights
    gains = 97 * 1600
    assert fully_sharded.lasting_bytes(xl, 2) == 6 * weights + 12 * gains
    # while the last w3 computes: itself, w1 and output_proj, and the gradients of itself, w2 and the head
    square, wide = 1600**2, 1600 * 6400
    whole = 2 * (square + 2 * wide) + 2 * wide + 4 * (wide + vocabulary)
    assert fully_sharded.peak_state_bytes(xl, 2, 2) == 8 * weights + 16 * gains + whole


def peak_of_a_chain(rank, width, depth):
    """Return the peak of requested bytes in two steps of equal linear layers, above what was there before."""
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    net = FullyShardedDataParallel(
        torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(depth)))
    )
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        net(torch.ones(1, width)).sum().backward()
        net.finish_gradient_synchronization()
        optimizer.step()
        optimizer.zero_grad()
    return torch.tensor(torch.cuda.memory_stats()["requested_bytes.all.peak"] - before)


@pytest.mark.gpu
def test_the_peak_of_a_rank_is_that_of_the_formula():
    (peak,) = spawn_processes(on_a_gpu, 1, peak_of_a_chain, 2048, 12, backend="nccl")
    assert float(peak) == pytest.approx(fully_sharded.peak_matrix_bytes([2048**2] * 12, 1, 4), rel=0.02)


def test_tokens_that_hide_a_layers_collectives():
    # 8 ranks, 989 TFLOP/s, 450 GB/s: 7/8 * 2 * 989e12 / (2 * 450e9)
    assert fully_sharded.tokens_that_hide(8, 2, 989e12, 450e9) == pytest.approx(1923.06, rel=1e-5)
    assert fully_sharded.tokens_that_hide(1, 4, 989e12, 450e9) == 0
