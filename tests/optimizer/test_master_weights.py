"""AdamW with master weights: its updates against float64, its steps against autocast's."""

import copy
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from cs336_systems.configs import MODEL_CONFIGS
from cs336_systems.optimizer.adamw import AdamWRule, adamw_update
from cs336_systems.optimizer.adamw_kernel import adamw_update_triton
from cs336_systems.optimizer.master_weights import MasterWeightAdamW, master_weight_adamw
from cs336_systems.training import make_step
from cs336_systems.transformer import TransformerLM

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RULE = AdamWRule(lr=3e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
SIZES = (1, 7, 2048, 5001)  # smaller than, equal to and larger than a program's block


def tensors(n, dtype):
    """Return a parameter and three gradients, the same in each call."""
    generator = torch.Generator().manual_seed(n)
    values = torch.randn(4, n, generator=generator)
    weight = nn.Parameter(values[0].to(DEVICE, dtype))
    return weight, [(gradient * 10.0 ** -(2 * number)).to(DEVICE, dtype) for number, gradient in enumerate(values[1:])]


def exact_adamw(weight, gradients, rule=RULE):
    """Apply AdamW in float64."""
    beta1, beta2 = rule.betas
    weight, first, second = weight.detach().double().clone(), 0.0, 0.0
    for step, gradient in enumerate(gradients, 1):
        gradient = gradient.double()
        weight *= 1 - rule.lr * rule.weight_decay
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        root = (second / (1 - beta2**step)) ** 0.5 + rule.eps
        weight -= rule.lr * first / (1 - beta1**step) / root
    return weight


def updated(update, weight, gradients, rule=RULE, **held):
    """Apply an update for each gradient, from a state of zeros and what is `held` beside; return the weight."""
    state = {name: torch.zeros(len(weight), device=DEVICE) for name in ("exp_avg", "exp_avg_sq")} | held
    with torch.no_grad():
        for step, gradient in enumerate(gradients, 1):
            state["step"] = torch.tensor(float(step), device=DEVICE)
            update(weight, gradient, state, rule)
    return weight


@pytest.mark.parametrize("update", [adamw_update, adamw_update_triton])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", SIZES)
def test_three_updates_equal_float64(n, dtype, update):
    weight, gradients = tensors(n, dtype)
    exact = exact_adamw(weight, gradients)
    around = torch.full((n + 64,), torch.nan, device=DEVICE)  # the memory behind the master weight must not change
    master = {"master": around[:n].copy_(weight.detach())} if dtype == torch.bfloat16 else {}
    updated(update, weight, gradients, **master)
    held = master.get("master", weight)
    torch.testing.assert_close(held.double(), exact, rtol=1e-6, atol=3e-7)
    assert around[n:].isnan().all()
    truncates = update is adamw_update_triton and DEVICE == "cpu"  # Triton's interpreter does not round
    torch.testing.assert_close(weight.detach(), held.detach().to(dtype), rtol=2**-7 if truncates else 0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_optimizer_takes_the_steps_of_its_rule(dtype):
    weight, gradients = tensors(33, dtype)
    exact = exact_adamw(weight, gradients)
    optimizer = MasterWeightAdamW(
        [weight, nn.Parameter(torch.zeros(2, device=DEVICE))], **RULE._asdict()
    )  # the second parameter has no gradient
    for gradient in gradients:
        weight.grad = gradient
        optimizer.step()
    held = optimizer.state[weight].get("master", weight)
    torch.testing.assert_close(held.double(), exact, rtol=1e-6, atol=3e-7)
    assert len(optimizer.state) == 1


def test_threads_at_once_update_as_one():
    """Of Triton too: its interpreter by itself runs one kernel at a time."""
    ready = threading.Barrier(3)

    def in_a_thread(n):
        weight, gradients = tensors(n, torch.float32)
        ready.wait()
        return updated(adamw_update_triton, weight, gradients)

    sizes = (50_000, 50_001, 50_002)
    with ThreadPoolExecutor(3) as threads:
        for n, weight in zip(sizes, threads.map(in_a_thread, sizes), strict=True):
            torch.testing.assert_close(weight.double(), exact_adamw(*tensors(n, torch.float32)), rtol=1e-6, atol=3e-7)


def test_steps_are_counted_in_float32_whatever_the_default_dtype():
    weight = nn.Parameter(torch.zeros(2, device=DEVICE))
    optimizer = MasterWeightAdamW([weight])
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
    finally:
        torch.set_default_dtype(before)
    assert {name: value.dtype for name, value in optimizer.state[weight].items()} == dict.fromkeys(
        ("step", "exp_avg", "exp_avg_sq"), torch.float32
    )


@pytest.mark.parametrize("update", [adamw_update, adamw_update_triton])
@pytest.mark.parametrize("betas", [(0.0, 0.999), (0.9, 0.0), (0.0, 0.0)])
def test_betas_may_be_zero(betas, update):
    rule = RULE._replace(betas=betas)
    weight, gradients = tensors(7, torch.float32)
    exact = exact_adamw(weight, gradients, rule)
    updated(update, weight, gradients, rule)
    torch.testing.assert_close(weight.double(), exact, rtol=1e-6, atol=3e-7)


@pytest.mark.parametrize("update", [adamw_update, adamw_update_triton])
def test_a_gradient_may_be_a_view_of_its_negative(update):
    """As torch takes the imaginary part of a conjugate; of one element the view is contiguous."""
    weight, gradients = tensors(1, torch.float32)
    exact = exact_adamw(weight, gradients)
    updated(update, weight, [torch.complex(gradient, -gradient).conj().imag for gradient in gradients])
    torch.testing.assert_close(weight.double(), exact, rtol=1e-6, atol=3e-7)


@pytest.mark.parametrize("update", [adamw_update, adamw_update_triton])
def test_a_gradient_may_be_zeros_without_memory(update):
    weight, _ = tensors(7, torch.float32)
    weight.sgn().sum().backward()
    exact = exact_adamw(weight, [torch.zeros(7, device=DEVICE)])
    updated(update, weight, [weight.grad])
    torch.testing.assert_close(weight.double(), exact, rtol=1e-6, atol=3e-7)


@pytest.mark.parametrize("update", [adamw_update, adamw_update_triton])
def test_without_a_beta_a_gradient_is_its_own_average_whatever_was_before(update):
    weight = torch.zeros(3, device=DEVICE)
    average = torch.zeros(3, device=DEVICE)
    last = torch.tensor([1e-4, 3e-5, -7e-5], device=DEVICE)
    updated(update, weight, (torch.full_like(last, 1e5), last), RULE._replace(betas=(0.0, 0.99)), exp_avg=average)
    assert torch.equal(average, last)


def test_its_steps_are_those_of_autocast():
    """The matmuls have the same operands; only the update rounds in another place."""
    torch.manual_seed(0)
    config = MODEL_CONFIGS["tiny"]
    model = TransformerLM(config, 16).to(DEVICE)
    ids = torch.randint(config.vocab_size, (4, 16), device=DEVICE)
    twin = copy.deepcopy(model)
    autocast = make_step(model, ids, ids.roll(-1, 1), precision="bf16")
    masters = make_step(twin, ids, ids.roll(-1, 1), precision="bf16_weights")
    assert torch.equal(autocast(), masters())
    for _ in range(5):
        torch.testing.assert_close(autocast(), masters(), rtol=2e-3, atol=0)


def test_what_a_linear_layer_shares_stays_float32():
    model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 8, bias=False))
    model[3].weight = model[0].weight
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = master_weight_adamw(model)
    dtypes = {name: parameter.dtype for name, parameter in model.named_parameters()}
    assert dtypes.pop("1.weight") == torch.bfloat16
    assert set(dtypes.values()) == {torch.float32}
    assert torch.equal(optimizer.state[model[1].weight]["master"], weights["1.weight"])


