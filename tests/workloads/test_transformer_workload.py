"""A Transformer case with a fault in its model, its gradient or its optimizer gets no time."""

import itertools

import pytest
import torch
import triton

from cs336_systems import configs, training, transformer
from cs336_systems.accounting.peak import peak_step_bytes
from cs336_systems.optimizer.master_weights import MasterWeightAdamW
from perf.site import latest
from perf.workloads import build, peer_step
from perf.workloads.transformer import MODES
from perf.workloads.transformer_oracle import SIZES, ExactStep, weights_of
from perf.workloads.transformer_training import Training
from perf.workloads.workload import Unavailable, WrongResult

CASE = {"size": "tiny", "context_length": 32, "precision": "fp32", "variant": "eager", "attention": "reference"}


def checked(**params):
    work = build("transformer", CASE | params, "cpu")
    for _ in range(2):  # as the harness does: whatever ran before, the check starts from the initial weights
        work.prepare()
        work.run()
    return work.check()


@pytest.mark.parametrize(("mode", "precision"), list(itertools.product(MODES, ["fp32", "bf16", "bf16_weights"])))
def test_a_right_model_passes_far_within_the_tolerance(mode, precision):
    assert checked(mode=mode, precision=precision) < (1e-4 if precision == "fp32" else 5e-3)


@pytest.mark.parametrize("attention", ["pytorch", "sdpa"])
def test_any_attention_passes(attention):
    assert checked(mode="step", attention=attention) < 1e-4


def test_a_check_can_be_repeated():
    work = build("transformer", CASE | {"mode": "step"}, "cpu")
    work.run()
    assert work.check() == work.check()


def test_sizes_are_those_of_the_package():
    for name, size in SIZES.items():
        assert configs.ModelConfig(*size) == configs.MODEL_CONFIGS[name]


def test_the_parameters_of_a_floor_are_counted_right():
    with torch.device("meta"):
        model = transformer.TransformerLM(configs.MODEL_CONFIGS["large"], 8)
    assert SIZES["large"].parameters == sum(parameter.numel() for parameter in model.parameters())


def test_a_model_that_sees_the_future_is_wrong(monkeypatch):
    import cs336_systems.attention.api as api

    right = api.flash_attention
    monkeypatch.setattr(api, "flash_attention", lambda q, k, v, is_causal, impl: right(q, k, v, False, impl=impl))
    with pytest.raises(WrongResult, match="the loss differs"):
        checked(mode="forward")


def test_a_gradient_that_is_off_in_one_kind_of_layer_is_wrong(monkeypatch):
    feed_forward = transformer.SwiGLU.forward
    monkeypatch.setattr(transformer.SwiGLU, "forward", lambda self, x: feed_forward(self, 0.5 * (x + x.detach())))
    with pytest.raises(WrongResult, match="the gradient differs"):
        checked(mode="backward")


def test_a_gradient_that_stops_is_wrong(monkeypatch):
    feed_forward = transformer.SwiGLU.forward
    monkeypatch.setattr(transformer.SwiGLU, "forward", lambda self, x: feed_forward(self, x.detach()))
    with pytest.raises(WrongResult, match=r"layers\.0\.ln2\.weight"):
        checked(mode="step")


def test_an_optimizer_with_another_rule_is_wrong(monkeypatch):
    monkeypatch.setattr(training, "adamw", lambda model, capturable: torch.optim.AdamW(model.parameters(), lr=2e-3))
    with pytest.raises(WrongResult, match="AdamW's update differs"):
        checked(mode="optimizer")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_update_that_is_1_percent_too_large_is_wrong(monkeypatch, precision):
    monkeypatch.setattr(
        training,
        "adamw",
        lambda model, capturable: torch.optim.AdamW(model.parameters(), lr=1.01e-3, weight_decay=0.01),
    )
    with pytest.raises(WrongResult, match="AdamW's update differs"):
        checked(mode="optimizer", precision=precision)


