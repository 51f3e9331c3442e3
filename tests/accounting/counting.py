"""Counts bytes of real runs on the CPU, as it is or standing in for CUDA."""

import contextlib
import functools

import torch
import torch.nn.functional as F

from cs336_systems.attention.api import flash_attention
from cs336_systems.transformer import TransformerLM, reference_attention

ATTENTION = {
    "reference": reference_attention,
    "pytorch": functools.partial(flash_attention, is_causal=True, impl="pytorch"),
    "sdpa": functools.partial(flash_attention, is_causal=True, impl="sdpa"),
}


def kind(impl):
    return "reference" if impl == "reference" else "flash"


def autocast(precision):
    return torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()


def build(config, seq_len, impl, *, checkpointed=False):
    torch.manual_seed(0)
    return TransformerLM(config, seq_len, ATTENTION[impl], checkpointed=checkpointed)


def batch_of(config, batch, seq_len):
    ids = torch.randint(config.vocab_size, (batch, seq_len), generator=torch.Generator().manual_seed(1))
    return ids, ids.roll(-1, dims=1)


@contextlib.contextmanager
def kept(*existing):
    """Fills a dict, storage -> bytes, with what autograd saves inside, without the storages of `existing` tensors."""
    known = {tensor.untyped_storage().data_ptr() for tensor in existing}
    found, alive = {}, []

    def pack(tensor):
        alive.append(tensor)  # or its address would be another tensor's
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield found


class FusedRMSNorm(torch.autograd.Function):
    """Saves what CUDA's kernel saves: input, weight and one scale a token."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        scale = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(x, weight, scale)
        return x * scale * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight, scale = ctx.saved_tensors
        normed = x * scale
        weighted = grad * weight
        grad_x = scale * (weighted - normed * (weighted * normed).mean(-1, keepdim=True))
        return grad_x, (grad * normed).flatten(0, -2).sum(0), None


@contextlib.contextmanager
def as_on_cuda():
    """RMSNorm fused, and softmax in float32 under autocast too, as CUDA's kernels and its lists have it."""
    softmax, norm = torch.softmax, F.rms_norm
    torch.softmax = lambda scores, dim: softmax(scores.float(), dim=dim)
    F.rms_norm = lambda x, shape, weight, eps: FusedRMSNorm.apply(x, weight, eps)
    try:
        yield
    finally:
        torch.softmax, F.rms_norm = softmax, norm


def peak_bytes(function):
    """The highest sum of what the CPU's allocator gave out during `function()`, over what was there before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    total = highest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        total += event.nbytes()
        highest = max(highest, total)
    return highest
