"""Fixtures of the attention tests."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch._dynamo  # before anything of torch's is replaced: it knows torch's functions by what it then finds

from cs336_systems.attention.planning import plans

with torch.device("cpu"):  # likewise: at its first use torch lists the functions that take a default device, for good
    torch.empty(0)


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fills what torch leaves uninitialized with NaN, so that an element never written cannot look right."""

    def poisoned(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def allocate_poisoned(*args: object, **kwargs: object) -> torch.Tensor:
            memory = allocate(*args, **kwargs)
            if memory.is_floating_point():
                memory.detach().fill_(float("nan"))  # torch 2.11's checkpoints allocate leaves
            return memory

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


@pytest.fixture(autouse=True)
def new_plans() -> Iterator[None]:
    """Plan anew in each test, so that changes to the tables of tiles take effect in it alone."""
    plans.clear()
    yield
    plans.clear()
