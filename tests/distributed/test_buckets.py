"""Assignment of gradients to buckets: pure functions."""

import random
from itertools import pairwise

import pytest
import torch
from torch import nn

from cs336_systems.distributed.buckets import MIB, Bucket, backward_groups, buckets_of, merged_groups
from tests.distributed.models import Tied, Toy


def trained(model):
    return [parameter for parameter in model().parameters() if parameter.requires_grad]


def of_bytes(*sizes):
    return [torch.empty(size, dtype=torch.int8) for size in sizes]


def indices(buckets):
    return [bucket.indices for bucket in buckets]


# Toy has gradients of 400, 2000 and 1000 bytes; Tied of 400, 2000, 2000 and 1000.
@pytest.mark.parametrize(
    ("model", "bucket_size_mb", "expected"),
    [
        (Toy, 0.0001, [(2,), (1,), (0,)]),  # 104 B: each exceeds it
        (Toy, 0.0016, [(2,), (1,), (0,)]),  # 1677 B
        (Toy, 0.0025, [(2,), (1, 0)]),  # 2621 B
        (Toy, 3000 / MIB, [(2, 1), (0,)]),  # full to the byte
        (Toy, 0.01, [(2, 1, 0)]),
        (Toy, None, [(2, 1, 0)]),
        (Tied, 0.0001, [(3,), (2,), (1,), (0,)]),
        (Tied, 0.0016, [(3,), (2,), (1,), (0,)]),
        (Tied, 0.0025, [(3,), (2,), (1, 0)]),
        (Tied, 0.01, [(3, 2, 1, 0)]),
    ],
)
def test_buckets_go_from_the_last_parameter_to_the_first(model, bucket_size_mb, expected):
    assert indices(buckets_of(trained(model), bucket_size_mb)) == expected


def test_a_bucket_closes_before_it_exceeds_its_size_and_a_large_parameter_travels_alone():
    buckets = buckets_of(of_bytes(30, 100, 40, 60, 1), 100 / MIB)
    assert indices(buckets) == [(4, 3), (2,), (1,), (0,)]
    assert [bucket.num_bytes for bucket in buckets] == [61, 40, 100, 30]
    assert indices(buckets_of(of_bytes(10, 500, 10), 100 / MIB)) == [(2,), (1,), (0,)]


def test_a_size_is_in_mib():
    assert len(buckets_of(of_bytes(2**19, 2**19), 1.0)) == 1
    assert len(buckets_of(of_bytes(2**19, 2**19 + 1), 1.0)) == 2


def test_dtypes_travel_apart_and_in_order_of_their_last_gradient():
    half, single = torch.empty(2, dtype=torch.bfloat16), torch.empty(2)
    buckets = buckets_of([single, half, half, single, half], None)
    assert [(bucket.indices, bucket.num_bytes) for bucket in buckets] == [((4, 2, 1), 12), ((3, 0), 16)]
    # at most 8 bytes: the bfloat16 bucket closes before the float32 buckets around it
    assert indices(buckets_of([single, half, half, half, single], 8 / MIB)) == [(4,), (3, 2), (1,), (0,)]
    assert indices(buckets_of([half, single, half], None)) == [(1,), (2, 0)]


def test_devices_travel_apart():
    assert indices(buckets_of([torch.empty(2), torch.empty(2, device="meta")], None)) == [(1,), (0,)]


def test_nothing_needs_no_bucket_and_an_empty_parameter_fits_in_any():
    assert buckets_of([], 1.0) == []
    assert indices(buckets_of(of_bytes(0, 7, 0), 7 / MIB)) == [(2, 1, 0)]
    assert indices(buckets_of(of_bytes(7, 0), 5 / MIB)) == [(1, 0)]


