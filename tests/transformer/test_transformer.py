"""The course's model: exact sizes, and its logits against a second, plain computation."""

import copy
import functools
import re

import pytest
import torch
from torch import nn

from cs336_systems.attention.api import flash_attention
from cs336_systems.configs import MODEL_CONFIGS, ModelConfig
from cs336_systems.transformer import TransformerLM, rotate, rotations

TINY = MODEL_CONFIGS["tiny"]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize(
    ("size", "parameters", "tensors"),
    [
        ("small", 128_625_408, 111),
        ("medium", 423_183_360, 219),
        ("large", 969_411_840, 327),
        ("xl", 1_998_235_200, 435),
        ("2.7B", 3_406_809_600, 291),
        ("8B", 8_125_698_048, 309),
        ("10B", 12_832_823_808, 453),
    ],
)
def test_sizes_are_the_courses_to_the_parameter(size, parameters, tensors):
    with torch.device("meta"):
        assert torch.empty(0).is_meta, "else the next line takes the machine's memory"
        model = TransformerLM(MODEL_CONFIGS[size], 512)
    results = list(model.parameters())
    assert (sum(parameter.numel() for parameter in results), len(results)) == (parameters, tensors)


def test_sizes_that_make_no_model_are_refused():
    sizes = {"d_model": 8, "d_ff": 4, "num_layers": 1, "num_heads": 2, "vocab_size": 5}
    with pytest.raises(ValueError, match="d_model=10 and num_heads=2 were given"):
        ModelConfig(**sizes | {"d_model": 10})
    for name in sizes:
        for wrong in (-1, 2.0, True, "8", None, *([0] if name != "num_layers" else [])):
            with pytest.raises(ValueError, match=f"^{name}={wrong!r} was given; allowed: an int of at least"):
                ModelConfig(**sizes | {name: wrong})
    for wrong in (0, -1.0, 1e-300, 1e39, float("nan"), float("inf"), "1", True, None):
        with pytest.raises(
            ValueError, match=f"^rope_theta={re.escape(repr(wrong))} was given; allowed: a number from 1 to"
        ):
            ModelConfig(**sizes, rope_theta=wrong)
    for wrong in (0, -1, 2.5, True, "8", None):
        with pytest.raises(ValueError, match=f"^context_length={wrong!r} was given; allowed: an int of at least 1"):
            TransformerLM(TINY, wrong)
    with pytest.raises(ValueError, match=r"^attention='triton' was given; allowed: a function"):
        TransformerLM(TINY, 8, "triton")


def halves(head_dim):
    """Pair dimension i with i + head_dim / 2."""
    return torch.arange(head_dim).view(2, -1)


def neighbours(head_dim):
    """Pair dimension 2i with 2i + 1."""
    return torch.arange(head_dim).view(-1, 2).T


def in_place(real, imaginary, pairs):
    """Put the rotated dimensions back where they were, as the course of 2025 does."""
    return torch.cat((real, imaginary))[torch.cat(tuple(pairs)).argsort()]


def side_by_side(real, imaginary, pairs):
    """Put the first dimensions of all pairs before the second ones, as the course of 2026 does."""
    return torch.cat((real, imaginary))


