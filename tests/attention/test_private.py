"""Private parts of torch and triton that attention uses: where one is gone or has changed, the plain way is taken."""

import importlib
import sys
import warnings
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from torch.utils.flop_counter import FlopCounterMode

from cs336_systems.attention import flash_triton, gpu, launch
from cs336_systems.attention import private as kernels
from cs336_systems.attention.api import flash_attention
from cs336_systems.attention.launch import Launch
from cs336_systems.attention.private import warn_once
from tests.attention.gate import DEVICE
from tests.attention.test_launch import FakeGPU, FakeKernel, FakeLauncher


@pytest.fixture(autouse=True)
def warned_of_nothing() -> None:
    warn_once.cache_clear()


def refuse(*arguments: Any, **named: Any) -> None:
    raise TypeError("takes other arguments")


@pytest.mark.parametrize("how", ["gone", "changed"])
def test_without_the_check_for_functorch_apply_is_torchs_own(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    q = torch.randn(2, 33, 16, device=DEVICE, requires_grad=True)
    fast = torch.autograd.grad(flash_attention(q, q, q, impl="triton").sum(), q)
    if how == "gone":
        monkeypatch.delattr(torch._C, "_are_functorch_transforms_active")
    else:
        monkeypatch.setattr(torch._C, "_are_functorch_transforms_active", refuse)
    with pytest.warns(RuntimeWarning, match="functorch"):
        check = kernels.functorch_check()
    monkeypatch.undo()
    monkeypatch.setattr(flash_triton, "_functorch_is_active", check)
    plain = torch.autograd.grad(flash_attention(q, q, q, impl="triton").sum(), q)
    torch.testing.assert_close(plain, fast, rtol=0, atol=0)


@pytest.mark.parametrize("how", ["gone", "changed"])
def test_without_the_check_for_dispatch_modes_attention_runs_as_outside_of_them(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "gone":
        monkeypatch.delattr(torch._C, "_len_torch_dispatch_stack")
    else:
        monkeypatch.setattr(torch._C, "_len_torch_dispatch_stack", refuse)
    with pytest.warns(RuntimeWarning, match="dispatch"):
        check = kernels.dispatch_mode_check()
    monkeypatch.undo()
    with FlopCounterMode(display=False):  # one of them
        assert kernels.dispatch_mode_check()() and not check()
    assert not kernels.dispatch_mode_check()()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit
def test_tracing_is_seen_with_and_without_torchs_own_function(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(bool(kernels.tracing_check()()))
        return x + 1

    torch.jit.trace(function, torch.ones(1), check_trace=False)
    with monkeypatch.context() as without:
        without.delattr(torch._C, "_is_tracing", raising=False)
        assert kernels.tracing_check() is torch.jit.is_tracing
    function(torch.ones(1))
    assert seen == [True, False]


def hands_on_nothing(kernel: FakeKernel) -> None:
    kernel.run = FakeLauncher(kernel.direct.append)
    kernel.run.__class__ = type("Other", (FakeLauncher,), {"__call__": lambda self, *arguments: None})


def hands_on_in_another_order(kernel: FakeKernel) -> None:
    kernel.run = FakeLauncher(kernel.direct.append)

    def reversed_(self: Any, *arguments: Any) -> None:
        self.launch(*reversed(arguments))

    kernel.run.__class__ = type("Other", (FakeLauncher,), {"__call__": reversed_})


def refuses(kernel: FakeKernel) -> None:
    kernel.run = FakeLauncher(kernel.direct.append)
    kernel.run.__class__ = type("Other", (FakeLauncher,), {"__call__": refuse})


def has_no_function(kernel: FakeKernel) -> None:
    kernel.run = FakeLauncher(kernel.direct.append)
    kernel.__class__ = type("Other", (FakeKernel,), {"packed_metadata": property(refuse)})


@pytest.mark.parametrize(
    "change", [hands_on_nothing, hands_on_in_another_order, refuses, has_no_function], ids=lambda one: one.__name__
)
def test_without_its_launcher_each_launch_goes_through_triton(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.runtime.driver, "_active", FakeGPU())
    kernel = FakeKernel()
    change(kernel)
    x = torch.zeros(1)
    one = Launch(kernel, 3, (128,), {"CAUSAL": True, "TILE": 64})
    with pytest.warns(RuntimeWarning, match="launcher"):
        one(x)
    assert not one.is_new
    kernel.direct.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one(x)
        one(x)
    assert kernel.checked == [((3, 1, 1), (x, 128), {"CAUSAL": True, "TILE": 64})] * 3
    assert not kernel.direct and not kernel.unchecked


@dataclass
class Descriptor:
    """Of a tensor, checked."""

    base: Any
    shape: tuple[int, ...]


@dataclass
class Counting(Descriptor):
    """Holds more than its fields."""

    def __post_init__(self) -> None:
        self.elements = self.base.numel()


def test_a_descriptor_is_copied_without_its_checks() -> None:
    like = kernels.descriptors_like(Descriptor(torch.zeros(2), (2,)))
    y = torch.ones(2)
    assert vars(like(y)) == {"base": y, "shape": (2,)}


def test_a_descriptor_that_holds_more_than_its_fields_is_made_anew() -> None:
    with pytest.warns(RuntimeWarning, match="TensorDescriptor"):
        like = kernels.descriptors_like(Counting(torch.zeros(2), (2,)))
    assert like(torch.ones(5)).elements == 5


def test_a_descriptor_is_encoded_once_for_each_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's own launch, but for the two calls of C: the encoding, and the launch that gets what was encoded."""
    driver = pytest.importorskip("triton.backends.nvidia.driver")
    encoded: list[tuple[Any, ...]] = []

    def encode(*arguments: Any) -> str:
        encoded.append(arguments)
        return f"{arguments[0]:x}, {arguments[4]}"

    utils = SimpleNamespace(fill_tma_descriptor=encode, fill_tma_descriptor_tiled=encode)
    monkeypatch.setattr(triton.runtime.driver, "_active", SimpleNamespace(utils=utils))
    layouts = [
        {"swizzle": 3, "elem_size": 2, "elem_type": 5, "block_size": [64, columns], "fp4_padded": False}
        for columns in (64, 32)
    ]
    launched: list[tuple[Any, ...]] = []
    launch = driver.wrap_handle_tensordesc(
        lambda *arguments: launched.append(arguments), {0: "tensordesc<bf16>", 1: "tensordesc<bf16>", 2: "i32"}, layouts
    )
    remembering = kernels._encoding_once(launch)
    in_one = not hasattr(driver, "_BASE_ARGS_FORMAT_LEN")
    before = range(4) if in_one else range(driver._BASE_ARGS_FORMAT_LEN)

    def launch_with(call: Any, *tensors: torch.Tensor) -> tuple[Any, ...]:
        described = [
            SimpleNamespace(base=x, shape=[*x.shape], strides=[*x.stride()], padding="zero", round_f32_to_tf32=False)
            for x in tensors
        ]
        call(*before, *([(*described, 7)] if in_one else (*described, 7)))
        return launched.pop()

    x, y = torch.zeros(2, 128, 64, dtype=torch.bfloat16).unbind()
    for pair in ((x, y), (y, x), (x, x), (x, y)):
        assert launch_with(remembering, *pair) == launch_with(launch, *pair)
    encoded.clear()
    for pair in ((x, y), (y, x), (x, x)):
        launch_with(remembering, *pair)
    assert not encoded
    monkeypatch.setattr(kernels, "MAX_ENCODED", 1)
    launch_with(remembering, torch.zeros_like(x), y)
    assert encoded and kernels._encoding_once(print) is print


def test_without_gluon_the_plain_kernels_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda", 7)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(triton, "knobs", SimpleNamespace(runtime=SimpleNamespace(interpret=False)))
    imported = importlib.import_module

    def import_module(name: str) -> Any:
        if name.endswith("gluon_kernels"):
            raise ImportError("cannot import name 'tma'")
        return imported(name)

    monkeypatch.setattr(importlib, "import_module", import_module)
    gpu.runs_gluon.cache_clear()
    with pytest.warns(RuntimeWarning, match="Gluon"):
        assert not gpu.runs_gluon(device)
    assert not gpu.runs_gluon(device)
    gpu.runs_gluon.cache_clear()


@pytest.mark.gpu
@pytest.mark.filterwarnings("error")
def test_the_fast_ways_are_taken_on_the_installed_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert flash_triton._functorch_is_active is torch._C._are_functorch_transforms_active
    launched: list[Launch] = []
    call = Launch.__call__

    def noted(self: Launch, *tensors: Any) -> None:
        launched.append(self)
        call(self, *tensors)

    monkeypatch.setattr(launch.Launch, "__call__", noted)
    for dtype in (torch.bfloat16, torch.float32):
        q, k, v = (torch.randn(2, 16, 4096, 64, device=DEVICE, dtype=dtype, requires_grad=True) for _ in range(3))
        torch.autograd.grad(flash_attention(q, k, v, True, impl="triton").sum(), (q, k, v))
    assert launched and all(one._direct is not None for one in launched)
    if torch.cuda.get_device_capability() == (9, 0):
        assert "cs336_systems.attention.gluon_plans" in sys.modules
        assert {"hopper" in one.kernel.__name__ for one in launched} == {True, False}
