"""A linear head and its cross-entropy, with one chunk of logits in memory at once (Hsu et al. 2024, Liger-Kernel).

Rows of `hidden` are processed by chunks, in one buffer of logits. The forward computes each chunk's losses and the
gradient of its logits in their place, and from that the chunk's gradient of `hidden` and its addend to that of
`weight`: three products, the number that eager takes in forward and backward. The backward only scales both gradients.
Where the float32 sum over chunks would take as much memory as the chunks save, there is one chunk and no sum.
"""

import functools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Size, Tensor, nn
from torch.utils.flop_counter import register_flop_formula

from cs336_systems.checks import is_int, require_at_least, require_dense
from cs336_systems.differentiation import require_one_derivative

IMPLS = ("auto", "reference", "pytorch", "triton")

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

TILE = (128, 256)
"""Rows and columns of an output tile of cuBLAS's fastest 16-bit kernels on Hopper."""

ALIGNED = 8
"""Divides the columns that cuBLAS's fast 16-bit kernels take: 4096 x 4096 by 4096 x 50257 takes an H100 16.6 ms, with
50256 columns 2.1."""


class LanguageModelHead(nn.Linear):
    """Map x (..., d_model) to logits (..., vocab_size) or, with targets, to their mean cross-entropy."""

    def __init__(self, d_model: int, vocab_size: int):
        require_at_least(1, d_model=d_model, vocab_size=vocab_size)
        super().__init__(d_model, vocab_size, bias=False)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """Apply the head; `targets`, int64 and of shape (...), select `linear_cross_entropy`."""
        return super().forward(x) if targets is None else linear_cross_entropy(x, self.weight, targets)


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    impl: str = "auto",
    chunk_size: int | None = None,
) -> Tensor:
    """Compute the mean of `F.cross_entropy(F.linear(hidden, weight).float(), targets)`, a float32 scalar.

    Args:
        hidden: (..., d_model), in one of `DTYPES`; under autocast it is cast as `F.linear` casts it.
        weight: (vocab_size, d_model), in hidden's dtype unless autocast casts both.
        targets: (...), int64, each in [0, vocab_size) or ignore_index. Of another target, "triton" makes the loss NaN;
            the other implementations raise, as torch does.
        ignore_index: target without loss and gradient. If every target is ignored, or there is none, the loss is NaN
            and the gradients are 0, as torch's.
        impl: "reference" (eager, holds all logits), "pytorch" (chunks, any device), "triton" (chunks, CUDA, or CPU
            under Triton's interpreter); "auto" is "triton" on CUDA, except for float64, and "pytorch" elsewhere. A
            named implementation runs or raises; it never falls back to another.
        chunk_size: rows of `hidden` whose logits are in memory at once; if None, `default_chunk_size`, or all rows if
            one chunk needs no more memory than that.

    Returns:
        The mean over the targets that are not ignored; float64 for float64 inputs. Its statistics are float32, and so
        is the sum over chunks that is weight's gradient, because a 16-bit sum is rounded in every chunk: its error was
        1.3 times that of a float32 sum at 16 chunks and 7.3 times at 1024 (Liger-Kernel #1391, B200).

    Raises:
        ValueError: unknown impl; mismatched or unsupported shapes, dtypes or devices; a chunk_size or ignore_index that
            is no int, or a chunk_size below 1.
        RuntimeError: in a backward with create_graph=True or is_grads_batched=True, under torch.func's transforms
            and in forward mode, unless impl is "reference".
    """
    autocast_dtype = _autocast_dtype(hidden, weight)
    dtype = hidden.dtype if autocast_dtype is None else autocast_dtype
    _check(hidden, weight, targets, ignore_index, impl, chunk_size, must_agree=autocast_dtype is None)
    if impl == "auto":
        impl = "triton" if hidden.is_cuda and dtype != torch.float64 else "pytorch"
    if impl == "reference":
        logits = F.linear(hidden, weight).view(-1, len(weight)).to(torch.promote_types(dtype, torch.float32))
        return F.cross_entropy(logits, targets.flatten(), ignore_index=ignore_index)
    needs = [torch.is_grad_enabled() and x.requires_grad for x in (hidden, weight)]
    rows, sum_dtype = _chunks(targets.numel(), weight, dtype, chunk_size, needs_weight=needs[1])
    return _LinearCrossEntropy.apply(hidden, weight, targets, ignore_index, impl, rows, dtype, sum_dtype, *needs)