def plain_logits(weights, config, ids, pair=halves, put=in_place):
    """Compute the logits in float64, one position and one head at a time."""
    weights = {name: value.double() for name, value in weights.items()}
    head_dim = config.d_model // config.num_heads
    pairs = pair(head_dim)

    def norm(x, name):
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weights[name]

    def turn(x, position):
        indices = torch.arange(head_dim // 2, dtype=torch.float64, device=x.device)
        angles = position * config.rope_theta ** (-2 * indices / head_dim)
        turned = torch.complex(*x[pairs]) * torch.polar(torch.ones_like(angles), angles)
        return put(turned.real, turned.imag, pairs)

    out = []
    for sequence in ids:
        x = weights["token_embeddings.weight"][sequence]
        for layer in range(config.num_layers):
            at = f"layers.{layer}."
            y = norm(x, at + "ln1.weight")
            q, k, v = (y @ weights[f"{at}attn.{name}_proj.weight"].T for name in "qkv")
            heads = []
            for head in range(config.num_heads):
                columns = slice(head * head_dim, (head + 1) * head_dim)
                keys = torch.stack([turn(row, at_) for at_, row in enumerate(k[:, columns])])
                rows = []
                for position, row in enumerate(q[:, columns]):
                    scores = keys[: position + 1] @ turn(row, position) / head_dim**0.5
                    rows.append(scores.softmax(0) @ v[: position + 1, columns])
                heads.append(torch.stack(rows))
            x = x + torch.cat(heads, -1) @ weights[at + "attn.output_proj.weight"].T
            y = norm(x, at + "ln2.weight")
            gate = y @ weights[at + "ffn.w1.weight"].T
            x = x + (gate * gate.sigmoid() * (y @ weights[at + "ffn.w3.weight"].T)) @ weights[at + "ffn.w2.weight"].T
        out.append(norm(x, "ln_final.weight") @ weights["lm_head.weight"].T)
    return torch.stack(out)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return TransformerLM(TINY, 24).to(DEVICE)


@pytest.fixture
def ids():
    return torch.randint(TINY.vocab_size, (2, 19), generator=torch.Generator().manual_seed(1)).to(DEVICE)


def test_logits_are_those_of_a_plain_float64_computation(model, ids):
    expected = plain_logits(model.state_dict(), TINY, ids)
    torch.testing.assert_close(model(ids).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("impl", ["pytorch", "sdpa", "triton"])
def test_any_attention_gives_the_same_logits_and_gradients(model, ids, impl):
    other = TransformerLM(TINY, 24, functools.partial(flash_attention, is_causal=True, impl=impl)).to(DEVICE)
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(ids), model(ids), rtol=1e-4, atol=1e-4)
    ours, theirs = (torch.autograd.grad(one(ids).square().mean(), list(one.parameters())) for one in (model, other))
    torch.testing.assert_close(theirs, ours, rtol=1e-3, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("size", ["small", "2.7B"])  # head dimensions of 64 and 80
def test_triton_attention_in_bfloat16_is_as_exact_as_eager(size):
    torch.manual_seed(0)
    config = ModelConfig(**(vars(MODEL_CONFIGS[size]) | {"num_layers": 4}))
    ids = torch.randint(config.vocab_size, (2, 512), device="cuda")
    logits = {}
    for impl in ("reference", "triton"):
        torch.manual_seed(0)
        with torch.device("cuda"):
            model = TransformerLM(config, 512, functools.partial(flash_attention, is_causal=True, impl=impl))
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            logits[impl] = model(ids).float()
        if impl == "reference":
            with torch.no_grad():
                exact = model.double()(ids)
    eager, ours = ((logits[impl].double() - exact).norm() / exact.norm() for impl in ("reference", "triton"))
    assert ours <= 1.1 * eager


def test_a_sequence_beyond_the_context_is_refused(model):
    with pytest.raises(ValueError, match="a sequence of 25 was given; allowed: up to context_length=24"):
        model(torch.zeros(1, 25, dtype=torch.long, device=DEVICE))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((), torch.int64),
        ((5,), torch.int64),
        ((1, 4, 4), torch.int64),  # as many positions as heads: once read as heads
        *(((2, 5), dtype) for dtype in (torch.float32, torch.uint8, torch.bool)),
    ],
    ids=str,
)
def test_ids_of_another_shape_or_dtype_are_refused(model, shape, dtype):
    ids = torch.zeros(shape, dtype=dtype, device=DEVICE)
    for targets in ((), (ids,)):
        with pytest.raises(ValueError, match=r"^ids of shape .* were given; allowed: \(batch, seq_len\) and int64"):
            model(ids, *targets)


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (1, 1)])
def test_batches_and_sequences_of_none_and_one_have_gradients(model, shape):
    ids = torch.zeros(shape, dtype=torch.int64, device=DEVICE)
    logits = model(ids)
    assert logits.shape == (*shape, TINY.vocab_size)
    torch.testing.assert_close(model(ids.int()), logits, rtol=0, atol=0)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_rotations_depend_on_the_distance_alone():
    cos, sin = rotations(16, 40, 10_000.0)
    q, k = torch.randn(2, 1, 16, generator=torch.Generator().manual_seed(0))

    def score(i, j):
        return float(rotate(q, cos[i : i + 1], sin[i : i + 1]) @ rotate(k, cos[j : j + 1], sin[j : j + 1]).T)

    assert score(9, 4) == pytest.approx(score(37, 32), rel=1e-4)
    assert score(9, 4) != pytest.approx(score(9, 5), rel=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_positions_are_told_apart_whatever_the_default_dtype(dtype):
    exact = rotations(16, 300, 10_000.0)
    assert all(table.dtype == torch.float32 for table in exact)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        alone, model = rotations(16, 300, 10_000.0), TransformerLM(TINY, 300)
    finally:
        torch.set_default_dtype(before)
    for tables in (alone, (model.cos, model.sin)):
        torch.testing.assert_close(tables, exact, rtol=0, atol=0)
    assert len(alone[0].unique(dim=0)) == 300


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_rotations_of_a_model_stay_float32_whatever_its_dtype(model, ids, dtype):
    tables = model.cos.clone(), model.sin.clone()
    nn.Sequential(model).to(dtype)
    torch.testing.assert_close((model.cos, model.sin), tables, rtol=0, atol=0)
    assert model(ids).dtype == dtype and set(model.state_dict()) == set(TransformerLM(TINY, 24).state_dict())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_from_the_meta_device_computes_what_its_state_dict_does(model, ids, dtype):
    model = model.to(dtype)
    with torch.device("meta"):
        wrapped = nn.Sequential(TransformerLM(TINY, 24)).to(dtype)
    for assign in (False, True):
        loaded = copy.deepcopy(wrapped) if assign else copy.deepcopy(wrapped).to_empty(device=DEVICE)
        loaded.load_state_dict({f"0.{name}": value for name, value in model.state_dict().items()}, assign=assign)
        torch.testing.assert_close(loaded(ids), model(ids), rtol=0, atol=0)


def test_an_emptied_model_computes_what_its_state_dict_does(model, ids):
    emptied = nn.Sequential(copy.deepcopy(model))
    emptied._apply(lambda tensor: torch.full_like(tensor, 7))  # what `to_empty` finds in memory is left to chance
    emptied[0].load_state_dict(model.state_dict())
    torch.testing.assert_close(emptied(ids), model(ids), rtol=0, atol=0)


def test_weights_start_within_three_sigma(model):
    weight = model.layers[0].ffn.w1.weight.detach()
    std = (2 / sum(weight.shape)) ** 0.5
    assert float(weight.abs().max()) <= 3 * std
    assert float(weight.std()) == pytest.approx(std, rel=0.1)
    assert float(model.token_embeddings.weight.detach().abs().max()) <= 3
