"""Gradient checkpoints: what they keep, what they run again, and gradients that do not change by a bit."""

import functools
import itertools
import sys

import pytest
import torch
from torch import nn

from cs336_systems import checkpointing as module
from cs336_systems.accounting.checkpointing import last_group, recomputed_blocks
from cs336_systems.accounting.kept import groups_kept_bytes
from cs336_systems.attention.api import flash_attention
from cs336_systems.checkpointing import run_checkpointed
from cs336_systems.configs import CHECKPOINT_MODES, Checkpointing, ModelConfig
from cs336_systems.offload import Offload
from cs336_systems.training import make_train_step
from cs336_systems.transformer import TransformerLM, reference_attention

CONFIG = ModelConfig(d_model=64, d_ff=96, num_layers=5, num_heads=4, vocab_size=80)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
IDS = torch.randint(80, (2, 21), generator=torch.Generator().manual_seed(1)).to(DEVICE)
EVERY = [Checkpointing(*each) for each in itertools.product((1, 2, 5, 9), CHECKPOINT_MODES, (False, True))]


class Attention:
    """Tiles with dropout, counted."""

    def __init__(self):
        self.calls = 0

    def __call__(self, q, k, v):
        self.calls += 1
        return flash_attention(q, k, v, is_causal=True, impl="pytorch", dropout_p=0.2)


def model(checkpointing=None, attention=None):
    torch.manual_seed(0)
    options = {f"checkpoint_{name}": value for name, value in vars(checkpointing).items()} if checkpointing else {}
    return TransformerLM(CONFIG, 32, attention or Attention(), **options).to(DEVICE)


def gradients(net, ids=IDS, *, backwards=1):
    torch.manual_seed(2)  # dropout's
    loss = net(ids).square().mean()
    for _ in range(backwards):
        net.zero_grad()
        loss.backward(retain_graph=backwards > 1)
    return [parameter.grad for parameter in net.parameters()]


def assert_equal(results, expected):
    assert all(torch.equal(*pair) for pair in zip(results, expected, strict=True))


@pytest.fixture(scope="module")
def plain():
    return gradients(model())


@pytest.fixture
def offloads(monkeypatch):
    """All `Offload`s that are made."""
    made = []

    class Recorded(Offload):
        def __init__(self):
            super().__init__()
            made.append(self)

    monkeypatch.setattr(module, "Offload", Recorded)
    return made


@pytest.mark.parametrize("checkpointing", EVERY, ids=str)
def test_gradients_are_the_same_to_the_bit_and_forwards_are_as_many_as_predicted(checkpointing, plain, offloads):
    attention, forwards = Attention(), []
    net = model(checkpointing, attention)
    for layer in net.layers:
        layer.register_forward_pre_hook(lambda *_: forwards.append(1))
    assert_equal(gradients(net), plain)
    assert len(forwards) == CONFIG.num_layers + recomputed_blocks(CONFIG.num_layers, checkpointing)
    assert attention.calls == (CONFIG.num_layers if checkpointing.mode == "selective" else len(forwards))
    if checkpointing.offload:
        earlier = (CONFIG.num_layers - last_group(CONFIG.num_layers, checkpointing)) // checkpointing.every
        layers = earlier * checkpointing.every if checkpointing.mode == "selective" else 0
        seeds = 8 * layers  # of dropout
        (offload,) = offloads
        assert offload.num_bytes == groups_kept_bytes(CONFIG, *IDS.shape, earlier, checkpointing) + seeds


@pytest.mark.parametrize("trained", ["ffn", "layers.3", "attn", "v_proj", "q_proj", "ln2", "lm_head", "embeddings"])
@pytest.mark.parametrize("checkpointing", [Checkpointing(2, mode) for mode in CHECKPOINT_MODES], ids=str)
def test_frozen_parameters_change_no_gradient_of_the_others(checkpointing, trained):
    results = []
    for options in (None, checkpointing):
        net = model(options)
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(trained in name)
        results.append([gradient for gradient in gradients(net) if gradient is not None])
    assert results[0]
    assert_equal(*results)


