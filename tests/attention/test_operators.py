"""Attention as opaque operators: in graphs of torch.compile, under selective checkpoints, with fake tensors."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

from cs336_systems.attention.api import flash_attention, flash_attention_triton
from cs336_systems.attention.launch import Launch
from cs336_systems.attention.operators import BACKWARD, FORWARD
from tests.attention.gate import DEVICE, Shape, make_inputs

try:
    from torch.testing._internal.two_tensor import TwoTensor
except ImportError:
    TwoTensor = None

pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own tracing

attend = functools.partial(flash_attention, impl="triton")


@pytest.fixture(autouse=True)
def new_graphs() -> Iterator[None]:
    """Compile anew in each test: torch remembers which lengths have changed."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


LAYOUTS = (
    *(Shape((1, 2), 17, 33, 16, layout) for layout in ("contiguous", "heads_inside", "sliced", "expanded")),
    Shape((2, 1, 2), 17, 33, 16, "transposed"),
    Shape((1, 2), 17, 9, 16, "heads_inside", 2),
    Shape((), 1, 1, 16),
    Shape((2, 2), 0, 7, 16, "heads_inside"),
    Shape((1, 0), 5, 7, 16, "transposed"),
)


@pytest.mark.parametrize("shape", LAYOUTS, ids=str)
def test_they_return_the_shapes_and_strides_that_graphs_expect(shape: Shape) -> None:
    q, k, v, grad_out = (x.detach() for x in make_inputs(shape, torch.float32))
    seed, options = torch.tensor([3], device=DEVICE), (True, 0.1, "ieee", 0.5, False)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(FORWARD, (q, k, v, seed, *options), test_utils=checks)
    out, lse = FORWARD(q, k, v, seed, *options)
    torch.library.opcheck(BACKWARD, (q, k, v, out, lse, grad_out, seed, *options), test_utils=checks)


def test_torch_finds_nothing_wrong_with_the_operator() -> None:
    q, k, v, _ = (x.detach() for x in make_inputs(Shape((1,), 5, 3, 16), torch.float32))
    torch.library.opcheck(FORWARD, (q, k, v, None, True, None, None, 0.0, False))


class Graphs:
    """Backend of torch.compile that runs graphs as they are, and keeps which of our operators each calls."""

    def __init__(self) -> None:
        self.operators: list[list[str]] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Any:
        called = [node.target for part in graph.modules() for node in part.graph.nodes]
        self.operators.append([target for target in called if target in (FORWARD, BACKWARD)])
        return graph


def run(function: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, grad_out: Tensor) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    out = function(q, k, v)
    return out, *torch.autograd.grad(out, (q, k, v), grad_out)


@pytest.mark.parametrize(
    "options",
    [
        {"is_causal": True, "softmax_scale": 0.1, "fp32_precision": "bf16x3", "deterministic": True},
        {"dropout_p": 0.5},
    ],
    ids="-".join,
)
def test_a_graph_of_any_lengths_holds_one_operator_and_computes_what_eager_does(options: dict[str, Any]) -> None:
    graphs = Graphs()
    function = functools.partial(attend, **options)
    compiled = torch.compile(function, backend=graphs, fullgraph=True)
    for length in (9, 5, 33):
        inputs = make_inputs(Shape((1, 2), length, 17, 16, "heads_inside", 2), torch.float32)
        torch.testing.assert_close(run(compiled, *inputs), run(function, *inputs), rtol=0, atol=0)
    assert graphs.operators == [[FORWARD, BACKWARD]] * 2  # of the first length, and of any


def test_a_graph_keeps_layout_and_autocast() -> None:
    compiled = torch.compile(flash_attention_triton, backend="aot_eager", fullgraph=True)
    inputs = make_inputs(Shape((2, 17), 2, 2, 16), torch.float32)
    with torch.autocast(DEVICE, torch.float16):
        got, expected = run(compiled, *inputs), run(flash_attention_triton, *inputs)
    assert got[0].dtype == torch.float16
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    assert [x.stride() for x in got] == [x.stride() for x in expected]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_graph_without_gradients(mode: Any) -> None:
    q, k, v, _ = make_inputs(Shape((2,), 17, 17, 16), torch.float32)
    with mode():
        got = torch.compile(attend, backend="aot_eager", fullgraph=True)(q, k, v, True)
        torch.testing.assert_close(got, attend(q, k, v, True), rtol=0, atol=0)


@pytest.mark.slow
def test_inductor_computes_what_eager_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the compiler's own buffers are none of ours
    inputs = make_inputs(Shape((2, 2), 33, 65, 16, "heads_inside"), torch.float32)

    def block(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q * 2, k, v + 1, True) * 3

    with torch._inductor.config.patch({"cpp.vec_isa_ok": False}):  # it would compile four programs to find out
        got = run(torch.compile(block, fullgraph=True), *inputs)
    torch.testing.assert_close(got, run(block, *inputs))


