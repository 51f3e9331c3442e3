"""Checkpoints with RoPE in either layout: the course's, ours with its layout, and ours from before it was written."""

import io
from collections import OrderedDict

import pytest
import torch
from torch import nn

from cs336_systems.rope_layout import KEY
from cs336_systems.transformer import TransformerLM
from tests.transformer.test_transformer import TINY, in_place, neighbours, plain_logits, side_by_side

IDS = torch.randint(TINY.vocab_size, (2, 19), generator=torch.Generator().manual_seed(1))
HALVES = TINY.head_dim // 2


def model(seed):
    torch.manual_seed(seed)
    return TransformerLM(TINY, 24)


def without_layout(state_dict, *more_modules):
    """A state dict from before it had a layout, with the names of its modules: ours, or more."""
    old = OrderedDict((name, value) for name, value in state_dict.items() if name != KEY)
    old._metadata = OrderedDict.fromkeys((*state_dict._metadata, *more_modules), {"version": 1})
    return old


def loaded(state_dict):
    """Another model's logits with this state dict, which comes from a file."""
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    other = model(seed=7)
    other.load_state_dict(torch.load(file, weights_only=True))
    return other(IDS)


@pytest.mark.parametrize("put", [in_place, side_by_side], ids=["2025", "2026"])
@pytest.mark.parametrize("copied", [False, True])
def test_the_courses_weights_give_the_courses_logits(put, copied):
    course = without_layout(model(seed=0).state_dict(), "positional_encoder", "layers.0.attn.positional_encoder")
    expected = plain_logits(course, TINY, IDS, neighbours, put)
    before = {name: value.clone() for name, value in course.items()}
    logits = loaded(dict(course) if copied else course)
    torch.testing.assert_close(logits.double(), expected, rtol=1e-5, atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in course.items())


def test_a_checkpoint_carries_its_layout_whatever_it_goes_through():
    ours = model(seed=0)
    state = ours.state_dict()
    assert int(state[KEY]) == HALVES
    for copy in (state, dict(state), {name: value.double() for name, value in state.items()}):
        assert torch.equal(loaded(copy), ours(IDS))
    wrapped, other = nn.Sequential(ours), nn.Sequential(model(seed=7))
    other.load_state_dict(dict(wrapped.state_dict()))
    assert torch.equal(other(IDS), ours(IDS))
    again = torch.load(io.BytesIO(pickled(ours)), weights_only=False)
    assert int(again.state_dict()[KEY]) == HALVES


def pickled(module):
    file = io.BytesIO()
    torch.save(module, file)
    return file.getvalue()


def test_an_older_checkpoint_of_ours_loads_as_it_was():
    ours = model(seed=0)
    old = without_layout(ours.state_dict())
    assert torch.equal(loaded(old), ours(IDS))
    assert torch.equal(loaded(dict(old) | {KEY: HALVES}), ours(IDS))  # said where its modules' names are lost


def test_what_cannot_be_a_layout_or_a_weight_is_refused():
    ours = model(seed=0)
    state = ours.state_dict()
    with pytest.raises(ValueError, match=f"{KEY}=3 was given; allowed: 1 and {HALVES}, for head_dim={TINY.head_dim}"):
        ours.load_state_dict({**state, KEY: torch.tensor(3)})
    half = {**state, KEY: 1, "layers.0.attn.q_proj.weight": torch.zeros(32, 64)}
    with pytest.raises(RuntimeError, match=r"32 rows of layers.0.attn.q_proj.weight were given; allowed: all 64"):
        ours.load_state_dict(half)