def test_a_checkpoint_goes_on_where_it_was(tmp_path):
    """torch's own load_state_dict would round masters and moments to bfloat16."""
    weight, gradients = tensors(33, torch.bfloat16)
    optimizer = MasterWeightAdamW([weight], **RULE._asdict())
    weight.grad = gradients[0]
    optimizer.step()
    torch.save({"weight": weight, "optimizer": optimizer.state_dict()}, tmp_path / "checkpoint.pt")

    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=False)
    other = nn.Parameter(saved["weight"].detach().clone())
    resumed = MasterWeightAdamW([other])
    resumed.load_state_dict(saved["optimizer"])
    for gradient in gradients[1:]:
        weight.grad, other.grad = gradient, gradient.clone()
        optimizer.step()
        resumed.step()
    assert torch.equal(weight, other)
    for key, value in optimizer.state[weight].items():
        assert resumed.state[other][key].dtype == torch.float32
        assert torch.equal(value, resumed.state[other][key]), key


@pytest.mark.parametrize("when", ["before the first step", "between steps", "after loading the optimizer", "in a copy"])
def test_a_master_follows_what_is_loaded_into_its_weight(when):
    model, other = nn.Linear(5, 3, bias=False).to(DEVICE), nn.Linear(5, 3, bias=False).to(DEVICE)
    optimizer = master_weight_adamw(model, lr=0.0, weight_decay=0.0)

    def step():
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step()

    if when != "before the first step":
        step()
    if when == "after loading the optimizer":
        optimizer.load_state_dict(optimizer.state_dict())
    if when == "in a copy":
        model, optimizer = copy.deepcopy((model, optimizer))
    model.load_state_dict(other.state_dict())
    step()
    assert torch.equal(model.weight, other.weight.bfloat16())


