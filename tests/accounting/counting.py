"""Byte counts of real runs on the CPU, as it is or emulating CUDA."""

import contextlib
import functools

import torch
import torch.nn.functional as F
from torch._C._profiler import _EventType

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


def build(config, seq_len, impl, checkpointing=None):
    torch.manual_seed(0)
    options = {f"checkpoint_{name}": value for name, value in vars(checkpointing).items()} if checkpointing else {}
    return TransformerLM(config, seq_len, ATTENTION[impl], **options)


def batch_of(config, batch, seq_len):
    ids = torch.randint(config.vocab_size, (batch, seq_len), generator=torch.Generator().manual_seed(1))
    return ids, ids.roll(-1, dims=1)


@contextlib.contextmanager
def kept(*existing):
    """Fill a dict with the bytes of each storage that autograd saves inside, except those of `existing` tensors."""
    known = {tensor.untyped_storage().data_ptr() for tensor in existing}
    results, alive = {}, []

    def pack(tensor):
        alive.append(tensor)  # otherwise another tensor could reuse its address
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            results[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield results


class FusedRMSNorm(torch.autograd.Function):
    """RMSNorm that saves and allocates what CUDA's kernels do: input, weight and one scale per token are saved."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        scale = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(x, weight, scale)
        return x * scale * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight, scale = ctx.saved_tensors
        grad_x, grad_weight = torch.empty_like(x), torch.zeros_like(weight)
        for rows in zip(*(each.flatten(0, -2).split(16) for each in (x, scale, grad, grad_x)), strict=True):
            x_rows, scale_rows, grad_rows, out = rows  # few at a time: the kernel has no temporaries
            normed, weighted = x_rows * scale_rows, grad_rows * weight
            out.copy_(scale_rows * (weighted - normed * (weighted * normed).mean(-1, keepdim=True)))
            grad_weight += (grad_rows * normed).sum(0)
        return grad_x, grad_weight, None


@contextlib.contextmanager
def as_on_cuda():
    """Emulate CUDA: fuse RMSNorm, and run softmax in float32 under autocast."""
    softmax, norm = torch.softmax, F.rms_norm
    torch.softmax = lambda scores, dim: softmax(scores.float(), dim=dim)
    F.rms_norm = lambda x, shape, weight, eps: FusedRMSNorm.apply(x, weight, eps)
    try:
        yield
    finally:
        torch.softmax, F.rms_norm = softmax, norm


def peak_bytes(function):
    """Peak of the CPU allocator during `function()`, above its level before.

    The allocator's own running total, since timestamps of neighbouring events may be swapped on a busy machine.
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function()
    events, pending = [], list(profile.profiler.kineto_results.experimental_event_tree())
    while pending:
        event = pending.pop()
        pending += event.children
        if event.tag == _EventType.Allocation:
            events.append((event.start_time_ns, event.extra_fields))
    first = min(events, key=lambda event: event[0])[1]
    before = first.total_allocated - first.alloc_size
    return max(fields.total_allocated for _, fields in events) - before