@pytest.mark.parametrize("mode", CHECKPOINT_MODES)
def test_two_backwards_of_one_forward_and_none_after_an_error(mode, plain):
    assert_equal(gradients(model(Checkpointing(2, mode, offload=True)), backwards=2), plain)
    net = model(Checkpointing(2, mode))
    wrong = net.layers[1].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        net(IDS)
    wrong.remove()
    with torch.no_grad():
        assert not net(IDS).requires_grad
    assert_equal(gradients(net), plain)
    empty = model(Checkpointing(2, mode), reference_attention)(IDS[:0])
    empty.sum().backward()
    assert empty.shape == (0, 21, 80)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("checkpointing", [Checkpointing(2), Checkpointing(1, "selective", offload=True)], ids=str)
def test_compiled_layers_recompute_without_compiling_again(checkpointing):
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    net = model(checkpointing, reference_attention)
    for layer in net.layers:
        layer.compile(backend=backend, dynamic=False)
    first = gradients(net)
    compiled = len(graphs)
    assert_equal(gradients(net), first)
    assert len(graphs) == compiled > 0
    torch.testing.assert_close(first, gradients(model(None, reference_attention)))


def test_layers_of_any_kind_and_none_at_all():
    x = torch.randn(3, 4, requires_grad=True)
    layers = [nn.Linear(4, 4) for _ in range(3)]
    for mode in CHECKPOINT_MODES:
        assert run_checkpointed([], x, checkpointing=Checkpointing(2, mode)) is x
        kept = run_checkpointed(layers, x, checkpointing=Checkpointing(1, mode, offload=True))
        assert_equal(
            torch.autograd.grad(kept.sum(), x), torch.autograd.grad(layers[2](layers[1](layers[0](x))).sum(), x)
        )


def test_offloaded_groups_come_back_one_ahead_and_leave_when_they_are_done():
    offload, x = Offload(), torch.arange(3.0)
    entries = []
    for group in range(4):
        offload.begin_group()
        entries.append([offload.pack(x + group), offload.pack(x - group)])
    for group in (3, 2, 1, 0):
        for entry, sign in zip(entries[group], (1, -1), strict=True):
            assert torch.equal(offload.unpack(entry), x + sign * group)
            present = {number for number, pair in enumerate(entries) for each in pair if each.fetched is not None}
            assert present == {group, max(group - 1, 0)}


def test_what_is_no_checkpointing_is_refused_in_one_line():
    for every in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match=f"^checkpoint_every={every} was given; allowed: an int of at least 1$"):
            TransformerLM(CONFIG, 8, checkpoint_every=every)
    for every in (1, None):
        with pytest.raises(ValueError, match=r"^checkpoint_mode='all' was given; allowed: groups, selective, nested$"):
            TransformerLM(CONFIG, 8, checkpoint_every=every, checkpoint_mode="all")
        with pytest.raises(ValueError, match=r"^checkpoint_offload='no' was given; allowed: True or False$"):
            TransformerLM(CONFIG, 8, checkpoint_every=every, checkpoint_offload="no")
    with pytest.raises(ValueError, match=r"variant='compiled' was given with .*nested.*; allowed: eager, compiled_"):
        make_train_step(model(Checkpointing(1, "nested")), IDS, IDS, variant="compiled")