def test_loading_a_checkpoint_s_weights_after_its_optimizer_rounds_no_master():
    model = nn.Linear(5, 3, bias=False).to(DEVICE)
    optimizer = master_weight_adamw(model)
    weights, state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    with torch.no_grad():
        model.weight.zero_()
    optimizer.load_state_dict(state)
    model.load_state_dict(weights)
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.param_groups[0] |= {"lr": 0.0, "weight_decay": 0.0}
    optimizer.step()
    assert torch.equal(optimizer.state[model.weight]["master"], state["state"][0]["master"].to(DEVICE))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_loaded_before_the_optimizer_s_state_stay(dtype):
    """Also in float32, where the state of a run in bfloat16 brings a master."""
    model = nn.Linear(5, 3, bias=False).to(DEVICE)
    optimizer = master_weight_adamw(model, lr=0.0, weight_decay=0.0)
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step()
    weight = nn.Parameter(torch.full((3, 5), 3.0, dtype=dtype, device=DEVICE))
    resumed = MasterWeightAdamW([weight], lr=0.0, weight_decay=0.0)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for loaded in (3.0, 4.0):
        weight.grad = torch.zeros_like(weight)
        resumed.step()
        assert (weight == loaded).all()
        with torch.no_grad():
            weight.fill_(4.0)