def test_a_gradient_that_is_1_percent_too_large_is_wrong(monkeypatch):
    forward = transformer.TransformerLM.forward
    monkeypatch.setattr(
        transformer.TransformerLM,
        "forward",
        lambda self, ids: (out := forward(self, ids)) + 0.01 * (out - out.detach()),
    )
    with pytest.raises(WrongResult, match="the gradient differs"):
        checked(mode="backward")


def test_a_precision_that_the_commit_lacks_is_unavailable(monkeypatch):
    monkeypatch.setattr(training, "PRECISIONS", ("fp32", "bf16"))
    with pytest.raises(Unavailable, match="bf16_weights"):
        build("transformer", CASE | {"mode": "step", "precision": "bf16_weights"}, "cpu")


def test_master_weights_that_stand_still_are_wrong(monkeypatch):
    def step(optimizer):
        for parameter in optimizer.param_groups[0]["params"]:
            optimizer._state_of(parameter)

    monkeypatch.setattr(MasterWeightAdamW, "step", step)
    with pytest.raises(WrongResult, match="AdamW's update differs"):
        checked(mode="optimizer", precision="bf16_weights")


def test_what_no_case_may_ask_for_is_refused():
    for wrong in ({"mode": "sideways"}, {"precision": "fp16"}, {"variant": "cuda_graph", "mode": "forward"}):
        with pytest.raises(ValueError, match="was given"):
            build("transformer", CASE | {"mode": "step"} | wrong, "cpu")


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # by torch's own tracing
@pytest.mark.parametrize("precision", ["bf16", "bf16_weights"])
@pytest.mark.parametrize("variant", training.VARIANTS)
def test_every_variant_passes_on_a_gpu(variant, precision):
    work = build("transformer", CASE | {"mode": "step", "variant": variant, "precision": precision}, "cuda")
    work.run()
    assert work.check() < 2e-2


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_peak_of_a_step_is_that_of_training(precision):
    from perf.harness.memory import Leftovers, peak_memory

    case = CASE | {"size": "small", "context_length": 512, "mode": "step", "precision": precision}
    build("transformer", case, "cuda").run()
    found = peak_memory(lambda: build("transformer", case, "cuda"), Leftovers())["peak_bytes"]
    assert found == pytest.approx(
        peak_step_bytes(configs.MODEL_CONFIGS["small"], 4, 512, precision=precision), rel=0.05
    )


def test_the_peaks_of_the_committed_results_are_as_predicted(committed_results):
    cells = latest(committed_results).query(
        "benchmark == 'transformer.Transformer' and quantity == 'peak_memory' and mode == 'step'"
        " and variant == 'eager' and attention == 'reference' and status == 'ok'"
    )
    assert len(cells) >= 6
    for cell in cells.itertuples():
        config = configs.MODEL_CONFIGS[cell.size]
        predicted = peak_step_bytes(config, 4, cell.context_length, precision=cell.precision)
        assert cell.value == pytest.approx(predicted, rel=0.05), (cell.size, cell.context_length, cell.precision)


@pytest.mark.gpu
def test_peaks_are_the_same_bytes_in_any_order():
    from perf.harness.memory import Leftovers, peak_memory

    cases = [
        CASE | {"size": size, "context_length": context, "mode": mode, "precision": precision}
        for size, context, mode, precision in itertools.product(
            ["tiny", "small"], [64, 128], ["forward", "step"], ["fp32", "bf16"]
        )
    ]

    def peaks(cases):
        found = {}
        for case in cases:
            build("transformer", case, "cuda").run()
            found[str(case)] = peak_memory(lambda case=case: build("transformer", case, "cuda"), Leftovers())[
                "peak_bytes"
            ]
        return found

    assert peaks(cases) == peaks(cases[::-1]) == peaks(cases[1::2] + cases[::2])


def test_the_weights_that_a_peer_gets_are_those_of_the_model():
    with torch.device("meta"):
        model = transformer.TransformerLM(configs.MODEL_CONFIGS["tiny"], 8)
    weights = weights_of(SIZES["tiny"], "cpu")
    assert {name: weight.shape for name, weight in weights.items()} == {
        name: parameter.shape for name, parameter in model.named_parameters()
    }


