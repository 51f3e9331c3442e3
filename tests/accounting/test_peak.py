"""Peaks of real steps on the CPU emulating CUDA, and the sizes that fit."""

import itertools

import pytest
import torch

from cs336_systems.accounting.compute import parameters
from cs336_systems.accounting.peak import (
    bytes_by_phase,
    fits,
    largest_size_that_fits,
    peak_forward_bytes,
    peak_step_bytes,
)
from cs336_systems.configs import MODEL_CONFIGS, Checkpointing, ModelConfig
from cs336_systems.training import TrainStep, adamw
from tests.accounting.counting import as_on_cuda, batch_of, build, kind, peak_bytes

GIB = 2**30
SHAPES = {  # with different peaks
    "scores": (ModelConfig(d_model=32, d_ff=128, num_layers=3, num_heads=4, vocab_size=100), 2, 128),
    "hidden": (ModelConfig(d_model=64, d_ff=256, num_layers=4, num_heads=2, vocab_size=100), 4, 64),
    "vocabulary": (ModelConfig(d_model=32, d_ff=64, num_layers=2, num_heads=2, vocab_size=2000), 4, 64),
    "weights": (ModelConfig(d_model=128, d_ff=512, num_layers=4, num_heads=4, vocab_size=300), 1, 32),
    "narrow": (ModelConfig(d_model=150, d_ff=150, num_layers=1, num_heads=5, vocab_size=259), 2, 64),
    "first block": (ModelConfig(d_model=64, d_ff=256, num_layers=12, num_heads=8, vocab_size=100), 1, 64),
}
RARE = {
    # Autocast's cache and the loss together are the peak, if checkpointed.
    "casts": (ModelConfig(d_model=32, d_ff=512, num_layers=6, num_heads=2, vocab_size=2000), 2, 32),
    "deep": (ModelConfig(d_model=32, d_ff=128, num_layers=7, num_heads=2, vocab_size=100), 4, 64),
    "deep, many weights": (ModelConfig(d_model=128, d_ff=512, num_layers=5, num_heads=4, vocab_size=100), 2, 64),
}
ONE, TWO = Checkpointing(1), Checkpointing(2)
SELECTIVE, NESTED = Checkpointing(3, "selective"), Checkpointing(2, "nested")
# sdpa stands for flash, because tiles in PyTorch have temporaries.
# Half of all combinations: every pair of options occurs with every shape, and every phase is a peak once.
OPTIONS = (
    ("reference", "fp32", None),
    ("reference", "bf16", ONE),
    ("sdpa", "fp32", TWO),
    ("sdpa", "bf16", None),
)
RUNS = [
    *((shape, *options) for shape in SHAPES for options in OPTIONS),
    ("casts", "sdpa", "bf16", ONE),
    *(("deep", "sdpa", *options) for options in itertools.product(("fp32", "bf16"), (SELECTIVE, NESTED))),
    ("deep, many weights", "sdpa", "fp32", SELECTIVE),
    ("deep, many weights", "sdpa", "bf16", Checkpointing(1, "nested")),
    ("deep, many weights", "reference", "fp32", Checkpointing(3)),
]