@pytest.fixture
def pythons_recursion_limit():
    """Python's own, which what other tests import may have raised."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.usefixtures("pythons_recursion_limit")
def test_nested_groups_are_as_deep_as_pythons_recursion_limit_allows():
    layers, x = nn.ModuleList(nn.Linear(2, 2) for _ in range(300)), torch.ones(1, 2)
    with pytest.raises(RuntimeError, match=r"^nested .* recursion limit of \d+; allowed: more layers in a group"):
        run_checkpointed(layers, x, checkpointing=Checkpointing(1, "nested"))
    run_checkpointed(layers, x, checkpointing=Checkpointing(3, "nested")).sum().backward()
    gradients = [value.grad for value in layers.parameters()]
    layers.zero_grad()
    run_checkpointed(layers, x, checkpointing=Checkpointing(300)).sum().backward()
    assert_equal(gradients, [value.grad for value in layers.parameters()])


@pytest.mark.gpu
@pytest.mark.parametrize("mode", CHECKPOINT_MODES)
def test_offloading_on_a_gpu_leaves_the_gradients_and_takes_less_memory(mode):
    attention = functools.partial(flash_attention, is_causal=True, impl="triton", deterministic=True)
    peaks, results = [], []
    for options in (None, Checkpointing(1), Checkpointing(1, mode, offload=True)):
        net = model(options, attention)
        ids = IDS.repeat(64, 1)
        gradients(net, ids)
        torch.cuda.reset_peak_memory_stats()
        results.append(gradients(net, ids))
        peaks.append(torch.cuda.max_memory_allocated())
        del net
    assert_equal(results[1], results[0])
    assert_equal(results[2], results[0])
    assert peaks[0] > peaks[1]
    assert peaks[0] > peaks[2]


class Gated(nn.Module):
    """Attention with a parameter and a mode of its own."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.tensor(0.7))

    def forward(self, q, k, v):
        out = flash_attention(q, k, v, is_causal=True, impl="pytorch")
        return nn.functional.dropout(out * self.gate, 0.3, self.training)


def test_an_attention_that_is_a_module_is_part_of_the_model_in_every_mode():
    results = []
    for mode in CHECKPOINT_MODES:
        net = model(Checkpointing(1, mode), Gated())
        assert "layers.0.attn.attention.gate" in net.state_dict()
        results.append(gradients(net))
        assert torch.equal(net.eval()(IDS), net(IDS)), mode
    for result in results[1:]:
        assert_equal(result, results[0])


class Dropping(nn.Linear):
    """A layer that drops what follows its attention too."""

    def __init__(self):
        super().__init__(16, 16, device=DEVICE)
        self.attention = Attention()

    def forward(self, x):
        y = super().forward(x)
        return x + nn.functional.dropout(module.kept_attention(self.attention, y, y, y), 0.2)


@pytest.mark.parametrize("impl", ["reference", "pytorch", "sdpa"])
def test_an_attention_may_change_its_inputs_in_place(impl):
    def attention(q, k, v):
        return flash_attention(q.mul_(2), k, v, is_causal=True, impl=impl)

    expected = gradients(model(attention=attention))
    ours = gradients(model(Checkpointing(2, "selective"), attention))
    torch.testing.assert_close(ours, expected, rtol=0, atol=0)


def test_dropout_after_a_kept_attention_is_recomputed_with_its_own_mask():
    torch.manual_seed(0)
    layers, x = [Dropping() for _ in range(3)], torch.randn(2, 9, 16, device=DEVICE)
    results = []
    for mode in CHECKPOINT_MODES:
        torch.manual_seed(1)
        out = run_checkpointed(layers, x, checkpointing=Checkpointing(1, mode))
        results.append(torch.autograd.grad(out.square().sum(), [layer.weight for layer in layers]))
    for result in results[1:]:
        assert_equal(result, results[0])


def test_a_group_that_nothing_recomputes_says_so():
    class Adding(Dropping):
        def forward(self, x):
            y = nn.Linear.forward(self, x)
            return x + module.kept_attention(self.attention, y, y, y)

    layers, x = [Adding() for _ in range(3)], torch.randn(2, 9, 16, device=DEVICE)
    out = run_checkpointed(layers, x, checkpointing=Checkpointing(1, "selective"))
    with pytest.raises(RuntimeError, match="was not recomputed before its backward"):
        out.sum().backward()
