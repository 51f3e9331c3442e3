"""Each workload of attention against plain float64 arithmetic, on the CPU and at tiny shapes."""

import math
import sys
from types import ModuleType

import pytest
import torch
import triton

from perf.workloads import (
    attention,
    attention_impls,
    attention_leaderboard,
    attention_oracle,
    attention_problem,
    build,
    require_triton,
)
from perf.workloads.attention_check import TOLERANCES
from perf.workloads.attention_problem import AttentionProblem
from perf.workloads.workload import Unavailable, WrongResult

TINY = {"seq_len": 48, "d": 16, "dtype": "float32"}
ONE_HEAD = TINY
BATCH = TINY | {"batch": 2, "is_causal": False}
HEADS = TINY | {"tokens": 96, "d_model": 32}
GROUPED = TINY | {"tokens": 96, "d_model": 64, "kv_heads": 2}
LEADERBOARD = TINY | {"num_heads": 2}
COMPILED = {"reference_compiled", "pytorch_compiled_backward", "flex"}
ON_A_GPU = {"sdpa_cudnn", "sdpa_efficient"}
HERE = [impl for impl in attention_impls.IMPLS if not impl.startswith("triton") and impl not in COMPILED | ON_A_GPU]
"""Every other implementation: a new one is held to the oracle unless it is named above."""

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is off where there is a GPU")


@pytest.fixture(autouse=True)
def compiler_settings_of_other_tests():
    """Building a compiled implementation changes them for the process, which otherwise only ever measures."""
    import torch._dynamo.config as dynamo
    import torch._functorch.config as functorch

    before = dynamo.recompile_limit, dynamo.accumulated_recompile_limit, functorch.donated_buffer
    yield
    dynamo.recompile_limit, dynamo.accumulated_recompile_limit, functorch.donated_buffer = before


