"""Controls, which run no project code: when a control moves, the machine moved."""

import functools
from typing import Any

from perf.workloads.workload import Floor, Workload, WrongResult, no_floor, no_result


def build(params: dict[str, Any], device: str) -> Workload:
    """Build a control: matmul (bfloat16 8192^3 on a GPU), copy (1 GiB on a GPU), launch (4096 floats) or linears."""
    on_gpu = device == "cuda"
    control = params["control"]
    if control == "matmul":
        return matmul(8192, "bfloat16", device) if on_gpu else matmul(512, "float32", device)
    if control == "copy":
        return copy(2**28 if on_gpu else 2**22, device)
    if control == "launch":
        return launch(4096, device)
    if control == "linears":
        return linears(48, 1024, 2048, "bfloat16", device)
    raise ValueError(f"control={control!r} was given; allowed: matmul, copy, launch, linears")


def matmul(n: int, dtype: str, device: str) -> Workload:
    """Build torch's n x n x n matmul of random numbers, because zeros run up to 13 % faster."""
    import torch

    a, b = torch.randn(2, n, n, device=device, dtype=getattr(torch, dtype))
    out = torch.empty_like(a)

    def check() -> float:
        torch.mm(a, b, out=out)
        exact = a[:8].double() @ b.double()
        error = float((out[:8] - exact).norm() / exact.norm())
        if not error < 1e-2:
            raise WrongResult(f"matmul differs from float64 by {error:.1e} (relative), allowed 1e-02")
        return error

    item = a.element_size() * n * n
    floor = Floor(flops=2 * n**3, matmul_dtype=dtype, bytes_read=2 * item, bytes_written=item)
    return Workload(run=lambda: torch.mm(a, b, out=out), check=check, floor=floor)


def copy(elements: int, device: str) -> Workload:
    """Build a copy of a float32 tensor into another of the same size."""
    import torch

    source = torch.randn(elements, dtype=torch.float32, device=device)
    target = torch.full_like(source, float("nan"))

    def check() -> float:
        target.copy_(source)
        if not torch.equal(source, target):
            raise WrongResult("the copy differs from its source")
        return 0.0

    floor = Floor(bytes_read=4 * elements, bytes_written=4 * elements)
    return Workload(run=lambda: target.copy_(source), check=check, floor=floor)


def launch(elements: int, device: str) -> Workload:
    """Build an addition so small that its time is that of its launch."""
    import torch

    a, b = torch.randn(2, elements, dtype=torch.float32, device=device)
    out = torch.empty_like(a)

    def check() -> float:
        torch.add(a, b, out=out)
        if not torch.equal(out.cpu(), a.cpu() + b.cpu()):
            raise WrongResult("the sum differs from the CPU's")
        return 0.0

    floor = Floor(bytes_read=8 * elements, bytes_written=4 * elements)
    return Workload(run=lambda: torch.add(a, b, out=out), check=check, floor=floor)


def empty(device: str) -> Workload:
    """Build the launch of an empty kernel; on a CPU, which launches nothing, torch's addition of two numbers."""
    import torch

    run = functools.partial(torch.cuda._sleep, 0) if device == "cuda" else launch(1, device).run
    nothing = "an empty kernel computes nothing"
    return Workload(run=run, check=no_result(nothing), floor=no_floor(nothing))


def linears(layers: int, width: int, rows: int, dtype: str, device: str) -> Workload:
    """Build forward and backward of a chain of square linear layers, so small that eager PyTorch is host-bound."""
    import torch

    generator = torch.Generator(device).manual_seed(0)
    sizes = [rows, *[width] * layers]
    drawn = functools.partial(torch.randn, dtype=torch.float32, device=device, generator=generator)
    x, *weights = (drawn((size, width)) * width**-0.5 for size in sizes)
    x, weights = x.to(getattr(torch, dtype)), [w.to(getattr(torch, dtype)).requires_grad_() for w in weights]

    def gradients(x: Any, weights: list[Any]) -> tuple[Any, ...]:
        for weight in weights:
            x = torch.nn.functional.linear(x, weight)
        return torch.autograd.grad(x.sum(), weights)

    def check() -> float:
        actual = gradients(x, weights)
        exact = gradients(x.double(), [weight.detach().double().requires_grad_() for weight in weights])
        error = max(float((ours - true).norm() / true.norm()) for ours, true in zip(actual, exact, strict=True))
        if not error < 0.1:  # a hundred roundings to bfloat16 make 0.02
            raise WrongResult(f"a gradient differs from float64 by {error:.1e} (relative), allowed 1e-01")
        return error

    item = x.element_size()
    matmuls = 3 * layers - 1  # forward, gradient of the weight and of the input; x itself needs no gradient
    floor = Floor(
        flops=matmuls * 2 * rows * width**2,
        matmul_dtype=dtype,
        bytes_read=item * (rows * width + layers * width**2),
        bytes_written=item * layers * width**2,
    )
    return Workload(run=lambda: gradients(x, weights), check=check, floor=floor)