@pytest.mark.parametrize("seed", range(5))
def test_any_parameters_are_each_in_one_bucket_that_is_full_but_not_too_full(seed):
    source = random.Random(seed)
    dtypes = (torch.int8, torch.bfloat16, torch.float32)
    parameters = [
        torch.empty(source.randrange(0, 60), dtype=source.choice(dtypes)) for _ in range(source.randrange(1, 40))
    ]
    buckets = buckets_of(parameters, 100 / MIB)
    assert sorted(index for bucket in buckets for index in bucket.indices) == list(range(len(parameters)))
    assert buckets == sorted(buckets, key=lambda bucket: min(bucket.indices), reverse=True)
    for bucket in buckets:
        assert list(bucket.indices) == sorted(bucket.indices, reverse=True)
        assert len({parameters[index].dtype for index in bucket.indices}) == 1
        assert bucket.num_bytes == sum(parameters[index].nbytes for index in bucket.indices)
        assert bucket.num_bytes <= 100 or sum(parameters[index].nbytes > 0 for index in bucket.indices) == 1
    for dtype in dtypes:  # a bucket closes only if the next parameter does not fit
        alike = [bucket for bucket in buckets if parameters[bucket.indices[0]].dtype == dtype]
        for bucket, following in pairwise(alike):
            assert bucket.num_bytes + parameters[following.indices[0]].nbytes > 100


@pytest.mark.parametrize("bucket_size_mb", [0, -1.0, float("nan"), True, "25"])
def test_a_size_that_is_not_positive_is_refused(bucket_size_mb):
    with pytest.raises(
        ValueError, match=f"bucket_size_mb={bucket_size_mb!r} was given; allowed: a number above 0, or None"
    ):
        buckets_of(of_bytes(1), bucket_size_mb)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(x).relu()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch.compile's own, of a block's input
@pytest.mark.parametrize(
    ("layers", "compiled", "expected"),
    [
        ([Block(), Block()], False, [(3,), (2,), (1,), (0,)]),
        ([Block(), Block()], True, [(3, 2), (1, 0)]),
        ([nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 3)], False, [(5,), (4,), (3, 2), (1,), (0,)]),
    ],
)
def test_gradients_that_one_node_makes_are_together(layers, compiled, expected):
    model = nn.Sequential(*layers)
    for layer in layers if compiled else ():
        layer.compile(backend="aot_eager")
    assert indices(backward_groups({"out": [model(torch.rand(2, 3))]}, list(model.parameters()))) == expected


def test_what_several_nodes_make_or_none_in_sight_or_another_dtype_stands_alone():
    class Made(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *parameters):
            return sum(parameter.float().sum() for parameter in parameters)

        @staticmethod
        def backward(ctx, gradient):
            raise NotImplementedError

    single, other, tied, unused = (nn.Parameter(torch.rand(2)) for _ in range(4))
    half = nn.Parameter(torch.rand(2, dtype=torch.bfloat16))
    parameters = [single, other, tied, unused, half]
    assert indices(backward_groups(Made.apply(single, other, tied, half) + tied.sum(), parameters)) == [
        (4,),
        (3,),
        (2,),
        (1, 0),
    ]
    assert indices(backward_groups("no tensor", parameters)) == [(4,), (3,), (2,), (1,), (0,)]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([10] * 16, [10, 80, 40, 20, 10]),
        ([512] + [1] * 100, [519, 48, 24, 12, 6, 3]),  # the last is 1/256 of 612 or more
        ([500 * MIB] * 8, [1000 * MIB, 1500 * MIB, 1000 * MIB, 500 * MIB]),
        ([7], [7]),
        ([], []),
    ],
)
def test_groups_grow_from_the_end_of_the_backward(sizes, expected):
    parameters = [torch.empty(size, dtype=torch.uint8, device="meta") for size in sizes]
    results = merged_groups([Bucket((index,), size) for index, size in enumerate(sizes)], parameters)
    assert [bucket.num_bytes for bucket in results] == expected
    assert [index for bucket in results for index in bucket.indices] == list(range(len(sizes)))


def test_groups_hold_one_dtype():
    parameters = [torch.empty(8, dtype=dtype) for dtype in (torch.float32,) * 4 + (torch.bfloat16,) * 2]
    results = merged_groups(
        [Bucket((index,), parameter.nbytes) for index, parameter in enumerate(parameters)], parameters
    )
    assert indices(results) == [(0,), (1, 2), (3,), (4,), (5,)]