@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "compiled"])
def test_a_selective_checkpoint_can_keep_out_and_lse(compiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[str] = []
    launch = Launch.__call__
    monkeypatch.setattr(
        Launch, "__call__", lambda self, *tensors: launched.append(self.kernel.__name__) or launch(self, *tensors)
    )

    def block(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q.sin(), k, v, True, dropout_p=0.5) * 2

    def checkpointed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        contexts = functools.partial(create_selective_checkpoint_contexts, [FORWARD])
        return checkpoint(block, q, k, v, use_reentrant=False, context_fn=contexts)

    inputs = make_inputs(Shape((2,), 17, 17, 16), torch.float32)
    expected = run(block, *inputs)
    launched.clear()
    function = torch.compile(checkpointed, backend="aot_eager", fullgraph=True) if compiles else checkpointed
    got = run(function, *inputs)
    assert launched.count("flash_fwd_kernel") == 1
    if compiles and DEVICE == "cuda":  # torch draws other numbers there: only that of one mask out is linear in v
        (out, _, _, dv), (_, _, v, grad_out) = got, inputs
        torch.testing.assert_close((dv * v).sum(), (out * grad_out).sum(), rtol=1e-4, atol=1e-3)
    else:
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_fake_tensors_pass_through_forward_and_backward() -> None:
    with FakeTensorMode():
        q = torch.empty(2, 6, 1 << 20, 64, dtype=torch.bfloat16, requires_grad=True)
        k = torch.empty(2, 3, 1 << 20, 64, dtype=torch.bfloat16, requires_grad=True)
        out = attend(q, k, k, True)
        gradients = torch.autograd.grad(out, (q, k), out)
    assert [x.shape for x in (out, *gradients)] == [q.shape, q.shape, k.shape]


@pytest.mark.skipif(not TwoTensor, reason="torch's own example of a tensor without storage is not here")
def test_a_tensor_without_storage_is_taken_by_the_operator() -> None:
    q, k, v, grad_out = (x.detach() for x in make_inputs(Shape((2,), 33, 33, 16), torch.float32))
    wrapped = [TwoTensor(x, x.clone()).requires_grad_() for x in (q, k, v)]
    out = attend(*wrapped, True)
    gradients = torch.autograd.grad(out, wrapped, TwoTensor(grad_out, grad_out.clone()))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    expected = attend(*leaves, True)
    torch.testing.assert_close(
        [x.a for x in (out, *gradients)], [expected, *torch.autograd.grad(expected, leaves, grad_out)]
    )


def test_the_backward_of_an_eager_forward_can_be_recorded_alone() -> None:
    *leaves, grad_out = make_inputs(Shape((2,), 33, 33, 16), torch.float32)
    expected = torch.autograd.grad(attend(*leaves, True), leaves, grad_out)
    out = attend(*leaves, True)
    seen = []

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Noting():
        torch.testing.assert_close(torch.autograd.grad(out, leaves, grad_out), expected, rtol=0, atol=0)
    assert BACKWARD in seen


def test_flops_are_counted_as_torch_counts_its_own() -> None:
    q, k, v, grad_out = make_inputs(Shape((2, 4), 33, 67, 16), torch.float32)
    counts = []
    for impl in ("triton", "reference"):
        with FlopCounterMode(display=False) as counter:
            torch.autograd.grad(flash_attention(q, k, v, impl=impl), (q, k, v), grad_out)
        counts.append(counter.get_total_flops())
    ours, eager = counts
    assert ours == eager * 14 // 12, "the backward computes the scores once more"


@pytest.mark.parametrize(("given", "text"), [({"num_keys": 0}, "at least one key"), ({"p": 2.0}, "dropout_p is 2.0")])
def test_a_refused_call_costs_no_later_one(given: dict[str, Any], text: str) -> None:
    """torch's compiler leaves code alone that has raised, and would trace the parts of ours one by one."""
    inputs = make_inputs(Shape((2,), 17, 17, 16), torch.float32)
    q, k, v, _ = (x.detach() for x in inputs)
    compiled = torch.compile(attend, backend="aot_eager")
    keys = given.get("num_keys", 17)
    with pytest.raises((ValueError, RuntimeError), match=text):
        compiled(q, k[:, :keys], v[:, :keys], dropout_p=given.get("p", 0.0))
    torch.testing.assert_close(run(compiled, *inputs), run(attend, *inputs), rtol=0, atol=0)