@pytest.fixture(autouse=True)
def plain_products(monkeypatch):
    """Disable oneDNN, whose bfloat16 matmuls allocate scratch space, on some CPUs as much as their result."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)


# Every other option of each shape, and all that is rare.
USUAL = [run for i, run in enumerate(RUNS) if (i + i // len(OPTIONS)) % 2 == 0 or run[0] in RARE]


@pytest.mark.parametrize(
    ("shape", "impl", "precision", "checkpointing"),
    [pytest.param(*run, marks=[] if run in USUAL else [pytest.mark.slow]) for run in RUNS],
)
def test_a_steps_peak_is_the_predicted(shape, impl, precision, checkpointing):
    config, batch, seq_len = (SHAPES | RARE)[shape]
    model = build(config, seq_len, impl, checkpointing)
    ids, targets = batch_of(config, batch, seq_len)
    step = TrainStep(model, adamw(model), ids, targets, precision=precision)
    with as_on_cuda():
        step.step()  # makes the optimizer's moments
        step.optimizer.zero_grad()
        added = peak_bytes(step.step)
    lasting = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers(), ids, targets))
    lasting += 8 * parameters(config)
    expected = peak_step_bytes(
        config, batch, seq_len, attention=kind(impl), precision=precision, checkpointing=checkpointing
    )
    # Checkpointing keeps a generator state of 5056 bytes per block on the host; the rest are scalars.
    host = 5056 * config.num_layers if checkpointing else 0
    assert expected - lasting == pytest.approx(added, rel=0.005, abs=host + 4096)


@pytest.mark.parametrize(("impl", "precision"), [("reference", "fp32"), ("sdpa", "bf16"), ("reference", "bf16")])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_forwards_peak_is_the_predicted(shape, impl, precision):
    config, batch, seq_len = SHAPES[shape]
    model = build(config, seq_len, impl)
    ids, targets = batch_of(config, batch, seq_len)
    step = TrainStep(model, adamw(model), ids, targets, precision=precision)
    with as_on_cuda(), torch.no_grad():
        added = peak_bytes(step.forward)
    lasting = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers(), ids, targets))
    expected = peak_forward_bytes(config, batch, seq_len, attention=kind(impl), precision=precision)
    assert expected - lasting == pytest.approx(added, rel=0.001, abs=4096)


@pytest.mark.parametrize("num_heads", [1, 4])
def test_the_peak_of_a_forward_of_short_sequences_and_narrow_layers_is_the_predicted(num_heads):
    batch, seq_len = 8, 32
    config = ModelConfig(d_model=128, d_ff=128, num_layers=2, num_heads=num_heads, vocab_size=128)
    model = build(config, seq_len, "reference")
    step = TrainStep(model, adamw(model), *batch_of(config, batch, seq_len))
    with as_on_cuda(), torch.no_grad():
        added = peak_bytes(step.forward)
    lasting = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers(), step.ids, step.targets))
    assert peak_forward_bytes(config, batch, seq_len) - lasting == pytest.approx(added, rel=0.001, abs=4096)


def test_the_shapes_above_have_their_peaks_in_different_phases():
    peaks = set()
    for shape, impl, precision, checkpointing in RUNS:
        config, *rest = (SHAPES | RARE)[shape]
        phases = bytes_by_phase(config, *rest, attention=kind(impl), precision=precision, checkpointing=checkpointing)
        peak = max(phases, key=phases.__getitem__)
        peaks.add(peak.replace("block 1'", "first'").replace(f"block {config.num_layers}'", "last'"))
    halves = {f"backward: {block}'s {half}" for block in ("first", "last") for half in ("SwiGLU", "attention")}
    assert peaks >= {"forward: loss", "backward: loss", "backward: embedding"} | halves
    assert len(peaks) >= 9, "and blocks between, and a nested recomputation"


def test_a_step_needs_its_state_and_no_less():
    for config in MODEL_CONFIGS.values():
        assert peak_step_bytes(config, 1, 16) > 16 * parameters(config) > peak_forward_bytes(config, 1, 16)


def test_autocast_needs_more_than_float32_where_weights_outweigh_activations():
    config = MODEL_CONFIGS["2.7B"]
    single, half = (peak_forward_bytes(config, 1, 16, precision=name) for name in ("fp32", "bf16"))
    assert half / single == pytest.approx(1.5, abs=0.02)


def test_what_fits_where():
    assert largest_size_that_fits(24 * GIB, 4, 128) == "large"
    assert largest_size_that_fits(141 * 10**9, 4, 512) == "8B"  # the 10B's state alone is 191 GiB
    assert largest_size_that_fits(2**20, 1, 16) is None
    config = MODEL_CONFIGS["2.7B"]
    assert not fits(config, 141 * 10**9, 4, 2048)
    assert fits(config, 141 * 10**9, 4, 2048, checkpointing=ONE)
    peak = peak_step_bytes(config, 4, 2048, attention="flash", precision="bf16")
    assert fits(config, peak, 4, 2048, attention="flash", precision="bf16")
    assert not fits(config, peak - 1, 4, 2048, attention="flash", precision="bf16")
