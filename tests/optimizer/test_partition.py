"""Assignment of parameters to ranks: a pure function of sizes."""

import itertools
import random

import pytest
import torch

from cs336_systems.configs import MODEL_CONFIGS
from cs336_systems.distributed.buckets import partition
from cs336_systems.transformer import TransformerLM


def loads_of(sizes, owners, loads):
    return [load + sum(s for s, owner in zip(sizes, owners, strict=True) if owner == r) for r, load in enumerate(loads)]


@pytest.mark.parametrize(
    ("sizes", "loads", "owners"),
    [
        ([], [0, 0], []),
        ([3], [0, 0, 0], [0]),  # more ranks than parameters
        ([1, 5, 4], [0, 0], [1, 0, 1]),  # the largest first
        ([2, 2, 2], [0, 0, 0], [0, 1, 2]),  # ties go to the first rank
        ([20, 5], [100, 10], [1, 1]),  # existing loads count
        ([8, 7, 6, 5, 4], [0], [0, 0, 0, 0, 0]),
    ],
)
def test_the_largest_goes_first_to_the_least_loaded_rank(sizes, loads, owners):
    before = list(loads)
    assert partition(sizes, loads) == owners
    assert loads == before


def test_it_is_within_four_thirds_of_the_best_partition():
    generator = random.Random(0)
    for _ in range(100):
        num_ranks = generator.choice([2, 3])
        sizes = [generator.randint(1, 30) for _ in range(generator.randint(1, 7))]
        zeros = [0] * num_ranks
        everything = itertools.product(range(num_ranks), repeat=len(sizes))
        best = min(max(loads_of(sizes, owners, zeros)) for owners in everything)
        assert 3 * max(loads_of(sizes, partition(sizes, zeros), zeros)) <= 4 * best, sizes


@pytest.mark.parametrize(("num_ranks", "greedy", "in_turn"), [(2, 1.0, 1.016), (4, 1.0006, 1.016), (8, 1.0044, 1.048)])
def test_the_tensors_of_the_xl_model_are_balanced(num_ranks, greedy, in_turn):
    with torch.device("meta"):
        model = TransformerLM(MODEL_CONFIGS["xl"], 16)
    sizes = [parameter.numel() for parameter in model.parameters()]
    assert sum(sizes) == 1_998_235_200
    zeros = [0] * num_ranks
    owners = {"greedy": partition(sizes, zeros), "in turn": [index % num_ranks for index in range(len(sizes))]}
    most = {name: max(loads_of(sizes, by, zeros)) / (sum(sizes) / num_ranks) for name, by in owners.items()}
    assert most["greedy"] == pytest.approx(greedy, abs=5e-5)
    assert most["in turn"] == pytest.approx(in_turn, abs=5e-4)
