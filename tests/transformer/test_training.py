"""Training steps against their mathematics, in every precision and variant that can run here."""

import copy
import functools
import subprocess
import sys

import pytest
import torch
from torch import nn

from cs336_systems import training
from cs336_systems.configs import MODEL_CONFIGS
from cs336_systems.ranges import NOTHING, range_, recorded
from cs336_systems.training import (
    PRECISIONS,
    TrainStep,
    adamw,
    blocks_of,
    cross_entropy,
    make_step,
    make_train_step,
    matmul_precision,
)
from cs336_systems.transformer import TransformerLM

TINY = MODEL_CONFIGS["tiny"]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def model():
    torch.manual_seed(0)
    return TransformerLM(TINY, 16).to(DEVICE)


@pytest.fixture
def batch():
    ids = torch.randint(TINY.vocab_size, (4, 16), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    return ids, ids.roll(-1, dims=1)


def test_one_step_equals_a_float64_computation(model, batch):
    """AdamW's first step is decay, then lr * g / (|g| + eps)."""
    exact = copy.deepcopy(model).double()
    loss = cross_entropy_in_float64(exact(batch[0]), batch[1])
    gradients = torch.autograd.grad(loss, list(exact.parameters()))
    before = [parameter.detach().clone() for parameter in exact.parameters()]

    results = make_step(model, *batch)()
    torch.testing.assert_close(results.double(), loss.detach(), rtol=1e-5, atol=0)
    lr, weight_decay, eps = 1e-3, 0.01, 1e-8
    for parameter, old, gradient in zip(model.parameters(), before, gradients, strict=True):
        new = old * (1 - lr * weight_decay) - lr * gradient / (gradient.abs() + eps)
        well = gradient.abs() > 1e-6  # below it, eps and float32's rounding decide the direction
        torch.testing.assert_close(parameter.detach().double()[well], new[well], rtol=1e-4, atol=2e-6)


def cross_entropy_in_float64(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_model_with_rounded_weights_trains_on_with_masters_alone(model, batch, precision):
    """Torch's AdamW would round moments and updates to bfloat16, and a product of float32 and bfloat16 is none."""
    first = make_step(model, *batch, precision="bf16_weights")
    before = [float(first()) for _ in range(3)]
    if precision == "bf16_weights":
        second = make_train_step(model, *batch, precision=precision)
        assert float(second.step()) < before[-1]
        assert {value.dtype for state in second.optimizer.state.values() for value in state.values()} == {torch.float32}
    else:
        state = copy.deepcopy(model.state_dict())
        with pytest.raises(ValueError, match=r"was given with .* in torch.bfloat16; allowed: bf16_weights, "):
            make_step(model, *batch, precision=precision, variant="compiled_blocks")
        torch.testing.assert_close(model.state_dict(), state, rtol=0, atol=0)
        assert float(first()) < before[-1]


@pytest.mark.parametrize("fused_loss", [False, True])
def test_targets_of_another_shape_are_refused_though_they_are_as_many(model, batch, fused_loss):
    ids, targets = batch
    for wrong in (targets.T, targets.flatten(), targets[:, :8], targets[..., None]):
        with pytest.raises(ValueError, match=r"targets have shapes .*; allowed: .*\(\.\.\.\)$"):
            make_step(model, ids, wrong, fused_loss=fused_loss)()


@pytest.mark.parametrize("fused_loss", [False, True])
def test_targets_of_another_dtype_are_refused_though_ids_may_be_int32(model, batch, fused_loss):
    ids, targets = (x.int() for x in batch)
    with pytest.raises(ValueError, match=r"torch.int32; allowed: .*int64$"):
        make_step(model, ids, targets, fused_loss=fused_loss)()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_learns(model, batch, precision):
    step = make_step(model, *batch, precision=precision)
    losses = [float(step()) for _ in range(8)]
    assert losses[-1] < losses[0] - 0.5
    matrices = {parameter.dtype for parameter in model.layers.parameters() if parameter.ndim == 2}
    assert matrices == {torch.bfloat16 if precision == "bf16_weights" else torch.float32}
    assert model.token_embeddings.weight.dtype == model.ln_final.weight.dtype == torch.float32


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16_weights"])
def test_a_fused_loss_takes_the_same_steps(model, batch, precision):
    plain = make_step(copy.deepcopy(model), *batch, precision=precision)
    fused = make_step(model, *batch, precision=precision, fused_loss=True)
    for _ in range(3):
        torch.testing.assert_close(fused(), plain(), rtol=1e-5 if precision == "fp32" else 1e-2, atol=0)


SETTINGS = (
    "",
    "torch.set_float32_matmul_precision('medium')",
    "torch.backends.cuda.matmul.allow_tf32 = True",
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
    "torch.backends.fp32_precision = 'tf32'",
    "torch.set_float32_matmul_precision('high'); torch.backends.cuda.matmul.fp32_precision = 'ieee'",
    "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'",
)


def test_products_are_as_requested_and_then_as_the_process_had_them():
    """The flags belong to the process, so each setting is tried in a fork of one that has imported torch."""
    program = f"""
import os
import torch
from cs336_systems.training import matmul_precision

def flags():
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:  # torch refuses to read flags that disagree
        older = "not read"
    return torch.backends.cuda.matmul.fp32_precision, older, torch.backends.mkldnn.matmul.fp32_precision

for setting in {SETTINGS!r}:
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0, setting
        continue
    exec(setting)
    before = flags()
    for precision, inside in (("fp32", "ieee"), ("tf32", "tf32")):
        with matmul_precision(precision):
            assert flags()[0] == inside, flags()
        assert flags() == before, (before, flags())
    os._exit(0)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_threads_that_leave_in_any_order_leave_the_process_as_it_was():
    before = torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.fp32_precision
    first, second = matmul_precision("tf32"), matmul_precision("fp32")
    first.__enter__()
    second.__enter__()
    assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    first.__exit__(None, None, None)
    assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    second.__exit__(None, None, None)
    assert (torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.fp32_precision) == before


def test_a_step_leaves_the_process_as_it_was(model, batch):
    before = torch.get_float32_matmul_precision()
    make_step(model, *batch, precision="tf32")()
    assert torch.get_float32_matmul_precision() == before


def test_the_phases_make_the_step(model, batch):
    twin = copy.deepcopy(model)
    whole = TrainStep(model, adamw(model), *batch)
    parts = TrainStep(twin, adamw(twin), *batch)
    whole.step()
    parts.backward(parts.forward())
    parts.optimizer_step()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # raised by torch's tracing
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(
    ("variant", "fused_loss"), [("compiled_blocks", False), ("compiled", False), ("compiled", True)]
)
def test_compiled_forms_take_the_same_steps_where_there_is_no_compiler(model, batch, variant, fused_loss, monkeypatch):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    monkeypatch.setattr(nn.Module, "compile", functools.partialmethod(nn.Module.compile, backend="eager"))
    eager = make_step(copy.deepcopy(model), *batch)
    other = make_step(model, *batch, variant=variant, fused_loss=fused_loss)
    for _ in range(3):
        torch.testing.assert_close(other(), eager(), rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("precision", ["fp32", "bf16_weights"])
@pytest.mark.parametrize("fused_loss", [False, True])
@pytest.mark.parametrize("variant", ["eager", "compiled_blocks", "compiled", "cuda_graph", "compiled_cuda_graph"])
def test_every_variant_takes_the_same_steps(model, batch, variant, fused_loss, precision):
    twin = copy.deepcopy(model)
    eager = make_step(model, *batch, precision=precision)
    other = make_step(twin, *batch, precision=precision, variant=variant, fused_loss=fused_loss)
    extra = 3 if "cuda_graph" in variant else 0  # the capture runs three steps, and records one without running it
    for _ in range(extra):
        eager()
    tolerance = 1e-4 if precision == "fp32" else 1e-2  # compiled code keeps intermediates in float32 that eager rounds
    for _ in range(4):
        torch.testing.assert_close(other(), eager(), rtol=tolerance, atol=tolerance)


class OnAGpu(torch.Tensor):
    """A CPU tensor that claims to be on a GPU."""

    is_cuda = True


def test_a_step_of_a_cuda_graph_variant_is_captured_once_and_then_replayed(model, batch, monkeypatch):
    log = []

    class Graph:
        def __init__(self, step):
            log.append("capture")
            self.step = step

        def __call__(self):
            log.append("replay")
            return self.step()

    monkeypatch.setattr(training, "Captured", Graph)
    monkeypatch.setattr(training, "adamw", lambda model, capturable: adamw(model))  # capturable needs CUDA
    eager = make_train_step(copy.deepcopy(model), *batch)
    captured = make_train_step(model, batch[0].as_subclass(OnAGpu), batch[1], variant="cuda_graph")
    for _ in range(2):
        torch.testing.assert_close(captured.step().as_subclass(torch.Tensor), eager.step(), rtol=0, atol=0)
    assert log == ["capture", "replay", "replay"]


@pytest.mark.gpu
def test_make_train_step_of_a_cuda_graph_launches_no_kernel_by_itself(model, batch):
    step = make_train_step(model, *batch, variant="cuda_graph").step
    step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    assert not any(event.key.startswith("aten::") for event in profile.key_averages())


def test_what_cannot_run_is_refused(model, batch):
    with pytest.raises(ValueError, match="variant='fast' was given; allowed: eager, "):
        make_step(model, *batch, variant="fast")
    with pytest.raises(ValueError, match="precision='fp8' was given; allowed: fp32, "):
        make_step(model, *batch, precision="fp8")
    layer = nn.Linear(4, 4)
    with pytest.raises(ValueError, match=r"Linear was given; allowed: a model with its layers in an nn.ModuleList"):
        make_step(layer, *batch, precision="bf16_weights", variant="compiled_blocks")
    assert layer.weight.dtype == torch.float32, "a model that is refused stays as it was"
    if DEVICE == "cpu":
        with pytest.raises(ValueError, match="'cuda_graph' was given with ids on cpu"):
            make_step(model, *batch, variant="cuda_graph")


def test_the_loss_is_taken_in_float32():
    logits = torch.randn(2, 3, 5, dtype=torch.bfloat16)
    loss = cross_entropy(logits, torch.zeros(2, 3, dtype=torch.long))
    assert loss.dtype == torch.float32


def test_logits_may_have_any_leading_shape():
    logits = torch.randn(5)
    expected = -logits.log_softmax(0)[3]
    for leading in ((), (1,), (1, 1, 1)):
        assert cross_entropy(logits.expand(*leading, 5), torch.full(leading, 3)) == expected
    with pytest.raises(ValueError, match="allowed"):
        cross_entropy(logits[0], torch.tensor(3))


def test_layers_of_a_foreign_model_are_its_longest_list():
    foreign = nn.Module()
    foreign.experts = nn.ModuleList([nn.Identity()])
    foreign.blocks = nn.ModuleList([nn.Identity(), nn.Identity()])
    assert blocks_of(foreign) is foreign.blocks
    with pytest.raises(ValueError, match="Linear was given"):
        blocks_of(nn.Linear(1, 1))


def test_ranges_are_nothing_unless_they_are_recorded(model, batch):
    assert range_("forward") is NOTHING
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile, recorded():
        TrainStep(model, adamw(model), *batch).step()
    names = {event.key for event in profile.key_averages()}
    assert {"forward", "backward", "optimizer", "attention", "feed-forward", "scaled dot product attention"} <= names
    assert range_("forward") is NOTHING
    first, second = recorded(), recorded()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert range_("forward") is not NOTHING, "another thread still records"
    second.__exit__(None, None, None)
    assert range_("forward") is NOTHING
