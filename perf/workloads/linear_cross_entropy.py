"""A linear head and its mean cross-entropy: the fused operator, and PyTorch's ways to compute it."""

import functools
from collections.abc import Callable
from typing import Any

from perf.workloads import compile_any_number_of_shapes, measured
from perf.workloads.attention_check import TIMES_EAGER, TOLERANCES
from perf.workloads.transformer_state import hold
from perf.workloads.workload import Floor, Unavailable, Workload, require_allowed

MODES = ("forward", "forward_backward")
Loss = Callable[[Any, Any, Any], Any]
"""Maps hidden (tokens, d_model), weight (vocab_size, d_model) and targets (tokens,) to the mean loss."""

LOSS_TOLERANCE = {"bfloat16": 1e-3, "float16": 1e-3, "float32": 2e-6}
"""Relative error of the loss, that of `transformer_training`."""

ROWS = 512  # tokens of the oracle at a time: 600 MiB of float64 logits at a vocabulary of 151936


def build(params: dict[str, Any], device: str) -> Workload:
    """Build the loss. `params`: tokens, d_model, vocab_size, dtype, mode (of `MODES`) and impl.

    impl is fused (`linear_cross_entropy`), eager (linear and cross_entropy in float32), compiled (eager under
    torch.compile) or torch (`F.linear_cross_entropy` in chunks). forward is an evaluation under no_grad;
    forward_backward computes the gradients of hidden and weight.
    """
    import torch

    mode, dtype = params["mode"], params["dtype"]
    require_allowed(params, mode=MODES)
    loss_of = implementation(params["impl"])
    tokens, d_model, vocab_size = params["tokens"], params["d_model"], params["vocab_size"]
    hidden, weight, targets = inputs(tokens, d_model, vocab_size, dtype, device)

    def run() -> tuple[Any, ...]:
        if mode == "forward":
            with torch.no_grad():
                return (loss_of(hidden, weight, targets),)
        loss = loss_of(hidden, weight, targets)
        return loss.detach(), *torch.autograd.grad(loss, (hidden, weight))

    def check() -> float:
        """Compare with float64; the RMS of the gradients' errors also with those of eager's rounding."""
        loss, *gradients = run()
        exact_loss, *exact = oracle(hidden, weight, targets, torch.float64)
        allowed_loss = LOSS_TOLERANCE[dtype] + torch.finfo(loss.dtype).eps  # torch's own loss is rounded to `dtype`
        error = hold("the loss", abs(float(loss / exact_loss) - 1), allowed_loss)
        if not gradients:
            return error
        _, *eager = oracle(hidden, weight, targets, torch.float32)
        allowed = TOLERANCES[dtype]
        for name, ours, true, its in zip(("hidden", "weight"), gradients, exact, eager, strict=True):
            scales = true.norm(dim=1) + true.norm() / len(true) ** 0.5  # a token that never occurs has little gradient
            worst = float(((ours - true).norm(dim=1) / scales).max())
            hold(f"a row of {name}'s gradient", worst, allowed.row)
            slope = float(torch.vdot(ours.double().flatten(), true.flatten()) / true.square().sum())
            hold(f"the slope of {name}'s gradient", abs(slope - 1), allowed.slope)
            rms, of_eager = (float((one - true).norm() / true.norm()) for one in (ours, its))
            error = hold(f"{name}'s gradient", rms, TIMES_EAGER * of_eager + allowed.rms)
        return error

    product = 2 * tokens * vocab_size * d_model
    operands = hidden.nbytes + weight.nbytes
    is_training = mode == "forward_backward"
    floor = Floor(
        flops=(3 if is_training else 1) * product,
        matmul_dtype=dtype,
        bytes_read=operands + targets.nbytes,
        bytes_written=operands if is_training else 0,
    )
    names = ("loss", "grad_hidden", "grad_weight")
    return Workload(
        run=run,
        check=check,
        floor=floor,
        results=lambda: dict(zip(names, run(), strict=False)),
        rounding=TOLERANCES[dtype].rounding,
    )


def inputs(tokens: int, d_model: int, vocab_size: int, dtype: str, device: str) -> tuple[Any, Any, Any]:
    """Draw hidden and weight, whose logits have a variance of 1, and targets; the same in each call."""
    import torch

    generator = torch.Generator(device).manual_seed(0)
    hidden = torch.randn(tokens, d_model, dtype=torch.float32, device=device, generator=generator)
    weight = torch.randn(vocab_size, d_model, dtype=torch.float32, device=device, generator=generator)
    weight.mul_(d_model**-0.5)
    targets = torch.randint(vocab_size, (tokens,), device=device, generator=generator)
    hidden, weight = (x.to(getattr(torch, dtype)).requires_grad_() for x in (hidden, weight))
    return hidden, weight, targets


def implementation(impl: str) -> Loss:
    """Return the loss of an impl. Raises `Unavailable` if this commit or this torch lacks it."""
    import torch.nn.functional as F

    if impl == "fused":
        return measured("linear_cross_entropy", "linear_cross_entropy")
    if impl == "eager":
        return _eager
    if impl == "compiled":
        return _compiled()
    if impl == "torch":
        if not hasattr(F, "linear_cross_entropy"):
            raise Unavailable("this torch has no F.linear_cross_entropy; 2.13 does")
        from torch.nn import LinearCrossEntropyOptions

        return functools.partial(F.linear_cross_entropy, options=LinearCrossEntropyOptions())
    raise ValueError(f"impl={impl!r} was given; allowed: fused, eager, compiled, torch")


def oracle(hidden: Any, weight: Any, targets: Any, dtype: Any) -> tuple[Any, Any, Any]:
    """Return the loss and the gradients of hidden and weight, computed in `dtype` for some rows at a time.

    In float32 logits, their gradients and the results are rounded to the operands' dtype, as eager rounds them.
    """
    import torch

    def rounded(x: Any) -> Any:
        return x if dtype == torch.float64 else x.to(hidden.dtype).to(dtype)

    rows, weight = hidden.detach().to(dtype), weight.detach().to(dtype)
    loss, grad_hidden, grad_weight = rows.new_zeros(()), torch.empty_like(rows), torch.zeros_like(weight)
    for start in range(0, len(rows), ROWS):
        chunk = slice(start, start + ROWS)
        log_p = rounded(rows[chunk] @ weight.T).log_softmax(-1)
        mine = targets[chunk, None]
        loss -= log_p.gather(1, mine).sum()
        gradient = log_p.exp_()
        gradient.scatter_(1, mine, gradient.gather(1, mine) - 1)
        gradient = rounded(gradient.div_(len(rows)))
        grad_hidden[chunk] = gradient @ weight
        grad_weight.addmm_(gradient.T, rows[chunk])
    return loss / len(rows), rounded(grad_hidden), rounded(grad_weight)


def _eager(hidden: Any, weight: Any, targets: Any) -> Any:
    import torch.nn.functional as F

    return F.cross_entropy(F.linear(hidden, weight).float(), targets)


@functools.cache
def _compiled() -> Loss:
    """Return the compiled loss, one for all cases: a case is built more than once."""
    import torch

    compile_any_number_of_shapes()
    return torch.compile(_eager, dynamic=False)