@pytest.mark.parametrize(
    "wrong", [{"exp_avg": torch.zeros(4)}, {"master": torch.zeros(4)}, {"step": torch.zeros(2)}, {}]
)
def test_state_that_does_not_fit_is_refused_before_anything_changes(wrong):
    weight, (gradient, *_) = tensors(33, torch.float32)
    optimizer = MasterWeightAdamW([weight])
    weight.grad = gradient
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][0] |= wrong
    if not wrong:
        del saved["state"][0]["exp_avg"]
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=r"parameter 0 has .*; allowed: "):
        optimizer.load_state_dict(saved)
    torch.testing.assert_close(optimizer.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("wrong", [torch.tensor(0.1), float("nan")], ids=str)
def test_a_learning_rate_set_later_is_checked_too(wrong):
    weight, (gradient, *_) = tensors(33, torch.float32)
    optimizer = MasterWeightAdamW([weight])
    weight.grad, optimizer.param_groups[0]["lr"] = gradient, wrong
    before = weight.detach().clone()
    with pytest.raises(ValueError, match=r"^lr=.*; allowed: a finite number"):
        optimizer.step()
    assert torch.equal(weight, before) and not optimizer.state


@pytest.mark.parametrize(
    ("name", "value"),
    [("lr", -0.1), ("lr", np.float32(0.1)), ("lr", np.int64(0)), ("eps", -1e-9), ("weight_decay", -0.1)],
    ids=repr,
)
def test_a_hyperparameter_set_later_is_any_finite_number_as_in_torch_s_own_adamw(name, value):
    """A scheduler that ends at 0 may end at -2e-20."""
    results = []
    for optimizer_cls in (torch.optim.AdamW, MasterWeightAdamW):
        weight, gradients = tensors(33, torch.float32)
        optimizer = optimizer_cls([weight])
        optimizer.param_groups[0][name] = value
        for gradient in gradients:
            weight.grad = gradient
            optimizer.load_state_dict(optimizer.state_dict())
            optimizer.step()
        results.append(weight)
    torch.testing.assert_close(*results)


def test_betas_set_later_may_be_numpy_s():
    weight, (gradient, *_) = tensors(33, torch.float32)
    optimizer = MasterWeightAdamW([weight])
    weight.grad, optimizer.param_groups[0]["betas"] = gradient, (np.float32(0.5), np.float32(0.5))
    optimizer.step()
    torch.testing.assert_close(optimizer.state[weight]["exp_avg"], gradient / 2)


def test_hooks_of_loading_see_and_change_what_is_loaded():
    weight, (gradient, *_) = tensors(33, torch.bfloat16)
    optimizer = MasterWeightAdamW([weight])
    weight.grad = gradient
    optimizer.step()
    saved = optimizer.state_dict()
    expected = optimizer.state[weight]["exp_avg"] * 2 + 1

    def double(_, given):
        state = given["state"][0]
        group = given["param_groups"][0] | {"maximize": False}
        return {"state": {0: state | {"exp_avg": state["exp_avg"] * 2}}, "param_groups": [group]}

    resumed = MasterWeightAdamW([weight])
    resumed.register_load_state_dict_pre_hook(double)
    resumed.register_load_state_dict_post_hook(lambda loaded: loaded.state[weight]["exp_avg"].add_(1))
    resumed.load_state_dict(saved | {"param_groups": [saved["param_groups"][0] | {"maximize": True}]})
    assert torch.equal(resumed.state[weight]["exp_avg"], expected)


def test_state_of_torch_s_own_adamw_is_widened():
    weight, (gradient, *_) = tensors(33, torch.bfloat16)
    of_torch, ours = torch.optim.AdamW([weight]), MasterWeightAdamW([weight])
    weight.grad = gradient
    of_torch.step()
    ours.load_state_dict(of_torch.state_dict())
    ours.step()
    assert {value.dtype for value in ours.state[weight].values()} == {torch.float32}


@pytest.mark.parametrize("options", [{"maximize": True}, {"amsgrad": True}, {"lr": torch.tensor(0.1)}], ids=str)
def test_a_state_of_torch_s_own_adamw_that_it_cannot_follow_is_refused(options):
    weight = nn.Parameter(torch.ones(3))
    ours = MasterWeightAdamW([weight], lr=0.5)
    with pytest.raises(ValueError, match=f"^{next(iter(options))}=.*; allowed: "):
        ours.load_state_dict(torch.optim.AdamW([weight], **options).state_dict())
    assert ours.param_groups[0]["lr"] == 0.5


def test_a_state_of_another_memory_format_or_with_a_step_of_python_is_taken():
    weight = nn.Parameter(torch.randn(5, 4, 3, 3).to(memory_format=torch.channels_last))
    weight.grad = torch.randn_like(weight)
    of_torch, dense = torch.optim.AdamW([weight]), nn.Parameter(weight.detach().contiguous())
    of_torch.step()
    state = of_torch.state_dict()
    state["state"][0]["step"] = 1
    ours = MasterWeightAdamW([dense])
    ours.load_state_dict(state)
    assert all(value.is_contiguous() for value in ours.state[dense].values())
    assert torch.equal(ours.state[dense]["exp_avg"], of_torch.state[weight]["exp_avg"].contiguous())


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ({"memory_format": torch.channels_last}, "contiguous"),
        ({"dtype": torch.float64}, r"a parameter of torch\.float64 was given; allowed: float32, bfloat16"),
    ],
)
def test_a_parameter_that_has_become_another_is_refused(to, message):
    """A float64 weight would get no more than the digits of its float32 master."""
    model = nn.Conv2d(4, 5, 3)
    optimizer = MasterWeightAdamW(model.parameters())
    model.to(**to)
    model.weight.grad = torch.ones_like(model.weight)
    with pytest.raises(ValueError, match=message):
        optimizer.step()
    assert not optimizer.state[model.weight]