def plain(problem):
    """The exact answer by the formula, all of it at once."""
    q, k, v, grad_out = (tensor.detach().double() for tensor in attention_problem.inputs(problem, "cpu"))
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
    if problem.is_grouped:
        k, v = (tensor.repeat_interleave(problem.leading[-1] // problem.kv_heads, -3) for tensor in (k, v))
    scores = q @ k.mT / math.sqrt(problem.d)
    if problem.is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), float("-inf"))
    out = scores.softmax(-1) @ v
    return {"out": out.detach()} | dict(
        zip(("dq", "dk", "dv"), torch.autograd.grad(out, leaves, grad_out), strict=True)
    )


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(("leading", "kv_heads"), [((1,), None), ((3,), None), ((2, 3), None), ((2, 6), 2)])
@pytest.mark.parametrize("grad_out", ["random", "ones"])
def test_the_blocked_oracle_is_plain_attention_in_float64(monkeypatch, leading, kv_heads, is_causal, grad_out):
    problem = AttentionProblem(leading, 50, 16, "float32", is_causal, grad_out, kv_heads=kv_heads)
    monkeypatch.setattr(attention_oracle, "BLOCK", 50 * 12)  # 12 queries at a time, and 2 in the last block
    attention_oracle.oracle.cache_clear()
    exact, expected = attention_oracle.oracle(problem, "cpu").answer, plain(problem)
    attention_oracle.oracle.cache_clear()
    for name in expected:
        assert exact[name].dtype == torch.float64
        torch.testing.assert_close(exact[name], expected[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", attention.MODES)
@pytest.mark.parametrize(
    "shape",
    [ONE_HEAD, BATCH, HEADS | {"is_causal": True}, HEADS | {"is_causal": False}, GROUPED | {"is_causal": True}],
)
@pytest.mark.parametrize("impl", HERE)
def test_what_runs_on_a_cpu_is_right(impl, shape, mode):
    work = build("attention", shape | {"mode": mode, "impl": impl}, "cpu")
    work.run()
    assert 0 < work.check() <= TOLERANCES["float32"].row


@without_gpu
@pytest.mark.parametrize("mode", ["forward", "backward"])
@pytest.mark.parametrize("shape", [ONE_HEAD, HEADS | {"is_causal": False}, GROUPED | {"is_causal": True}])
def test_triton_is_right(shape, mode):
    assert 0 < build("attention", shape | {"mode": mode, "impl": "triton"}, "cpu").check() <= TOLERANCES["float32"].row


@without_gpu
@pytest.mark.parametrize(
    ("impl", "mode"),
    [
        ("reference_compiled", "forward_backward"),
        ("pytorch_compiled_backward", "backward"),
        ("pytorch_compiled_backward", "forward_backward"),
        ("triton_forward_compiled_backward", "backward"),
    ],
)
def test_what_compiles_is_right(monkeypatch, impl, mode):
    """Compile without torch's code generator, which takes a minute and is torch's to test."""
    compile_, backends = torch.compile, []

    def without_code(function, **options):
        backends.append(options)
        return compile_(function, backend="aot_eager", **options)

    monkeypatch.setattr(torch, "compile", without_code)
    clear_compiled()
    try:
        work = build("attention", ONE_HEAD | {"mode": mode, "impl": impl}, "cpu")
        work.run()
        work.run()
        assert 0 < work.check() <= TOLERANCES["float32"].row
        assert backends == [{"dynamic": False}]
    finally:
        clear_compiled()


def clear_compiled():
    from cs336_systems.attention.flash_pytorch import compiled_backward

    compiled_backward.cache_clear()
    torch.compiler.reset()


@without_gpu
def test_more_shapes_compile_than_torch_would_by_default():
    """It stops after 8 and goes on with eager code, which would be measured under the name of the compiled one."""
    graphs = []

    def double(x):
        return x * 2

    def note(graph, example):
        graphs.append(graph)
        return graph.forward

    attention_impls.compiled(double)
    function = torch.compile(double, backend=note, dynamic=False)
    for size in range(2, 14):
        function(torch.ones(size))
    assert len(graphs) == 12


@without_gpu
@pytest.mark.parametrize("gone", [None, ModuleType("torch._dynamo.config")], ids=["module", "settings"])
def test_without_torchs_settings_each_case_begins_anew_with_one_warning(gone, monkeypatch):
    """Otherwise the ninth shape of a process would be timed eagerly under the name of the compiled implementation."""
    graphs = []

    def double(x):
        return x * 2

    def note(graph, example):
        graphs.append(graph)
        return graph.forward

    torch.compile(double, backend=note)  # imports the compiler as it is
    function = torch.compile(double, backend=note, dynamic=False)
    for sizes in (range(2, 8), range(8, 14)):
        with monkeypatch.context() as patched, pytest.warns(UserWarning, match="recompile_limit") as caught:
            patched.setitem(sys.modules, "torch._dynamo.config", gone)
            attention_impls.compiled(double)
        assert sum("recompile_limit" in str(one.message) for one in caught) == 1  # torch's import has its own
        for size in sizes:
            function(torch.ones(size))
    assert len(graphs) == 12


@pytest.mark.parametrize("impl", ["pytorch", "reference", "sdpa_math", "sdpa_flash"])
def test_the_leaderboard_accumulates_and_is_checked_without_what_it_accumulated(impl):
    work = build("attention_leaderboard", LEADERBOARD | {"impl": impl}, "cpu")
    work.run()
    work.run()
    assert 0 < work.check() <= TOLERANCES["float32"].row


FOREIGN = """
import torch.nn.functional as F

number = 1

def attend(q, k, v, is_causal):
    assert q.ndim == 4
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
"""


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """The name of a module of a user's own."""
    (tmp_path / "throw_away_attention.py").write_text(FOREIGN)
    (tmp_path / "throw_away_broken.py").write_text("raise RuntimeError('first line\\nsecond line')")
    monkeypatch.syspath_prepend(tmp_path)
    return "throw_away_attention"


@pytest.mark.parametrize("shape", [ONE_HEAD, BATCH, HEADS | {"is_causal": False}])
def test_a_function_of_a_user_s_own_is_an_implementation_and_sees_heads(foreign, shape):
    work = build("attention", shape | {"mode": "forward_backward", "impl": f"{foreign}:attend"}, "cpu")
    assert 0 < work.check() <= TOLERANCES["float32"].row
    assert build("attention_leaderboard", LEADERBOARD | {"impl": f"{foreign}:attend"}, "cpu").check() > 0


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("throw_away_attention:no_such", "has no attribute 'no_such'"),
        ("throw_away_attention:number", "int is not a function"),
        ("throw_away_broken:attend", r"\(first line\)$"),
        ("no_such_module:attend", "No module named 'no_such_module'"),
        (":attend", "Empty module name"),
    ],
)
def test_what_is_no_function_of_a_user_s_own_is_one_line(foreign, name, why):
    with pytest.raises(ValueError, match=why) as raised:
        attention_impls.check_impl(name)
    assert str(raised.value).startswith(f"{name!r} was given; allowed: module:function")
    assert len(str(raised.value).splitlines()) == 1


