"""Launches that Triton does not look at: what makes two of them alike, and what they hand to the kernel."""

from typing import Any

import pytest
import torch
import triton

from cs336_systems.attention import flash_triton, launch
from cs336_systems.attention.dropout import Dropout
from tests.attention.gate import Shape, make_inputs


class FakeKernel(triton.runtime.JITFunction):
    """Compiles to itself, and notes how it was launched."""

    arg_names = ("X_ptr", "N", "TILE", "CAUSAL")

    def __init__(self) -> None:
        self.checked: list[tuple[Any, ...]] = []
        self.unchecked: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch_either(*arguments: Any, **constants: Any) -> "FakeKernel":
            (self.checked if len(grid) == 1 else self.unchecked).append((grid, arguments, constants))
            return self

        return launch_either


def test_the_second_launch_of_a_key_goes_straight_to_the_compiled_kernel() -> None:
    kernel = FakeKernel()
    constants = {"CAUSAL": True, "TILE": 64, "num_warps": 4}
    for n in (128, 256):
        launch.launch(kernel, "key", 3, ("x", n), constants)
    assert kernel.checked == [((3,), ("x", 128), constants)]
    assert kernel.unchecked == [((3, 1, 1), ("x", 256, 64, True), {})]
    launch.launch(kernel, "another key", 3, ("x", 128), constants)
    launch.launch(kernel, "key", 3, ("x", 128), constants | {"TILE": 32})
    launch.launch(kernel, "key", 3, ("x", 128), constants | {"num_warps": 8})
    assert len(kernel.checked) == 4


def test_kernels_of_shapes_that_come_once_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_MOST_COMPILED", 8)
    monkeypatch.setattr(launch, "_compiled", {})
    kernel = FakeKernel()
    for n in range(20):
        launch.launch(kernel, n, 1, ("x", n), {"TILE": 64, "CAUSAL": True})
    assert len(launch._compiled) <= 8


def test_a_key_holds_all_that_triton_compiles_for() -> None:
    x = torch.zeros(2, 8, 64)
    unaligned = torch.zeros(x.numel() + 1)[1:].view_as(x)
    same = launch.key_of_tensors(x, x)
    assert same == launch.key_of_tensors(x, torch.zeros_like(x)) and hash(same)
    for other in (unaligned, x.half(), x[:1], x.transpose(0, 1).contiguous().transpose(0, 1), x.to("meta")):
        assert launch.key_of_tensors(x, other) != same or other.device != x.device
    assert launch.key_of_tensors(x.to("meta"), x) != same


@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
def test_every_launch_names_the_rest_of_its_kernels_arguments(
    dropout_p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Triton's launch a name that is missing is an error; in one that goes past it, it would be here."""
    launched: dict[str, Any] = {}

    def checked(
        kernel: Any, key: Any, num_programs: int, arguments: tuple[Any, ...], constants: dict[str, Any]
    ) -> None:
        rest = kernel.arg_names[len(arguments) :]
        assert set(rest) <= constants.keys() and not set(kernel.arg_names[: len(arguments)]) & constants.keys()
        launched[kernel.__name__] = key
        launch.launch(kernel, key, num_programs, arguments, constants)

    monkeypatch.setattr(flash_triton, "launch", checked)
    q, k, v, grad_out = make_inputs(Shape((2,), 33, 33, 16), torch.float32)
    seed = torch.zeros(1, dtype=torch.int64, device=q.device)
    dropout = Dropout(dropout_p, seed) if dropout_p else None
    with torch.no_grad():
        out, lse = flash_triton.flash_forward(q, k, v, True, 0.25, dropout=dropout)
        flash_triton.flash_backward(q, k, v, out, lse, grad_out, True, 0.25, "bf16x6", dropout)
    assert len(launched) == 4 and all(hash(key) for key in launched.values())
