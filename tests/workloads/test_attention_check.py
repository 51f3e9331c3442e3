"""A fault in an attention case is refused in every mode that it touches, and right attention is not."""

import pytest
import torch

from perf.workloads import attention, attention_impls
from perf.workloads.attention_check import TOLERANCES, bounds, every_bound
from perf.workloads.attention_oracle import NAMES, oracle
from perf.workloads.attention_problem import AttentionProblem, inputs
from perf.workloads.workload import WrongResult
from tests.workloads.attention_mutations import ALL, MUTATIONS, broken, params, planted

DTYPES = ("float32", "float16", "bfloat16")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_fault_is_refused_in_every_mode_that_it_touches(name, dtype):
    for mode in ALL:
        case = params(dtype, mode)
        with planted(name, case["seq_len"]):
            work = attention.build(case, "cpu")
            if mode in MUTATIONS[name].modes:
                with pytest.raises(WrongResult):
                    work.check()
            else:
                work.check()


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_right_attention_is_far_within_every_bound(dtype, is_causal):
    for impl in ("pytorch", "reference", "sdpa", "sdpa_math"):
        for d in (16, 64):
            case = params(dtype, "forward_backward", heads=2, d=d) | {"is_causal": is_causal, "impl": impl}
            with every_bound() as found:
                attention.build(case, "cpu").check()
            assert {bound.what for bound in found} == {"row", "slope", "rms"}
            assert max(bound.share for bound in found) < 0.8, max(found, key=lambda bound: bound.share)


def test_noise_that_no_row_and_no_slope_shows_is_beyond_twice_eager_s():
    found = broken("3 % of noise in out", params("bfloat16", "forward"), "cpu")
    assert [(bound.what, bound.keys) for bound in found] == [("rms", "random")]


@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_a_key_that_few_elements_show_is_missed_where_it_dominates(mode):
    """A key of a hundred random ones is within bfloat16's rounding; the second inputs detect it."""
    found = broken("last key unseen", params("bfloat16", mode), "cpu")
    assert {(bound.what, bound.keys) for bound in found} == {("row", "ends")}


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize(("seq_len", "d"), [(8, 4), (200, 16), (1024, 64)])
def test_the_last_keys_have_most_of_the_weight_of_their_rows(seq_len, d, is_causal):
    q, k, *_ = (
        x.detach().double()
        for x in inputs(AttentionProblem((2,), seq_len, d, "bfloat16", is_causal, keys="ends"), "cpu")
    )
    scores = q @ k.mT * d**-0.5
    if is_causal:
        scores = scores.masked_fill(torch.ones(seq_len, seq_len).triu(1).bool(), float("-inf"))
    last_key = scores.softmax(-1)[..., -1]
    assert last_key[:, -1].min() > 0.3, "of the last row, which sees it with a mask and without"
    shares = scores.softmax(-1).amax(-1)[:, seq_len // min(8, d) :]
    assert shares.median() > 0.5


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_yardstick_is_eager_attention_itself(dtype):
    """The blocks of the oracle's loop add up to what the reference makes of all at once, as far as errors are alike."""
    problem = AttentionProblem((2, 2), 256, 32, dtype, is_causal=True)
    tensors = inputs(problem, "cpu")
    found = attention.answer_of(
        attention_impls.implementation("reference", problem, "cpu"), tensors, "forward_backward"
    )
    exact = oracle(problem, "cpu", dtype)
    limit = TOLERANCES[dtype].rms
    for name in NAMES:
        eager = float(exact.eager_rms[name].max())
        rms = next(bound for bound in bounds(problem, "cpu", {name: found[name]}, dtype) if bound.what == "rms")
        assert rms.error == pytest.approx(eager, rel=0.3), name
        assert rms.allowed == pytest.approx(2 * eager + limit, rel=0.3), name


def test_tf32_is_held_to_products_of_ten_bits(monkeypatch):
    """Bits cut off instead of rounded, as tensor cores read them: allowed where TF32 is, and far outside of float32."""
    reference = attention_impls.IMPLS["reference"]

    def cut(x):
        kept = (x.detach().view(torch.int32) & -(1 << 13)).view(torch.float32)
        return x + (kept - x).detach()

    monkeypatch.setitem(
        attention_impls.IMPLS,
        "triton_tf32",
        lambda problem, device: lambda q, k, v: reference(problem, device)(*map(cut, (q, k, v))),
    )
    case = params("float32", "forward_backward", heads=2, seq_len=256) | {"impl": "triton_tf32"}
    assert 1e-4 < attention.build(case, "cpu").check() < 1e-2
    monkeypatch.setattr(attention, "TF32", ())
    with pytest.raises(WrongResult):
        attention.build(case, "cpu").check()


@pytest.mark.parametrize(
    ("change", "reason"),
    [(lambda out: out.mT, "shape"), (lambda out: out.double(), "float64"), (lambda out: None, "NoneType")],
)
def test_what_is_no_result_of_attention_at_all_has_a_reason(change, reason, monkeypatch):
    def attend(q, k, v, is_causal):
        return change(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal))

    monkeypatch.setattr(attention_impls, "imported", lambda name: attend)
    case = params("float32", "forward") | {"impl": "my:function"}
    with pytest.raises(WrongResult, match=reason):
        attention.build(case, "cpu").check()


def test_one_head_of_many_does_not_hide(monkeypatch):
    """1 % in one head of 16 moves the slope of the whole by 0.06 %."""
    pytorch = attention_impls.IMPLS["pytorch"]
    factors = torch.ones(16, 1, 1)
    factors[11] = 1.01

    def almost(problem, device):
        attend = pytorch(problem, device)
        return lambda q, k, v: attend(q, k, v) * factors.to(q.dtype)

    monkeypatch.setitem(attention_impls.IMPLS, "pytorch", almost)
    with pytest.raises(WrongResult, match="slope of out"):
        attention.build(params("bfloat16", "forward", heads=16), "cpu").check()
