"""Launches that Triton does not look at: what makes two of them alike, and what they hand to the kernel."""

import gc
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
import triton

from cs336_systems.attention import launch, planning, tiles, triton_plans
from cs336_systems.attention.api import flash_attention
from cs336_systems.attention.dropout import Dropout
from cs336_systems.attention.flash_triton import FlashAttentionTriton
from cs336_systems.attention.planning import plan_for, plans
from cs336_systems.attention.request import Request
from tests.attention.gate import Shape, make_inputs

X, Y = torch.zeros(1), torch.ones(1)
PACKAGE = Path(planning.__file__).parents[1]


def run(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    grad_out: torch.Tensor,
    is_causal: bool = True,
    scale: float = 0.25,
    dropout: Dropout | None = None,
) -> tuple[torch.Tensor, ...]:
    """Forward and backward by their plans: out, lse, dq, dk, dv."""
    p, seed = (0.0, None) if dropout is None else dropout
    plan = plan_for(Request(is_causal, scale, dropout=p), q, k, v, seed)
    out, lse = plan.forward(q, k, v, seed)
    return out, lse, *plan.backward(q, k, v, out, lse, grad_out, seed)


@pytest.mark.parametrize(
    ("dtype", "d", "unit"),
    [
        (torch.bfloat16, 88, 8),
        (torch.float32, 88, 4),
        (torch.bfloat16, 20, 4),
        (torch.bfloat16, 33, 1),
        (torch.bfloat16, 96, 1),  # 16 divides them, as Triton sees
    ],
)
def test_a_stride_unit_divides_all_strides_and_is_at_most_sixteen_bytes(dtype: torch.dtype, d: int, unit: int) -> None:
    x = torch.empty(2, 3, 7, d, dtype=dtype)
    assert launch.stride_unit(x, x.transpose(1, 2)) == unit
    odd = torch.empty(2, 3, 7, d + 1, dtype=dtype)[..., 1:]
    assert launch.stride_unit(x, odd) == 1


class FakeLauncher:
    """Hands on to C what it is given and, as one release of Triton or the other, where scratch memory is."""

    def __init__(self, note: Callable[[tuple[Any, ...]], None], in_one: bool = False, scratch: int = 0) -> None:
        self.in_one, self.global_scratch_size, self.profile_scratch_size = in_one, scratch, 0
        self.launch = lambda *arguments: note(arguments)

    def __call__(self, x: int, y: int, z: int, stream: int, function: str, *rest: Any) -> None:
        scratch = "memory" if self.global_scratch_size else None
        if self.in_one:
            self.launch(x, y, z, stream, function, *rest[:4], scratch, "types", rest[4:])
        else:
            self.launch(x, y, z, stream, function, scratch, *rest)


class FakeKernel(triton.runtime.JITFunction):
    """Compiles to itself, and notes how it was launched."""

    function, packed_metadata = "function", "metadata"

    arg_names = ("X_ptr", "N", "TILE", "CAUSAL")

    def __init__(self) -> None:
        self.compiled: list[tuple[Any, ...]] = []
        self.checked: list[tuple[Any, ...]] = []
        self.unchecked: list[tuple[Any, ...]] = []
        self.direct: list[tuple[Any, ...]] = []
        self.run = FakeLauncher(self.direct.append)

    def warmup(self, *arguments: Any, grid: tuple[int, ...], **constants: Any) -> None:
        self.compiled.append((grid, arguments, constants))

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch_either(*arguments: Any, **constants: Any) -> "FakeKernel":
            (self.checked if constants else self.unchecked).append((grid, arguments, constants))
            return self

        return launch_either


class FakeGPU:
    """Number 1, where the current stream is 17."""

    def get_current_device(self) -> int:
        return 1

    def get_current_stream(self, device: int) -> int:
        return 16 + device


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGPU:
    """Triton's, while the test runs."""
    fake = FakeGPU()
    monkeypatch.setattr(triton.runtime.driver, "_active", fake)
    return fake


def launched_once(kernel: FakeKernel) -> launch.Launch:
    """With X, so that the next call is a second one."""
    one = launch.Launch(kernel, 3, (128,), {"CAUSAL": True, "TILE": 64})
    one(X)
    return one