def default_chunk_size(d_model: int, device: torch.device) -> int:
    """Return the smallest number of rows, at least d_model, whose narrowest product fills whole waves of the GPU.

    That product is the gradient of `hidden`, (rows, d_model): a wave is `TILE[0]` rows for every ceil(d_model /
    TILE[1]) multiprocessors. With d_model rows, logits take as much memory as `weight`. Each chunk also reads and
    writes the float32 sum of weight's gradient, 8 bytes for 6 * rows FLOPs: at 4096 rows a tenth of the time of these
    FLOPs, by an H100's data sheet.
    """
    width = -(-d_model // TILE[1])
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    wave = TILE[0] * max(1, multiprocessors // width)
    return wave * -(-d_model // wave)


def cross_entropy_(logits: Tensor, targets: Tensor, losses: Tensor, ignore_index: int, needs_gradient: bool) -> None:
    """Write the losses of rows and, if needed, replace `logits` by the gradient of the sum of the losses.

    Args:
        logits: (rows, vocab_size), rows at any stride.
        targets: (rows,), int64.
        losses: (rows,), written; 0 for an ignored target. Its dtype is that of the statistics.
        ignore_index: see `linear_cross_entropy`.
        needs_gradient: whether to replace `logits` by softmax - one-hot, or 0 for an ignored target. The mean's
            gradient, smaller by the number of tokens, could underflow in float16.
    """
    log_p = logits.to(losses.dtype).log_softmax(-1)
    losses.copy_(F.nll_loss(log_p, targets, ignore_index=ignore_index, reduction="none"))
    if needs_gradient:
        columns, is_ignored = targets[:, None], (targets == ignore_index)[:, None]
        gradients = log_p.exp_().scatter_(1, columns.masked_fill(is_ignored, 0), -1.0, reduce="add")
        logits.copy_(gradients.masked_fill_(is_ignored, 0))


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, *rest: Any) -> Tensor:
        loss, scale, *gradients = _forward(hidden, weight, *rest)
        ctx.save_for_backward(scale, *gradients)
        ctx.needed = tuple(zip(rest[-2:], (hidden.dtype, weight.dtype), strict=True))
        return loss

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        require_one_derivative("linear_cross_entropy", "impl='reference'")
        scale, *gradients = ctx.saved_tensors
        factor = grad_loss * scale  # of one dimension, so that float32 and not the gradient's dtype decides the product
        scaled = (
            torch.mul(gradient, factor, out=torch.empty_like(gradient, dtype=dtype)) if is_needed else None
            for gradient, (is_needed, dtype) in zip(gradients, ctx.needed, strict=True)
        )
        return *scaled, *[None] * 8


# torch.compile gets one operator of known shapes: it would unroll the loop over chunks. The operator is named after the
# module, since two checkouts may be imported side by side.
@torch.library.custom_op(f"{__name__.replace('.', '_')}::forward", mutates_args=())
def _forward(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    impl: str,
    rows: int,
    dtype: torch.dtype,
    sum_dtype: torch.dtype,
    needs_hidden: bool,
    needs_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the loss, the factor (1,) on the gradients, and the gradients, empty unless needed."""
    loss, scale, grad_hidden, grad_weight = _outputs(hidden, weight, dtype, sum_dtype, needs_hidden, needs_weight)
    vocab_size, d_model = weight.shape
    x, y = hidden.reshape(-1, d_model), grad_hidden.view(-1, d_model)
    targets, weight = targets.flatten().contiguous(), weight.to(dtype)
    rows = min(len(x), rows)
    # Rows begin at multiples of 128 bytes: at an odd vocab_size, cuBLAS and the kernel could load no vectors.
    buffer = torch.empty(rows, -(-vocab_size // 64) * 64, dtype=dtype, device=hidden.device)[:, :vocab_size]
    losses = torch.empty(len(x), dtype=loss.dtype, device=loss.device)
    cross_entropy = cross_entropy_
    if impl == "triton":
        from cs336_systems.cross_entropy_kernel import cross_entropy_triton_ as cross_entropy  # Triton may be missing

    parts = _aligned_parts(vocab_size)
    if not len(x):
        grad_weight.zero_()
    for start in range(0, len(x), rows or 1):
        chunk = slice(start, start + rows)
        inputs = x[chunk].to(dtype)
        logits = buffer[: len(inputs)]
        for part in parts:
            torch.mm(inputs, weight[part].T, out=logits[:, part])
        cross_entropy(logits, targets[chunk], losses[chunk], ignore_index, needs_hidden or needs_weight)
        if needs_hidden:
            torch.mm(logits[:, parts[0]], weight[parts[0]], out=y[chunk])
            for part in parts[1:]:
                y[chunk].addmm_(logits[:, part], weight[part])
        if needs_weight:
            for part in parts:
                _add_product(grad_weight[part], logits[:, part].T, inputs, is_first=not start)
    count = (targets != ignore_index).sum()
    torch.div(losses.sum(), count, out=loss)
    scale.fill_(1).div_(count.clamp(min=1))
    return loss, scale, grad_hidden, grad_weight


@_forward.register_fake
def _(hidden: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _outputs(hidden, weight, *rest[-4:])


@register_flop_formula(getattr(torch.ops, __name__.replace(".", "_")).forward)
def _flops(hidden: Size, weight: Size, *rest: Any, **_: Any) -> int:
    """FLOPs of the logits and of each gradient that is needed."""
    return 2 * math.prod(hidden) * weight[0] * (1 + sum(rest[-2:]))


def _outputs(
    hidden: Tensor,
    weight: Tensor,
    dtype: torch.dtype,
    sum_dtype: torch.dtype,
    needs_hidden: bool,
    needs_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Allocate what `_forward` returns."""
    statistics = torch.promote_types(dtype, torch.float32)
    loss, scale = (hidden.new_empty(shape, dtype=statistics) for shape in ((), (1,)))
    grad_hidden = hidden.new_empty(hidden.shape if needs_hidden else (0, 0), dtype=dtype)
    grad_weight = hidden.new_empty(weight.shape if needs_weight else (0, 0), dtype=sum_dtype)
    return loss, scale, grad_hidden, grad_weight


def _chunks(
    tokens: int, weight: Tensor, dtype: torch.dtype, chunk_size: int | None, *, needs_weight: bool
) -> tuple[int, torch.dtype]:
    """Return the rows of a chunk and the dtype of the sum over chunks that is weight's gradient.

    The gradient of one chunk is no sum: in bfloat16, which has the range of float32, its product is written as the
    result. Float16 could overflow before the backward's factor. Without the sum, 2 bytes for each of weight's elements
    are free, so `d_model` more rows of logits need no more memory than `default_chunk_size` with it.
    """
    d_model = weight.shape[1]
    rows = chunk_size or default_chunk_size(d_model, weight.device)
    if needs_weight and dtype == weight.dtype == torch.bfloat16:
        most = chunk_size or rows + d_model
        if _is_known(tokens <= most):
            return most, dtype
    return rows, torch.promote_types(dtype, torch.float32)


def _is_known(condition: bool) -> bool:
    """Return `condition`; False in a graph for a range of sizes, of which a guard on it would exclude some."""
    if torch.compiler.is_compiling():
        from torch.fx.experimental.symbolic_shapes import statically_known_true  # imports sympy

        return statically_known_true(condition)
    return condition


def _aligned_parts(size: int) -> list[slice]:
    """Divide range(size) into its last `size % ALIGNED` and those before; what is empty is left out.

    The last come first: of a sum over both, a 16-bit total then rounds the smaller part alone before the end.
    """
    aligned = size - size % ALIGNED
    return [part for part in (slice(aligned, size), slice(aligned)) if range(size)[part]]


def _add_product(total: Tensor, a: Tensor, b: Tensor, *, is_first: bool) -> None:
    """Add a @ b to `total`, which may be float32 where they are 16-bit; the first product replaces it, unread."""
    if a.dtype == total.dtype:
        total.addmm_(a, b, beta=int(not is_first))
    elif _adds_in_place(a.device):
        torch.addmm(total, a, b, beta=int(not is_first), out_dtype=total.dtype, out=total)  # in cuBLAS's epilogue
    else:  # rounded to float16 first, a product of many rows would overflow
        total.addmm_(a.float(), b.float(), beta=int(not is_first))


@functools.cache
def _adds_in_place(device: torch.device) -> bool:
    """Whether torch and this device add a product of 16-bit matrices to a float32 one.

    cuBLAS does from compute capability 8.0 on; not every torch let addmm's addend differ from its factors
    (pytorch #154086).
    """
    factor = torch.zeros(16, 16, dtype=torch.bfloat16, device=device)
    total = factor.float()
    try:
        torch.addmm(total, factor, factor, out_dtype=total.dtype, out=total)
    except RuntimeError:
        return False
    return True


def _autocast_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype | None:
    """Return the dtype to which autocast casts both operands; None if it is off or leaves them, as it does float64."""
    device = hidden.device.type
    if device == "meta" or not torch.is_autocast_enabled(device) or torch.float64 in (hidden.dtype, weight.dtype):
        return None
    return torch.get_autocast_dtype(device)


def _check(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    impl: str,
    chunk_size: int | None,
    *,
    must_agree: bool,
) -> None:
    if impl not in IMPLS:
        raise ValueError(f"impl is {impl!r}; allowed: {', '.join(IMPLS)}")
    if chunk_size is not None and (not is_int(chunk_size) or not 1 <= chunk_size < 2**63):
        raise ValueError(f"chunk_size is {chunk_size!r}; allowed: None, or an int of at least 1 that int64 can hold")
    if not is_int(ignore_index) or not -(2**63) <= ignore_index < 2**63:
        raise ValueError(f"ignore_index is {ignore_index!r}; allowed: an int that int64 can hold")
    require_dense(hidden=hidden, weight=weight, targets=targets)
    shapes = [tuple(x.shape) for x in (hidden, weight, targets)]
    if weight.ndim != 2 or 0 in shapes[1] or shapes[0] != (*shapes[2], shapes[1][1]):
        raise ValueError(
            f"hidden, weight, targets have shapes {', '.join(map(str, shapes))}; "
            "allowed: (..., d_model), (vocab_size, d_model) of at least 1 each, (...)"
        )
    if (
        {hidden.dtype, weight.dtype} - set(DTYPES)
        or (must_agree and hidden.dtype != weight.dtype)
        or targets.dtype != torch.int64
    ):
        raise ValueError(
            f"hidden, weight, targets have dtypes {hidden.dtype}, {weight.dtype}, {targets.dtype}; "
            f"allowed: {', '.join(map(str, DTYPES))}, one for both (any two under autocast), and int64"
        )
    if not hidden.device == weight.device == targets.device:
        raise ValueError(
            f"hidden, weight, targets are on {hidden.device}, {weight.device}, {targets.device}; allowed: one device"
        )
    if impl == "triton" and hidden.dtype == torch.float64:
        raise ValueError("hidden has dtype torch.float64; allowed for impl='triton': float32, bfloat16, float16")
    if impl == "triton" and not (hidden.is_cuda or hidden.is_meta):
        from cs336_systems.cross_entropy_kernel import cross_entropy_kernel
        from cs336_systems.launching import require_launchable

        require_launchable(cross_entropy_kernel, hidden, "hidden")