def unscaled(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def one_head_is_zero(q, k, v):
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out * torch.tensor([1.0] * (out.shape[-3] - 1) + [0.0]).view(-1, 1, 1)


@pytest.mark.parametrize("wrong", [unscaled, one_head_is_zero])
@pytest.mark.parametrize("mode", attention.MODES)
def test_a_wrong_implementation_is_caught(monkeypatch, wrong, mode):
    monkeypatch.setitem(attention_impls.IMPLS, "wrong", lambda problem, device: wrong)
    work = attention.build(HEADS | {"is_causal": True, "mode": mode, "impl": "wrong"}, "cpu")
    work.run()
    with pytest.raises(WrongResult, match="differs from float64"):
        work.check()
    with pytest.raises(WrongResult, match="differs from float64"):
        attention_leaderboard.build(LEADERBOARD | {"impl": "wrong"}, "cpu").check()


@pytest.mark.parametrize("is_allowed", [False, True])
def test_tf32s_ten_bits_are_enough_where_they_are_allowed(monkeypatch, is_allowed):
    reference = attention_impls.IMPLS["reference"]
    monkeypatch.setitem(
        attention_impls.IMPLS,
        "ten_bits",
        lambda problem, device: lambda *x: reference(problem, device)(*(one.half().float() for one in x)),
    )
    monkeypatch.setattr(attention, "TF32", ("ten_bits",) if is_allowed else ())
    work = attention.build(HEADS | {"is_causal": True, "mode": "forward_backward", "impl": "ten_bits"}, "cpu")
    if is_allowed:
        assert 1e-4 < work.check() < 1e-2
    else:
        with pytest.raises(WrongResult):
            work.check()


def test_the_wrong_mask_is_caught(monkeypatch):
    full = AttentionProblem((1,), 48, 16, "float32", is_causal=False)
    impls = attention_impls.IMPLS
    monkeypatch.setitem(impls, "wrong", lambda problem, device: impls["reference"](full, device))
    with pytest.raises(WrongResult, match="out differs"):
        attention.build(ONE_HEAD | {"mode": "forward", "impl": "wrong"}, "cpu").check()


def test_a_result_that_is_not_a_number_is_caught(monkeypatch):
    monkeypatch.setitem(attention_impls.IMPLS, "wrong", lambda problem, device: lambda q, k, v: q + float("nan"))
    with pytest.raises(WrongResult, match=r"out .*nan"):
        attention.build(ONE_HEAD | {"mode": "forward", "impl": "wrong"}, "cpu").check()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_backend_that_refuses_is_unavailable_with_the_reason():
    work = build("attention", ONE_HEAD | {"mode": "forward", "impl": "sdpa_cudnn"}, "cpu")
    with pytest.raises(Unavailable, match=r"^sdpa_cudnn: No (available kernel|viable backend)"):
        work.run()


def test_why_a_backend_refused_is_what_torch_warned_of():
    import warnings

    def refuse():
        warnings.warn("Flash attention kernel not used because: (Triggered internally at a.cpp:1.)", stacklevel=1)
        warnings.warn("Expected half precision. Got float (Triggered internally at a.cpp:2.)", stacklevel=1)
        warnings.warn("CuDNN attention has been runtime disabled. (Triggered internally at a.cpp:3.)", stacklevel=1)
        raise RuntimeError("No available kernel. Aborting execution.")

    first = RuntimeError("No available kernel. Aborting execution.")
    reason = f"{first} Expected half precision. Got float"
    assert attention_impls._refusal(first, refuse) == reason
    assert attention_impls._refusal(RuntimeError("out of luck"), lambda: None) == ""


def test_floors_on_a_worked_example():
    """4 x 8 numbers a tensor and head; 16 pairs of a query and a key, of which a causal head sees 1 + 2 + 3 + 4."""
    full = AttentionProblem((2, 3), 4, 8, "bfloat16", is_causal=False)
    causal = AttentionProblem((2, 3), 4, 8, "bfloat16", is_causal=True)
    forward = attention_problem.floor(full, "forward")
    assert forward.flops == 6 * (2 * 2 * 8 * 16)
    assert (forward.bytes_read, forward.bytes_written) == (3 * 6 * 32 * 2, 6 * 32 * 2)
    assert forward.matmul_dtype == "bfloat16"
    backward = attention_problem.floor(causal, "backward")
    assert backward.flops == 6 * (5 * 2 * 8 * 10)
    assert (backward.bytes_read, backward.bytes_written) == (4 * 6 * 32 * 2, 3 * 6 * 32 * 2)
    assert attention_problem.floor(causal, "forward_backward").flops == 6 * (7 * 2 * 8 * 10)
    grouped = AttentionProblem((2, 3), 4, 8, "bfloat16", is_causal=True, kv_heads=1)  # k and v are a third
    floor = attention_problem.floor(grouped, "backward")
    assert floor.flops == backward.flops
    assert (floor.bytes_read, floor.bytes_written) == ((2 * 6 + 2 * 2) * 32 * 2, (6 + 2 * 2) * 32 * 2)
    board = build("attention_leaderboard", LEADERBOARD | {"impl": "pytorch"}, "cpu").floor
    assert board.flops == 2 * (7 * 2 * 16 * 48 * 49 / 2)
    assert (board.bytes_read, board.bytes_written) == (2 * 3 * 2 * 48 * 16 * 4, 3 * 2 * 48 * 16 * 4)


def test_axes_become_a_problem():
    grid = {"tokens": 32768, "d_model": 2048, "seq_len": 512, "d": 64, "is_causal": False, "dtype": "bfloat16"}
    assert attention.problem_of(grid) == AttentionProblem((64, 32), 512, 64, "bfloat16", is_causal=False)
    assert attention.problem_of(ONE_HEAD) == AttentionProblem((1,), 48, 16, "float32", is_causal=True)
    assert attention.problem_of(BATCH).shape == (2, 48, 16)
    grouped = attention.problem_of(GROUPED | {"is_causal": True})
    assert (grouped.shape, grouped.kv_shape) == ((2, 4, 48, 16), (2, 2, 48, 16))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"impl": "magic"}, "'magic' was given; allowed: flash_attention, triton, "),
        ({"mode": "sideways"}, "mode='sideways' was given; allowed: forward, "),
        ({"dtype": "int8"}, "dtype='int8' was given; allowed: float32, "),
        ({"tokens": 100, "d_model": 32, "is_causal": True}, "tokens=100 was given; allowed: multiples of seq_len=48"),
        ({"tokens": 96, "d_model": 40, "is_causal": True}, "d_model=40 was given; allowed: multiples of d=16"),
        (GROUPED | {"kv_heads": 3, "is_causal": True}, "kv_heads=3 was given; allowed: divisors of the 4 heads"),
        ({"batch": 0}, "a dimension of 0 was given; allowed: 1 and more"),
    ],
)
def test_unknown_values_are_refused_with_those_that_are_known(change, message):
    with pytest.raises(ValueError, match=message):
        build("attention", ONE_HEAD | {"mode": "forward", "impl": "sdpa"} | change, "cpu")


@pytest.mark.parametrize("impl", ["triton", "triton_tf32", "triton_compiled", "triton_forward_compiled_backward"])
def test_compiled_kernels_are_no_error_of_a_cpu(impl, monkeypatch):
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    with pytest.raises(Unavailable, match=f"^{impl} needs a CUDA GPU"):
        build("attention", BATCH | {"mode": "forward", "impl": impl}, "cpu")


def test_where_there_is_no_triton_the_measured_module_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    require_triton("triton", "cpu")
