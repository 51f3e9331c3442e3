"""Parameters, FLOPs and the course's activations, against the course's numbers and torch's counter."""

import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from cs336_systems.accounting.compute import forward_flops, matmul_weights, parameters, step_flops
from cs336_systems.accounting.kept import course_block_kept_bytes
from cs336_systems.configs import CHECKPOINT_MODES, MODEL_CONFIGS, Checkpointing, ModelConfig
from cs336_systems.training import cross_entropy
from cs336_systems.transformer import TransformerLM
from tests.accounting.counting import build

UNEVEN = ModelConfig(d_model=96, d_ff=160, num_layers=3, num_heads=4, vocab_size=176)


def test_parameters_are_those_of_the_model():
    model = TransformerLM(UNEVEN, 8)
    assert parameters(UNEVEN) == sum(parameter.numel() for parameter in model.parameters())
    linear = sum(module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Linear))
    assert matmul_weights(UNEVEN) == linear


@pytest.mark.parametrize(
    ("size", "tflops"),
    [
        ("small", {128: 0.126, 512: 0.534, 1024: 1.145}),
        ("medium", {128: 0.429, 512: 1.794, 1024: 3.795}),
        ("large", {128: 0.992, 512: 4.111, 1024: 8.609}),
        ("xl", {128: 2.050, 512: 8.441, 1024: 17.53}),
        ("2.7B", {128: 3.484, 512: 14.19, 1024: 29.07}),
        ("10B", {128: 13.15, 512: 53.34, 1024: 108.6}),
    ],
)
def test_flops_of_a_forward_at_the_courses_sizes(size, tflops):
    for seq_len, expected in tflops.items():
        results = forward_flops(MODEL_CONFIGS[size], 4, seq_len) / 1e12
        last_digit = 1e-3 if expected < 10 else 1e-2 if expected < 100 else 1e-1
        assert results == pytest.approx(expected, abs=0.5 * last_digit)


@pytest.mark.parametrize(
    "checkpointing", [None, *(Checkpointing(2, mode) for mode in CHECKPOINT_MODES), Checkpointing(1, "nested")]
)
def test_flops_are_those_that_torch_counts(checkpointing):
    model = build(UNEVEN, 64, "reference", checkpointing)
    ids = torch.zeros(3, 64, dtype=torch.long)
    with FlopCounterMode(display=False) as forward:
        loss = cross_entropy(model(ids), ids)
    assert forward.get_total_flops() == forward_flops(UNEVEN, 3, 64)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    counted = forward.get_total_flops() + backward.get_total_flops()
    assert counted == step_flops(UNEVEN, 3, 64, checkpointing=checkpointing)


@pytest.mark.parametrize(
    ("sizes", "seq_len", "mib"),
    [
        ((2560, 10240, 32, 32), 128, 166.2),
        ((2560, 10240, 32, 32), 256, 364.4),
        ((2560, 10240, 32, 32), 512, 857.0),
        ((2560, 10240, 32, 16), 2048, 4453.6),
        ((2560, 10240, 32, 32), 2048, 6503.1),
        ((1600, 6400, 48, 25), 512, 575.9),
    ],
)
def test_a_block_of_the_courses_model_keeps_what_was_counted(sizes, seq_len, mib):
    assert course_block_kept_bytes(ModelConfig(*sizes), 4, seq_len) / 2**20 == pytest.approx(mib, abs=0.06)


@pytest.mark.parametrize(("num_heads", "mib"), [(16, 3651.3125), (32, 5700.6875)])
def test_a_compiled_block_of_the_courses_model(num_heads, mib):
    config = ModelConfig(2560, 10240, 32, num_heads)
    assert course_block_kept_bytes(config, 4, 2048, compiled=True) / 2**20 == pytest.approx(mib, rel=1e-3)


def test_no_closed_form_needs_torch():
    code = (
        "import sys\n"
        "import importlib, pkgutil\n"
        "from cs336_systems import accounting\n"
        "for found in pkgutil.iter_modules(accounting.__path__):\n"
        "    importlib.import_module(f'cs336_systems.accounting.{found.name}')\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'perf')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
