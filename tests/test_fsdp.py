"""The course's interface to fully sharded data parallelism, with layers of the course's kind."""

import pytest
import torch
from torch import nn

from tests.adapters import fsdp_gather_full_params, fsdp_on_after_backward, get_fsdp
from tests.distributed.ranks import spawn
from tests.distributed.steps import seeded

VOCABULARY = 11


class Linear(nn.Module):
    """Linear layer that is not torch's."""

    def __init__(self, d_in, d_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(d_out, d_in) / d_in**0.5)

    def forward(self, x):
        return x @ self.weight.T


class Embedding(nn.Module):
    """Embedding that is not torch's."""

    def __init__(self, vocab_size, d_model):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocab_size, d_model))

    def forward(self, ids):
        return self.weight[ids]


class Scale(nn.Module):
    """Norm's gain, which stays float32 and whole."""

    def __init__(self, d_model):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(d_model) + 0.5)

    def forward(self, x):
        return (x.float() * self.weight).to(x.dtype)


def build():
    return nn.Sequential(Embedding(VOCABULARY, 6), Scale(6), Linear(6, 9), nn.Tanh(), Linear(9, VOCABULARY))


def train(rank, compute_dtype):
    """Return the largest difference of the whole parameters from one process after three steps."""
    net, alone = get_fsdp(seeded(build, rank), compute_dtype), seeded(build)
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.1, eps=0.1) for each in (net, alone)]
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        ids = torch.randint(VOCABULARY, (2, 8), generator=generator, device="cpu").to(torch.get_default_device())
        for each, optimizer, mine in zip((net, alone), optimizers, (ids[rank], ids.flatten()), strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(each(mine).float(), mine).backward()
            if each is net:
                fsdp_on_after_backward(net, optimizer)
            optimizer.step()
    for parameter in net.module.parameters():
        assert parameter.grad.shape == parameter.shape and parameter.grad.dtype == parameter.dtype == torch.float32
    whole = fsdp_gather_full_params(net)
    assert whole.keys() == dict(alone.named_parameters()).keys()
    return max(float((whole[name] - value).abs().max()) for name, value in alone.named_parameters())


@pytest.mark.parametrize(("compute_dtype", "limit"), [(None, 1e-6), (torch.float16, 1e-3)], ids=["fp32", "fp16"])
def test_the_adapters_train_as_one_process_with_the_whole_batch(compute_dtype, limit):
    assert max(spawn(train, 2, compute_dtype)) < limit
