"""The workload of the head and its loss: every implementation is right, and its check refuses what is not."""

import functools

import pytest
import torch
import torch.nn.functional as F

from perf.workloads import build
from perf.workloads import linear_cross_entropy as workload
from perf.workloads.workload import Unavailable, WrongResult

TINY = {"tokens": 40, "d_model": 16, "vocab_size": 259}
HAS_TORCHS = hasattr(F, "linear_cross_entropy")


def test_the_oracle_is_plain_cross_entropy_and_in_float32_eager(monkeypatch):
    monkeypatch.setattr(workload, "ROWS", 12)  # three chunks and a part of one
    hidden, weight, targets = workload.inputs(*TINY.values(), "bfloat16", "cpu")
    for dtype, operands, rtol in (
        (torch.float64, [x.detach().double().requires_grad_() for x in (hidden, weight)], 1e-12),
        (torch.float32, [hidden, weight], 2**-7),
    ):
        logits = F.linear(*operands)
        loss = F.cross_entropy(logits if dtype == torch.float64 else logits.float(), targets)
        plain = [loss.detach(), *torch.autograd.grad(loss, operands)]
        for ours, true in zip(workload.oracle(hidden, weight, targets, dtype), plain, strict=True):
            assert float((ours - true).norm() / true.norm()) < rtol


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mode", workload.MODES)
@pytest.mark.parametrize("impl", ["fused", "eager", "torch"])
def test_what_runs_on_a_cpu_is_right(impl, mode, dtype):
    if impl == "torch" and not HAS_TORCHS:
        pytest.skip("this torch has no fused loss of its own")
    work = build("linear_cross_entropy", TINY | {"dtype": dtype, "mode": mode, "impl": impl}, "cpu")
    work.run()
    assert work.check() < 1e-2
    assert work.results().keys() == {"loss", "grad_hidden", "grad_weight"} if mode != "forward" else {"loss"}


def with_slope(x, slope):
    """Return x, and give it `slope` times its gradient."""
    return x.detach() + slope * (x - x.detach())


FAULTS = {
    "loss": lambda eager, hidden, weight, targets: eager(hidden, weight, targets) * 1.01,
    "nan": lambda eager, hidden, weight, targets: eager(hidden, weight, targets) * torch.nan,
    "hidden": lambda eager, hidden, weight, targets: eager(with_slope(hidden, 1.01), weight, targets),
    "weight": lambda eager, hidden, weight, targets: eager(hidden, with_slope(weight, 0.99), targets),
    "row": lambda eager, hidden, weight, targets: eager(torch.cat((hidden[:7].detach(), hidden[7:])), weight, targets),
    "token": lambda eager, hidden, weight, targets: eager(hidden[1:], weight, targets[1:]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_result_has_no_time(monkeypatch, fault):
    wrong = functools.partial(FAULTS[fault], workload._eager)
    monkeypatch.setattr(workload, "_eager", lambda *operands: wrong(*operands))
    work = build(
        "linear_cross_entropy", TINY | {"dtype": "bfloat16", "mode": "forward_backward", "impl": "eager"}, "cpu"
    )
    with pytest.raises(WrongResult):
        work.check()


def test_what_is_not_there_is_said_in_a_line(monkeypatch):
    case = TINY | {"dtype": "float32", "mode": "forward", "impl": "torch"}
    monkeypatch.delattr(F, "linear_cross_entropy", raising=False)
    with pytest.raises(Unavailable, match="this torch has no"):
        build("linear_cross_entropy", case, "cpu")
    for wrong in ({"impl": "liger"}, {"mode": "backward"}):
        with pytest.raises(ValueError, match="was given; allowed: "):
            build("linear_cross_entropy", case | wrong, "cpu")
