"""Checkpointing: the course's example, and the forwards of real nested checkpoints."""

import functools

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from cs336_systems.accounting import attention, sharded_step
from cs336_systems.accounting.checkpointing import best_segment, block_forwards, last_group, segment_peak_bytes
from cs336_systems.accounting.compute import parameters, step_flops
from cs336_systems.accounting.kept import model_kept_bytes, residual_stream_bytes
from cs336_systems.accounting.peak import peak_step_bytes
from cs336_systems.configs import MODEL_CONFIGS, Checkpointing, ModelConfig
from tests.accounting.counting import build

MIB = 2**20
NUM_BLOCKS = 32
INPUT = residual_stream_bytes(MODEL_CONFIGS["2.7B"], 4, 2048)
BLOCK = {16: 3651.3125 * MIB, 32: 5700.6875 * MIB}
"""Bytes by number of heads: the compiled block that the course prints, and the one of its table."""

FLASH = BLOCK[16] - 2 * attention.scores_bytes(4 * 16, 2048)


@pytest.mark.parametrize(
    ("block", "segment", "mib"),
    [
        (BLOCK[16], 1, 6211),
        (BLOCK[16], 2, 8583),
        (BLOCK[16], 4, 15_245),
        (BLOCK[32], 1, 8261),
        (BLOCK[32], 2, 12_681),
        (FLASH, 1, 4163),
        (FLASH, 2, 4486),
    ],
)
def test_peaks_by_the_number_of_blocks_in_a_segment(block, segment, mib):
    assert INPUT == 80 * MIB
    assert segment_peak_bytes(NUM_BLOCKS, block, INPUT, segment) / MIB == pytest.approx(mib, abs=0.7)


def test_one_block_a_segment_is_best_and_none_is_eighteen_times_as_much():
    assert (NUM_BLOCKS * INPUT / BLOCK[16]) ** 0.5 == pytest.approx(0.84, abs=5e-3)
    assert [best_segment(NUM_BLOCKS, block, INPUT) for block in (*BLOCK.values(), FLASH)] == [1, 1, 1]
    assert best_segment(100, 1.0, 1.0) == 10
    assert best_segment(4, 1.0, 100.0) == 4
    assert NUM_BLOCKS * BLOCK[16] / MIB == pytest.approx(116_842, abs=0.5)


def test_two_halves_a_block_are_worse():
    halves = segment_peak_bytes(2 * NUM_BLOCKS, BLOCK[16], INPUT, 1) - BLOCK[16] + 2500 * MIB
    assert halves / MIB == pytest.approx(7600, rel=0.01)
    assert halves > segment_peak_bytes(NUM_BLOCKS, BLOCK[16], INPUT, 1)


def again(function, x):
    return checkpoint(function, x, use_reentrant=False)


def single(blocks, x):
    for block in blocks:
        x = again(block, x)
    return x


def binary(blocks, x):
    if len(blocks) == 1:
        return blocks[0](x)
    half = len(blocks) // 2
    for part in (blocks[:half], blocks[half:]):
        x = again(lambda x, part=part: binary(part, x), x)
    return x


def left(blocks, x):
    if not blocks:
        return x
    return blocks[-1](again(lambda x: left(blocks[:-1], x), x) if len(blocks) > 1 else x)


@pytest.mark.parametrize(
    ("nesting", "run", "expected"), [("single", single, 16), ("binary", binary, 24), ("left", left, 36)]
)
def test_forwards_are_those_of_real_checkpoints_and_gradients_are_the_same(nesting, run, expected):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 4) for _ in range(8)]
    calls = []

    def counting(layer):
        def block(x):
            calls.append(layer)
            return layer(x).tanh() * 1.5  # an operation after the layer, so that the recomputation includes it

        return block

    blocks = [counting(layer) for layer in layers]
    x = torch.randn(2, 4, requires_grad=True)
    plain = x
    for block in blocks:
        plain = block(plain)
    wanted = torch.autograd.grad(plain.sum(), [layer.weight for layer in layers])
    assert len(calls) == block_forwards(8, "none") == 8
    calls.clear()
    results = torch.autograd.grad(run(blocks, x).sum(), [layer.weight for layer in layers])
    assert len(calls) == block_forwards(8, nesting) == expected
    torch.testing.assert_close(results, wanted)


@pytest.mark.parametrize(
    ("nesting", "run", "expected"),
    [
        ("single", single, {1: 2, 2: 4, 3: 6, 7: 14, 13: 26, 16: 32}),
        ("binary", binary, {1: 1, 2: 4, 3: 7, 4: 10, 7: 20, 13: 42, 16: 56, 32: 128}),
        ("left", left, {1: 1, 2: 3, 3: 6, 7: 28, 13: 91, 16: 136}),
    ],
)
def test_forwards_are_those_of_the_models_blocks_for_any_number_of_them(nesting, run, expected):
    counted = {}
    for num_blocks in expected:
        model = build(ModelConfig(d_model=8, d_ff=8, num_layers=num_blocks, num_heads=1, vocab_size=5), 3, "reference")
        calls = []

        def count(layer, x, model=model, calls=calls):
            calls.append(layer)
            return layer(x, model.cos, model.sin)

        blocks = [functools.partial(count, layer) for layer in model.layers]
        run(blocks, model.token_embeddings(torch.zeros(1, 3, dtype=torch.long))).sum().backward()
        counted[num_blocks] = len(calls)
    assert counted == expected == {num_blocks: block_forwards(num_blocks, nesting) for num_blocks in expected}


@pytest.mark.parametrize("every", [1, 3])
def test_a_model_without_blocks_has_none_to_keep_or_recompute(every):
    checkpointing = Checkpointing(every)
    empty = ModelConfig(d_model=8, d_ff=12, num_layers=0, num_heads=2, vocab_size=11)
    assert last_group(0, checkpointing) == 0
    for accounting in (step_flops, model_kept_bytes, peak_step_bytes):
        assert accounting(empty, 2, 4, checkpointing=checkpointing) == accounting(empty, 2, 4)
    options = {"num_ranks": 2, "chunk_size": 2}
    phases = sharded_step.peak_by_phase(empty, 2, 4, checkpoint_every=every, **options)
    assert max(phases, key=phases.__getitem__) in ("forward: head", "backward: head", "optimizer")
    assert min(phases.values()) >= 12 * parameters(empty) / 2
    assert sharded_step.best_checkpoint_every(empty, 2, 4, **options) == 1


def test_an_unknown_nesting_is_refused():
    with pytest.raises(ValueError, match="nesting='right' was given; allowed: none, single, binary, left"):
        block_forwards(4, "right")