@pytest.mark.parametrize("in_one", [False, True], ids=["triton 3.6", "triton 3.7"])
@pytest.mark.parametrize("scratch", [0, 8])
@pytest.mark.usefixtures("gpu")
def test_the_second_launch_goes_straight_to_the_compiled_kernel(in_one: bool, scratch: int) -> None:
    kernel = FakeKernel()
    kernel.run = FakeLauncher(kernel.direct.append, in_one, scratch)
    kernel.run(3, 1, 1, 17, "function", "metadata", None, None, None, Y, 128, 64, True)  # as Triton would
    as_triton = kernel.direct.pop()
    one = launch.Launch(kernel, 3, (128,), {"CAUSAL": True, "TILE": 64, "num_warps": 4})
    one(X)
    assert kernel.checked == [((3, 1, 1), (X, 128), {"CAUSAL": True, "TILE": 64, "num_warps": 4})]
    assert not kernel.direct
    one(Y)
    assert kernel.direct == [as_triton] and not kernel.unchecked


@pytest.mark.parametrize("knob", ["launch_enter_hook", "launch_exit_hook"])
@pytest.mark.parametrize("set_as", ["chain", "function"])
@pytest.mark.usefixtures("gpu")
def test_a_profilers_hook_sees_every_launch(knob: str, set_as: str) -> None:
    kernel = FakeKernel()
    one = launched_once(kernel)
    hook: Any = print
    if set_as == "chain":
        hook = triton.knobs.HookChain()
        hook.add(print)
    with triton.knobs.runtime.scope():
        setattr(triton.knobs.runtime, knob, hook)
        one(Y)
    assert kernel.unchecked == [((3, 1, 1), (Y, 128, 64, True), {})] and not kernel.direct
    one(X)
    assert len(kernel.direct) == 1


