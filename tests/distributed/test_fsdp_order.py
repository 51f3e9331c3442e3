"""Order of gathers, computations, frees and averages, and their bytes."""

import re

import pytest
import torch
from torch import nn

from cs336_systems.distributed.fsdp import FullyShardedDataParallel
from tests.distributed.ranks import IS_PLAIN, ON_NCCL, spawn

VOCABULARY, WIDTH, HIDDEN = 7, 6, 9


class Chain(nn.Module):
    """Embedding, norm and three linear layers."""

    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.a, self.b, self.c = (
            nn.Linear(WIDTH, HIDDEN, bias=False),
            nn.Linear(HIDDEN, WIDTH, bias=False),
            nn.Linear(WIDTH, 1, bias=False),
        )

    def forward(self, ids):
        return self.c(self.b(self.a(self.norm(self.e(ids))).relu()))


def run_steps(rank, dtype):
    """Map each prefetch to the events of three steps and the traffic of the last one, with evaluations in between."""
    results = {}
    for prefetch in (0, 1, 2):
        net, events = FullyShardedDataParallel(Chain(), dtype, prefetch=prefetch), []
        for _ in range(3):
            with torch.no_grad():
                net(torch.arange(4) + rank)
            net(torch.arange(4) + rank).float().sum().backward()
            net.finish_gradient_synchronization()
            events.append(" ".join(f"{kind[0]}:{name.removesuffix('.weight')}" for kind, name in net.events))
        traffic = net.traffic
        results[prefetch] = events, traffic.gathered, traffic.scattered, traffic.averaged
    return results


# g: gather, c: compute, f: free, a: average
EXPECTED = {
    0: "g:e c:e f:e g:a c:a f:a g:b c:b f:b g:c c:c f:c "
    "g:c c:c f:c a:c g:b c:b f:b a:b g:a c:a f:a a:a a:e a:norm.weight, norm.bias",
    1: "g:e g:a c:e f:e g:b c:a f:a g:c c:b f:b c:c "
    "g:b c:c f:c a:c g:a c:b f:b a:b c:a f:a a:a a:e a:norm.weight, norm.bias",
    2: "g:e g:a g:b c:e f:e g:c c:a f:a c:b f:b g:b c:c "
    "g:a c:c f:c a:c c:b f:b a:b c:a f:a a:a a:e a:norm.weight, norm.bias",
}


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
def test_later_steps_gather_ahead_in_the_order_of_the_first_and_send_the_bytes_of_the_formula(world_size, dtype):
    rows = {"e": VOCABULARY, "a": HIDDEN, "b": WIDTH, "c": 1}
    columns = {"e": WIDTH, "a": WIDTH, "b": HIDDEN, "c": WIDTH}
    size = {name: -(-rows[name] // world_size) * world_size * columns[name] for name in rows}
    itemsize = 4 if dtype is None else dtype.itemsize
    for results in spawn(run_steps, world_size, dtype):
        for prefetch, ((first, *later), gathered, scattered, averaged) in results.items():
            assert first == EXPECTED[0], "the first step knows no order"
            assert later == [EXPECTED[prefetch]] * 2
            twice = size["a"] + size["b"] + (size["c"] if prefetch == 0 else 0)
            assert gathered.num_bytes == itemsize * (sum(size.values()) + twice)
            assert gathered.calls == 7 if prefetch == 0 else 6
            sent = 4 if IS_PLAIN else itemsize  # plainly summed in float32, in a call for each rank's rows
            assert scattered.num_bytes == sent * sum(size.values())
            assert scattered.calls == 4 * (world_size if IS_PLAIN else 1)
            assert averaged.num_bytes == 4 * 2 * WIDTH


def take_step_of_matrices(rank):
    net = FullyShardedDataParallel(nn.Linear(WIDTH, WIDTH, bias=False))
    net(torch.ones(4, WIDTH)).sum().backward()
    net.finish_gradient_synchronization()
    return net.events


def test_a_step_without_replicated_parameters_averages_only_what_there_is():
    for events in spawn(take_step_of_matrices, 2):
        assert [name for kind, name in events if kind == "average"] == ["weight"]


DEPTH, SIDE, ROWS = 6, 2048, 8192


def trace_steps(rank, copy_engines):
    """Map each prefetch to the calls of a third step, and name, stream, start and end of what the GPU does in it."""
    traces = {}
    for prefetch in (0, 1, 2):
        chain = nn.Sequential(*(nn.Linear(SIDE, SIDE, bias=False) for _ in range(DEPTH)))
        net = FullyShardedDataParallel(chain, prefetch=prefetch, copy_engines=copy_engines)
        batch = torch.ones(ROWS, SIDE)

        def step(net=net, batch=batch):
            net(batch).sum().backward()
            net.finish_gradient_synchronization()
            torch.cuda.synchronize()

        step()
        step()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            step()
        events = [
            (event.name(), event.device_resource_id(), event.start_ns(), event.start_ns() + event.duration_ns())
            for event in profile.profiler.kineto_results.events()
            if event.device_type() == torch.autograd.DeviceType.CUDA and not event.is_user_annotation()
        ]
        calls = [kind for kind, _ in net.events if kind in ("gather", "average")]
        traces[prefetch] = calls, sorted(events, key=lambda event: event[2])
    return traces


@pytest.mark.skipif(not ON_NCCL, reason="needs NCCL and two GPUs")
@pytest.mark.parametrize("copy_engines", [True, False])
def test_steps_on_gpus_gather_and_average_beside_the_layers_that_compute(copy_engines):
    traces, _ = spawn(trace_steps, 2, copy_engines)
    hold_to_order(traces, *(("Memcpy", split_copies) if copy_engines else ("nccl", split_collectives)))


def split_copies(calls, lanes):
    """Tell gathers from averages: each call sends in one stream and receives in the other, in order of the calls."""
    spans = [(min(start for start, _ in both), max(end for _, end in both)) for both in zip(*lanes, strict=True)]
    return tuple([s for call, s in zip(calls, spans, strict=True) if call == kind] for kind in ("gather", "average"))


def split_collectives(calls, lanes):
    """Tell gathers from averages: each in a stream of its own."""
    gathers, averages = lanes
    return gathers, averages


def hold_to_order(traces, kind, split):
    """Hold what each prefetch moves, by events of this kind, to the order of a step."""
    for prefetch, (calls, events) in traces.items():
        products = [event for event in events if re.search("gemm|cutlass", event[0])]
        (compute,) = {stream for _, stream, _, _ in products}
        lanes: dict[int, list[tuple[int, int]]] = {}
        for name, stream, start, end in events:
            if stream != compute and re.search(kind, name):
                lanes.setdefault(stream, []).append((start, end))
        gathers, averages = split(calls, lanes.values())
        forward = [(start, end) for _, _, start, end in products[:DEPTH]]
        for (_, gathered), (start, _) in zip(gathers, forward, strict=False):
            assert gathered <= start, "a layer waits for its own gather"
        for layer in range(DEPTH - max(prefetch, 1)):
            ahead, (_, computed) = gathers[layer + max(prefetch, 1)][0], forward[layer]
            assert (ahead < computed) if prefetch else (ahead >= computed)
        assert len(averages) == DEPTH
        assert averages[0][0] < products[-1][2], "the first gradient is averaged while earlier layers go backward"
