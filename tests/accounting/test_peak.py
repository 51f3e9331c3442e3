"""The peak of real steps on the CPU standing in for CUDA, and what fits where."""

import itertools

import pytest
import torch

from cs336_systems.accounting.compute import parameters
from cs336_systems.accounting.peak import (
    fits,
    largest_size_that_fits,
    peak_forward_bytes,
    peak_step_bytes,
    state_bytes,
    step_moments,
)
from cs336_systems.configs import MODEL_CONFIGS, ModelConfig
from cs336_systems.training import TrainStep, adamw
from tests.accounting.counting import as_on_cuda, batch_of, build, kind, peak_bytes

GIB = 2**30
SHAPES = {  # each has its peak elsewhere
    "scores": (ModelConfig(d_model=64, d_ff=256, num_layers=3, num_heads=4, vocab_size=100), 3, 256),
    "hidden": (ModelConfig(d_model=128, d_ff=512, num_layers=4, num_heads=2, vocab_size=200), 4, 128),
    "vocabulary": (ModelConfig(d_model=64, d_ff=128, num_layers=2, num_heads=2, vocab_size=4000), 4, 64),
    "weights": (ModelConfig(d_model=256, d_ff=1024, num_layers=4, num_heads=4, vocab_size=300), 1, 32),
    "first block": (ModelConfig(d_model=128, d_ff=512, num_layers=12, num_heads=16, vocab_size=100), 1, 128),
}
RARE = {  # the cache of casts beside the loss: checkpointed under autocast
    "casts": (ModelConfig(d_model=64, d_ff=1024, num_layers=12, num_heads=2, vocab_size=8000), 4, 64),
}
# sdpa stands for flash: kernels without temporaries, which the tiles in PyTorch are not.
RUNS = list(itertools.product(SHAPES, ("reference", "sdpa"), ("fp32", "bf16"), (False, True)))
RUNS += [("casts", "sdpa", "bf16", True)]


@pytest.fixture(autouse=True)
def plain_products(monkeypatch):
    """Without oneDNN, whose bfloat16 products take scratch of their own, on some CPUs as much as their result."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)


@pytest.mark.parametrize(("shape", "impl", "precision", "checkpointed"), RUNS)
def test_a_steps_peak_is_the_predicted(shape, impl, precision, checkpointed):
    config, batch, seq_len = (SHAPES | RARE)[shape]
    model = build(config, seq_len, impl, checkpointed=checkpointed)
    ids, targets = batch_of(config, batch, seq_len)
    step = TrainStep(model, adamw(model), ids, targets, precision=precision)
    with as_on_cuda():
        step.step()  # makes the optimizer's moments
        step.optimizer.zero_grad()
        added = peak_bytes(step.step)
    lasting = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers(), ids, targets))
    lasting += state_bytes(config)["moments"]
    expected = peak_step_bytes(
        config, batch, seq_len, attention=kind(impl), precision=precision, checkpointed=checkpointed
    )
    # Checkpointing keeps a generator's state of 5056 bytes a block, on the host; the rest is scalars.
    host = 5056 * config.num_layers if checkpointed else 0
    assert expected - lasting == pytest.approx(added, rel=0.005, abs=host)


@pytest.mark.parametrize(
    ("shape", "impl", "precision"), list(itertools.product(SHAPES, ("reference", "sdpa"), ("fp32", "bf16")))
)
def test_a_forwards_peak_is_the_predicted(shape, impl, precision):
    config, batch, seq_len = SHAPES[shape]
    model = build(config, seq_len, impl)
    ids, targets = batch_of(config, batch, seq_len)
    step = TrainStep(model, adamw(model), ids, targets, precision=precision)
    with as_on_cuda(), torch.no_grad():
        added = peak_bytes(step.forward)
    lasting = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers(), ids, targets))
    expected = peak_forward_bytes(config, batch, seq_len, attention=kind(impl), precision=precision)
    assert expected - lasting == pytest.approx(added, rel=0.001)


def test_the_shapes_above_have_their_peaks_in_different_moments():
    moments = [
        step_moments(*(SHAPES | RARE)[shape], attention=kind(impl), precision=precision, checkpointed=checkpointed)
        for shape, impl, precision, checkpointed in RUNS
    ]
    peaks = {max(each, key=each.__getitem__) for each in moments}
    assert peaks == {
        "forward: loss",
        "backward: loss",
        "backward: last block's SwiGLU",
        "backward: last block's attention",
        "backward: first block's SwiGLU",
        "backward: first block's attention",
        "backward: embedding",
    }


@pytest.mark.parametrize(
    ("size", "parameters_gib", "all_gib"),
    [
        ("small", 0.479, 1.917),
        ("medium", 1.576, 6.306),
        ("large", 3.611, 14.445),
        ("xl", 7.444, 29.776),
        ("2.7B", 12.691, 50.765),
        ("10B", 47.81, 191.2),
    ],
)
def test_state_of_the_courses_sizes(size, parameters_gib, all_gib):
    config = MODEL_CONFIGS[size]
    state = state_bytes(config)
    assert state["parameters"] == state["gradients"] == state["moments"] / 2
    assert sum(state.values()) == 16 * parameters(config)
    assert state["parameters"] / GIB == pytest.approx(parameters_gib, abs=6e-3 if size == "10B" else 6e-4)
    assert sum(state.values()) / GIB == pytest.approx(all_gib, abs=6e-2 if size == "10B" else 6e-4)


def test_a_step_needs_its_state_and_no_less():
    for config in MODEL_CONFIGS.values():
        assert peak_step_bytes(config, 1, 16) > 16 * parameters(config) > peak_forward_bytes(config, 1, 16)


def test_autocast_needs_more_than_float32_where_weights_outweigh_activations():
    config = MODEL_CONFIGS["2.7B"]
    single, half = (peak_forward_bytes(config, 1, 16, precision=name) for name in ("fp32", "bf16"))
    assert half / single == pytest.approx(1.5, abs=0.02)


def test_what_fits_where():
    assert largest_size_that_fits(24 * GIB, 4, 128) == "large"
    assert largest_size_that_fits(141 * 10**9, 4, 512) == "2.7B"  # the 10B's state alone is 191 GiB
    assert largest_size_that_fits(2**20, 1, 16) is None
    config = MODEL_CONFIGS["2.7B"]
    assert not fits(config, 141 * 10**9, 4, 2048)
    assert fits(config, 141 * 10**9, 4, 2048, checkpointed=True)
    peak = peak_step_bytes(config, 4, 2048, attention="flash", precision="bf16")
    assert fits(config, peak, 4, 2048, attention="flash", precision="bf16")
    assert not fits(config, peak - 1, 4, 2048, attention="flash", precision="bf16")
