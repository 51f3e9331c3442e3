"""Error of a backward that has no derivative itself, where one is requested."""

import torch


def require_one_derivative(what: str, instead: str) -> None:
    """Raise RuntimeError in a backward of `what` that is recorded, as one with create_graph=True; `instead` takes that.

    torch's `once_differentiable` refuses only if the gradient that comes in needs one itself. That of a sum or a loss
    rarely does, and second derivatives would miss a part without a word.
    """
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(f"{what} is differentiated once; {instead} takes create_graph=True")
