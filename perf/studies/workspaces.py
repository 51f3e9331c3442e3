"""Memory that cuBLAS keeps for a process."""

import warnings
from typing import Any


def workspaces() -> dict[str, int]:
    """Return `torch.cuda.memory_allocated()` at first, after a product, and after a backward.

    cuBLAS allocates a workspace for each thread and stream with the first product there, and keeps it; the backward
    has a thread of its own. Workspaces are freed first, so that the result does not depend on earlier work. Later rows
    of the process hold both from their start.
    """
    import torch

    if clear := getattr(torch._C, "_cuda_clearCublasWorkspaces", None):
        clear()
    else:
        warnings.warn("this torch cannot free cuBLAS workspaces: earlier ones are not counted", stacklevel=2)
    sizes = {"before_bytes": torch.cuda.memory_allocated()}
    x = torch.ones(128, 128, device="cuda", requires_grad=True)
    y = x @ x
    torch.cuda.synchronize()
    sizes["after_product_bytes"] = torch.cuda.memory_allocated() - _sizes(x, y)
    with warnings.catch_warnings():
        # From autograd's thread, whose first kernel is a product; cuBLAS sets the context and goes on.
        warnings.filterwarnings("ignore", "Attempting to run cuBLAS, but there was no current CUDA context")
        y.sum().backward()
    torch.cuda.synchronize()
    sizes["after_backward_bytes"] = torch.cuda.memory_allocated() - _sizes(x, y, x.grad)
    return sizes


def _sizes(*tensors: Any) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)
