"""Fixtures of the attention tests."""

from collections.abc import Callable, Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fills what torch leaves uninitialized with NaN, so that an element never written cannot look right.

    But for graphs of the compiler, which allows no fill in them.
    """

    def poisoned(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def allocate_poisoned(*args: object, **kwargs: object) -> torch.Tensor:
            memory = allocate(*args, **kwargs)
            if torch.compiler.is_compiling() or not memory.is_floating_point():
                return memory
            return memory.fill_(float("nan"))

        return allocate_poisoned

    for name in ("empty", "empty_like", "empty_strided"):
        monkeypatch.setattr(torch, name, poisoned(getattr(torch, name)))


@pytest.fixture(autouse=True)
def ieee_float32() -> Iterator[None]:
    """Eager float32 products in full precision: on a GPU, TF32 would make the yardstick 1000 times longer."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)
