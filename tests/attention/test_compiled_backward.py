"""The recompute backward, plain and through torch.compile."""

import shutil

import pytest
import torch
import torch._inductor.config

from cs336_systems.attention.flash_pytorch import FlashAttentionCompiledBackward, recompute_backward
from tests.attention.gate import DEVICE, Shape, assert_within_gate, exact_and_eager, make_inputs, run_flash

SHAPE = Shape((2,), 65, 33, 16)


@pytest.mark.parametrize("is_causal", [False, True])
def test_recompute_backward_matches_the_oracle(is_causal: bool) -> None:
    q, k, v, grad_out = make_inputs(SHAPE, torch.float32)
    exact, eager = exact_and_eager(q, k, v, grad_out, is_causal)
    out, lse = exact["out"].float(), exact["lse"].float()
    with torch.no_grad():
        grads = recompute_backward(q, k, v, out, lse, grad_out, is_causal, q.shape[-1] ** -0.5)
    assert_within_gate(dict(zip(("dq", "dk", "dv"), grads, strict=True)), exact, eager, q.dtype)


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")  # off on purpose: the gate is float32
@pytest.mark.skipif(
    DEVICE == "cpu" and (shutil.which("g++") is None or " " in torch.__file__),
    reason="on the CPU torch.compile needs g++, and torch in a folder whose name a linker's flags can hold: no space",
)
def test_compiled_backward_matches_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the compiler's own buffers are none of ours
    q, k, v, grad_out = make_inputs(SHAPE, torch.float32)
    exact, eager = exact_and_eager(q, k, v, grad_out, True)
    with torch._inductor.config.patch({"cpp.vec_isa_ok": False}):  # it would compile four programs to find out
        got = run_flash(FlashAttentionCompiledBackward, q, k, v, grad_out, True)
    assert_within_gate(got, exact, eager, q.dtype)