def ours(config, context_length, attention):
    return transformer.TransformerLM(config, context_length, attention)


def of_the_course(config, context_length, attention):
    """Its model, as far as a state dict tells: its queries and keys are in another order."""
    model = ours(config, context_length, attention)
    model.layers[0].attn.positional_encoder = torch.nn.Identity()
    return model


LOADED = []


def a_peer(config, weights, ids, targets):
    model = transformer.TransformerLM(config, ids.shape[1])
    model.load_state_dict(weights)
    LOADED[:] = [(weights, dict(model.named_parameters()))]
    return model


@pytest.mark.parametrize("model", [{}, {"model": f"{__name__}:ours"}, {"model": f"{__name__}:of_the_course"}])
def test_our_model_loads_the_weights_that_a_peer_gets(model):
    peer_step.build(f"{__name__}:a_peer", CASE | model, "cpu", ExactStep(1.0, 1.0), [1.0])
    (weights, loaded), of_course = LOADED.pop(), "course" in str(model)
    reordered = {name for name, weight in loaded.items() if not torch.equal(weight, weights[name])}
    assert reordered == {name for name in loaded if of_course and name.endswith(("q_proj.weight", "k_proj.weight"))}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("mode", ["forward", "backward", "step", "phases"])
def test_whatever_a_study_times_of_a_step_is_checked_with_loss_scaling_too(mode, precision):
    work = getattr(Training(CASE | {"precision": precision}, "cpu"), mode)()
    work.prepare()
    work.run()
    assert work.check() < 2e-2


def test_the_phases_of_a_step_have_floors_that_make_its_own():
    work = Training(CASE, "cpu").phases()
    assert list(work.parts) == ["forward", "backward", "optimizer"]
    assert sum(part.floor.flops for part in work.parts.values()) == work.floor.flops > 0


def one_layer(config, context_length, attention):
    """A model of a user's own: attention without projections, between an embedding and a head."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(config.vocab_size, 16)
            self.head = torch.nn.Linear(16, config.vocab_size)

        def forward(self, ids):
            heads = self.embedding(ids)[:, None]
            return self.head(heads + attention(heads, heads, heads)).squeeze(1)

    return Model()


def test_a_model_of_ones_own_is_held_to_itself_in_eager_float32(monkeypatch):
    import cs336_systems.attention.api as api

    case = CASE | {"model": f"{__name__}:one_layer", "attention": "sdpa"}
    assert Training(case, "cpu").step().check() < 1e-4
    right = api.flash_attention
    scale = {"reference": 1.0, "sdpa": 1.5}
    monkeypatch.setattr(api, "flash_attention", lambda q, k, v, **by: right(scale[by["impl"]] * q, k, v, **by))
    with pytest.raises(WrongResult):
        Training(case, "cpu").step().check()


def with_a_frozen_embedding(config, context_length, attention):
    model = one_layer(config, context_length, attention)
    model.embedding.requires_grad_(False)
    return model


def test_a_frozen_parameter_of_ones_own_model_needs_no_gradient_and_is_to_stay(monkeypatch):
    case = CASE | {"model": f"{__name__}:with_a_frozen_embedding"}
    assert Training(case, "cpu").step().check() < 1e-4
    training = Training(case, "cpu")
    step, embedding = training.step(), training.train.model.embedding
    right = training.train.optimizer_step
    monkeypatch.setattr(training.train, "optimizer_step", lambda: (right(), embedding.weight.data.mul_(1.1)))
    with pytest.raises(WrongResult, match="update"):
        step.check()


@pytest.mark.parametrize(("variant", "attention"), [("cuda_graph", "sdpa"), ("eager", "triton")])
def test_what_needs_a_gpu_is_no_error_of_a_cpu(variant, attention, monkeypatch):
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    params = {"size": "tiny", "context_length": 8, "precision": "fp32", "variant": variant, "attention": attention}
    with pytest.raises(Unavailable, match=" needs a CUDA GPU"):
        Training(params, "cpu")