def test_a_launch_stays_on_its_device(gpu: FakeGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = FakeKernel()
    one = launched_once(kernel)
    monkeypatch.setattr(gpu, "get_current_device", lambda: 0)
    one(Y)
    assert kernel.unchecked == [((3, 1, 1), (Y, 128, 64, True), {})] and not kernel.direct


def test_a_launch_goes_to_the_current_stream(gpu: FakeGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = FakeKernel()
    one = launched_once(kernel)
    for stream in (17, 5, 17, 0):
        monkeypatch.setattr(gpu, "get_current_stream", lambda device, stream=stream: stream)
        one(Y)
    assert [launched[:4] for launched in kernel.direct] == [(3, 1, 1, stream) for stream in (17, 5, 17, 0)]


def test_a_kernel_that_says_nothing_of_what_it_compiled_is_asked_each_time() -> None:
    """As under a hook of Triton's that takes the call, and as the tuning study compiles without launching."""
    calls: list[tuple[int, ...]] = []

    class Silent(FakeKernel):
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *arguments, **constants: calls.append(grid)

    kernel = Silent()
    one = launched_once(kernel)
    one(Y)
    assert calls == [(3, 1, 1)] * 2 and one.is_new and not kernel.direct


@pytest.mark.usefixtures("gpu")
def test_what_is_compiled_side_by_side_is_what_the_first_launches_are() -> None:
    calls = [(launch.Launch(FakeKernel(), 3, (n,), {"CAUSAL": True, "TILE": 64}), (X, n)) for n in (16, 32)]
    for _ in range(2):
        launch.launch_in_turn(*calls)
    for one, _ in calls:
        assert one.kernel.compiled == one.kernel.checked and len(one.kernel.compiled) == len(one.kernel.direct) == 1


@pytest.mark.gpu
def test_a_backward_compiles_each_of_its_kernels_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", lambda **what: compiled.append(what["fn"].name))
    of_backward = (
        triton_plans.flash_bwd_delta_kernel,
        triton_plans.flash_bwd_dkdv_kernel,
        triton_plans.flash_bwd_dq_kernel,
    )
    for kernel in of_backward:  # what other tests compiled
        kernel.device_caches.clear()
    plans.clear()
    q, k, v, grad_out = (x.detach() for x in make_inputs(Shape((2,), 40, 40, 16), torch.float32))
    plan = plan_for(Request(True, 0.25, "bf16x6"), q, k, v, None)
    saved = q, k, v, *plan.forward(q, k, v, None)
    compiled.clear()
    plan.backward(*saved, grad_out, None)
    assert sorted(compiled) == sorted(kernel.__name__ for kernel in of_backward)


def test_calls_alike_share_their_plans() -> None:
    q, k, v, grad_out = (x.detach() for x in make_inputs(Shape((2,), 33, 33, 16), torch.float32))
    made = []
    for _ in range(2):
        run(q, k, v, grad_out)
        made.append([(plan, *plan.backwards.values()) for plan in plans.values()])
    assert made[0] == made[1] and [len(one) for one in made[0]] == [2]


def test_plans_of_shapes_that_come_once_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "MAX_PLANS", 8)
    plans: launch.PlanCache[int] = launch.PlanCache()
    for n in range(20):
        assert plans.keep(n, n + 1) == n + 1 == plans[n]
    assert len(plans) <= 8


def test_a_layout_holds_all_that_triton_compiles_for() -> None:
    layout = launch.layout_of
    x = torch.zeros(2, 8, 64)
    unaligned = torch.zeros(x.numel() + 1)[1:].view_as(x)
    tensors = [x] * 6
    same = layout(*tensors)
    assert same == layout(*[torch.zeros_like(x) for x in tensors]) and hash(same)
    for place in range(len(tensors)):
        for other in (unaligned, x.transpose(0, 1).contiguous().transpose(0, 1), x[:, :, :1].expand_as(x)):
            assert layout(*tensors[:place], other, *tensors[place + 1 :]) != same


@pytest.mark.parametrize("odd_first", [False, True])
def test_strides_that_no_step_takes_may_differ_between_calls_of_one_plan(odd_first: bool) -> None:
    """A single head is contiguous whatever the strides of its batch and heads."""
    plain = tuple(x.detach() for x in make_inputs(Shape((1, 1), 40, 40, 16), torch.float32))
    odd = tuple(x.as_strided(x.shape, (7, 5, 16, 1)) for x in plain)
    results = []
    plans.clear()
    for inputs in (odd, plain) if odd_first else (plain, odd):
        results.append(run(*inputs))
    assert len(plans) == 1
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_a_call_takes_few_python_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short call takes as long as its Python: about 1 us a function on a slow host, beside some 200 us in all."""
    monkeypatch.setattr(planning, "require_launchable", lambda *_: None)
    monkeypatch.setattr(launch.Launch, "__call__", lambda *_: None)
    q, k, v = (torch.zeros(1, 1, 64, 32, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    grad_out = torch.zeros_like(q)

    def step() -> None:
        torch.autograd.grad(flash_attention(q, k, v, True, impl="triton"), (q, k, v), grad_out)

    step()  # makes the plans
    called: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and PACKAGE in Path(code.co_filename).parents and not code.co_name.startswith("<"):
            called.append(code.co_name)

    previous = sys.getprofile()
    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(previous)
    assert "flash_attention" in called and "backward" in called
    assert len(called) <= 20, called


def test_a_layout_holds_what_differs_between_calls() -> None:
    x = torch.zeros(2, 8, 64)
    same = launch.kinds_of(x, x, x)
    for other in (x.half(), x[:1], x.to("meta")):
        assert len({same, *(launch.kinds_of(*three) for three in ((other, x, x), (x, other, x), (x, x, other)))}) == 4


@pytest.mark.parametrize("at_once", [False, True], ids=["two passes", "at once"])
@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
def test_every_launch_names_the_rest_of_its_kernels_arguments(
    dropout_p: float, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Triton's launch a name that is missing is an error; in one that goes past it, it would be here."""
    launched: list[str] = []

    class Checked(launch.Launch):
        def __call__(self, *tensors: Any) -> None:
            first = len(tensors) + len(self.scalars)
            assert self.constants.keys() >= set(self.kernel.arg_names[first:])
            assert not self.constants.keys() & set(self.kernel.arg_names[:first])
            launched.append(self.kernel.__name__)
            super().__call__(*tensors)

    monkeypatch.setattr(triton_plans, "Launch", Checked)
    monkeypatch.setattr(triton_plans, "tiles_at_once", lambda q, k: at_once and tiles.AT_ONCE_TILES)
    q, k, v, grad_out = make_inputs(Shape((2,), 33, 33, 16), torch.float32)
    seed = torch.zeros(1, dtype=torch.int64, device=q.device)
    dropout = Dropout(dropout_p, seed) if dropout_p else None
    with torch.no_grad():
        for _ in range(2):
            run(q, k, v, grad_out, dropout=dropout)
    assert len(launched) == 2 * (2 if at_once else 4)


CHANGES = {
    "is_causal": {"is_causal": False},
    "scale": {"scale": 0.5},
    "layout": {"q": 1},
    "dropout": {"p": 0.5},
}


@pytest.mark.parametrize("changed", CHANGES)
def test_a_call_that_differs_gets_another_plan(changed: str) -> None:
    """Each against the same call with nothing remembered."""
    q, k, v, grad_out = make_inputs(Shape((1,), 40, 40, 16), torch.float32)
    seed = torch.ones(1, dtype=torch.int64, device=q.device)

    def call(is_causal: bool = True, scale: float = 0.25, q: torch.Tensor = q, p: float = 0.25) -> tuple[Any, ...]:
        with torch.no_grad():
            return run(q, k, v, grad_out, is_causal, scale, Dropout(p, seed))

    change: dict[str, Any] = CHANGES[changed]
    if changed == "layout":
        change = {"q": q.detach().mT.contiguous().mT}
    call()
    after_another = call(**change)
    plans.clear()
    alone = call(**change)
    torch.testing.assert_close(after_another, alone, rtol=0, atol=0)


OTHERS = {
    "dtype": (Shape((1,), 40, 40, 16), torch.float16),
    "queries": (Shape((1,), 24, 40, 16), torch.float32),
    "keys": (Shape((1,), 40, 24, 16), torch.float32),
}


@pytest.mark.parametrize("changed", OTHERS)
def test_a_backward_of_another_dtype_or_length_gets_another_plan(changed: str) -> None:
    """What is saved of both is contiguous and aligned."""
    shape, dtype = OTHERS[changed]
    other = [x.detach() for x in make_inputs(shape, dtype)]
    run(*(x.detach() for x in make_inputs(Shape((1,), 40, 40, 16), torch.float32)))
    after_another = run(*other)
    plans.clear()
    torch.testing.assert_close(after_another, run(*other), rtol=0, atol=0)


def test_a_plan_holds_no_tensor_of_the_call_that_made_it() -> None:
    q, k, v, grad_out = make_inputs(Shape((2,), 33, 33, 16), torch.float32)
    seed = torch.ones(1, dtype=torch.int64, device=q.device)
    with torch.no_grad():
        results = run(q, k, v, grad_out, dropout=Dropout(0.5, seed))
    alive = [weakref.ref(x) for x in (q, k, v, grad_out, seed, *results)]
    assert [len(plan.backwards) for plan in plans.values()] == [1]
    del q, k, v, grad_out, seed, results
    gc.collect()
    assert [one() for one in alive] == [None] * len(alive)


def contiguous(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def unaligned(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x.new_zeros(1), x.reshape(-1)])[1:].view_as(x)


def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT


@pytest.mark.parametrize("unpack", [contiguous, unaligned, transposed])
def test_what_is_saved_may_come_back_laid_out_otherwise(unpack: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """As from `torch.autograd.graph.save_on_cpu`: the backward goes by what it gets, not by what the forward saw."""
    q, k, v, grad_out = make_inputs(Shape((2, 2), 33, 33, 16), torch.float32)
    strided = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in (q, k, v)]

    def gradients() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(FlashAttentionTriton.apply(*strided, True), strided, grad_out)

    expected = gradients()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
        torch.testing.assert_close(gradients(), expected, rtol=0, atol=0)


def test_rows_may_be_any_number_of_bytes_apart() -> None:
    """Of a cache whose other dimensions lie between: offsets of 32 bits would wrap around. Few of its pages exist."""
    n, stride = 40, 2**26
    q, k, v, grad_out = make_inputs(Shape((1,), n, n, 16), torch.float16)
    pages = torch.UntypedStorage(2 * n * stride, device=q.device)  # not `torch.empty`, which these tests fill
    apart = k.new_empty(0).set_(pages, 0, (1, n, 16), (n * stride, stride, 1))
    expected = torch.autograd.grad(FlashAttentionTriton.apply(q, k, v, True), (q, k, v), grad_out)
    far = apart.copy_(k).detach().requires_grad_()
    got = torch.autograd.grad(FlashAttentionTriton.apply(q, far, v, True), (q, far, v), grad_out)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize(("wrong", "said"), [("dtype", "have dtypes"), ("device", "are on"), ("length", "have shapes")])
def test_a_call_like_none_before_is_checked(wrong: str, said: str) -> None:
    q, k, v, _ = (x.detach() for x in make_inputs(Shape((2, 2), 33, 33, 16), torch.float32))
    FlashAttentionTriton.apply(q, k, v, True)
    other = {"dtype": v.half(), "device": v.to("meta"), "length": v[:, :, :32]}[wrong]
    with pytest.raises(ValueError, match=rf"^q, k, v {said}.*; allowed"):
        FlashAttentionTriton.apply(q, k, other, True)