def test_a_refused_gradient_moves_no_parameter():
    dense, sparse = nn.Parameter(torch.ones(2)), nn.Embedding(4, 2, sparse=True)
    dense.grad = torch.ones(2)
    sparse(torch.tensor([1])).sum().backward()
    optimizer = MasterWeightAdamW([{"params": [dense]}, {"params": sparse.parameters()}])
    with pytest.raises(ValueError, match="sparse"):
        optimizer.step()
    assert torch.equal(dense, torch.ones(2)) and not optimizer.state[dense]


def test_a_weight_that_is_computed_is_left_alone():
    model = nn.utils.parametrizations.weight_norm(nn.Linear(5, 3, bias=False))
    optimizer = master_weight_adamw(model)
    assert not optimizer.state_dict()["state"]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_what_it_cannot_hold_is_refused():
    with pytest.raises(ValueError, match=r"a parameter of torch.float16 was given; allowed: float32, bfloat16"):
        MasterWeightAdamW([nn.Parameter(torch.zeros(2, dtype=torch.float16))])
    with pytest.raises(ValueError, match="contiguous"):
        MasterWeightAdamW([nn.Parameter(torch.zeros(2, 3).T)])
    weight = nn.Parameter(torch.zeros(2))
    optimizer = MasterWeightAdamW([weight])
    optimizer.round(weight)
    with pytest.raises(ValueError, match=r"a parameter of torch.bfloat16 was given to round; allowed: float32"):
        optimizer.round(weight)
    with pytest.raises(ValueError, match="a parameter that is in no group was given to round; allowed: one of this"):
        optimizer.round(nn.Parameter(torch.zeros(2)))
    assert list(optimizer.state) == [weight], "its state could not be saved"
    with pytest.raises(ValueError, match="a group without betas, eps was given"):
        optimizer.load_state_dict(torch.optim.SGD([weight]).state_dict())
    sparse = nn.Embedding(4, 2, sparse=True)
    sparse(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="a sparse gradient was given"):
        MasterWeightAdamW(sparse.parameters()).step()


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf"), 10**400, True, "1", None, torch.tensor(0.1)])
@pytest.mark.parametrize("name", ["lr", "eps", "weight_decay"])
def test_hyperparameters_outside_their_range_are_refused(name, wrong):
    with pytest.raises(ValueError, match=rf"{name}={re.escape(repr(wrong))} was given; allowed: a finite number of"):
        MasterWeightAdamW([nn.Parameter(torch.zeros(2))], **{name: wrong})


@pytest.mark.parametrize(
    "betas",
    [(-0.1, 0.9), (0.9, 1.0), (float("nan"), 0.9), (0.9,), (0.9, 0.9, 0.9), 0.9, ("a", 0.9), (True, 0.9)],
)
def test_betas_outside_their_range_are_refused(betas):
    with pytest.raises(ValueError, match=r"betas=.* was given; allowed: two numbers from 0 to below 1"):
        MasterWeightAdamW([nn.Parameter(torch.zeros(2))], betas=betas)


@pytest.mark.parametrize(
    "group",
    [
        {"params": [nn.Parameter(torch.zeros(2, dtype=torch.float16))]},
        {"params": [nn.Parameter(torch.zeros(2, 3).T)]},
        {"params": [nn.Parameter(torch.zeros(2))], "lr": -1.0},
    ],
    ids=["dtype", "strides", "lr"],
)
def test_a_refused_group_leaves_the_optimizer_as_it_was(group):
    weight = nn.Parameter(torch.ones(2, device=DEVICE))
    optimizer = MasterWeightAdamW([weight], lr=0.1)
    with pytest.raises(ValueError, match="was given; allowed"):
        optimizer.add_param_group(group)
    assert [group["params"] for group in optimizer.param_groups] == [[weight]]


def test_a_refused_model_keeps_its_weights():
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3, dtype=torch.float16))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"torch.float16 was given"):
        master_weight_adamw(model)
    for name, value in model.state_dict().items():
        assert value.dtype == before[name].dtype and torch.equal(value, before[name]), name
