"""The study of kernels attributes them to ranges, sorts them by kind, and names the limit that the numbers show."""

import itertools
import os
import shlex
import stat
import sys
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner
from torch.autograd import DeviceType

from perf.studies import lm
from perf.studies.kernels import nsys, profiling, results, study
from perf.studies.kernels.profiling import Kernel, busy_s, kind_of, profile_of, summary
from perf.studies.lm import Setting
from tests.studies.running import invoke, run_study

TINY = ["--size", "tiny", "--context", "16", "--batch", "2", "--warm-up", "1", "--steps", "1"]
SETTING = Setting("tiny", 16, 2, "fp32", "eager", "reference")


def event(name, start, end, *, device="CPU", annotation=False, number=0, linked=0, thread=1, own=0.0):
    return SimpleNamespace(
        name=name,
        time_range=SimpleNamespace(start=start, end=end),
        device_type=getattr(DeviceType, device),
        is_user_annotation=annotation,
        id=number,
        linked_correlation_id=linked,
        thread=thread,
        self_cpu_time_total=own,
    )


def range_event(name, start, end, **more):
    return event(name, start, end, annotation=True, **more)


GPU_EVENTS = [
    range_event("forward", 0, 100),
    range_event("attention", 10, 30),
    range_event("attention", 50, 70),
    range_event("backward", 100, 200),
    range_event("forward", 1000, 1400, device="CUDA"),  # the device's copy of the range
    event("aten::mm", 11, 15, number=2),  # the same number as a launch further on
    event("cudaLaunchKernel", 12, 14, number=1),
    event("cudaLaunchKernel", 40, 42, number=2),
    event("cuLaunchKernelEx", 69, 90, number=3),  # begins inside, ends outside
    event("cudaLaunchKernel", 150, 152, number=4, thread=2),  # by autograd's thread
    event("AddBackward0", 160, 170, number=9),
    event("in attention", 1000, 1100, device="CUDA", number=1),
    event("between", 1100, 1150, device="CUDA", number=2),
    event("at its end", 1150, 1160, device="CUDA", number=3),
    event("of backward", 1160, 1200, device="CUDA", number=4),
    event("linked alone", 1200, 1210, device="CUDA", number=77, linked=9),
    event("lost", 1210, 1220, device="CUDA", number=78),
]


def names(kernels):
    return [kernel.name for kernel in kernels]


def test_a_kernel_belongs_to_the_ranges_that_were_open_when_it_was_launched():
    profile = profile_of(GPU_EVENTS, on_gpu=True)
    assert names(profile.within("attention")) == ["in attention", "at its end"]
    assert names(profile.within("forward")) == ["in attention", "between", "at its end"]
    assert names(profile.within("backward")) == ["of backward", "linked alone"]
    assert profile.within("feed-forward") == []
    assert names(profile.kernels)[-1] == "lost"
    assert summary(profile.kernels, [], on_gpu=True)["unattributed"] == 1
    assert profile.host_s("attention") == pytest.approx(40e-6)


def test_a_range_inside_one_of_its_own_name_counts_once():
    profile = profile_of([range_event("forward", 0, 100), *GPU_EVENTS, range_event("forward", 5, 20)], on_gpu=True)
    assert profile.host_s("forward") == pytest.approx(100e-6)
    assert len(profile.within("forward")) == 3


def test_on_a_cpu_operators_stand_for_kernels_with_the_time_spent_in_themselves():
    events = [
        range_event("forward", 0, 100, own=50),
        event("aten::matmul", 10, 40, own=5),
        event("aten::mm", 12, 38, own=26),
        event("autograd::engine::evaluate_function: MmBackward0", 120, 140, own=9),
        event("MmBackward0", 121, 139, own=9),
        event("aten::mm", 122, 130, own=8),
    ]
    profile = profile_of(events, on_gpu=False)
    assert names(profile.kernels) == ["aten::matmul", "aten::mm", "aten::mm"]
    assert busy_s(profile.within("forward"), on_gpu=False) == pytest.approx(31e-6)


def test_busy_counts_overlapping_kernels_once():
    overlapping = [Kernel("a", 0.0, 1.0, 2.0), Kernel("b", 0.0, 2.0, 2.0), Kernel("c", 0.0, 5.0, 1.0)]
    assert busy_s(overlapping, on_gpu=True) == 4.0


MASK = (
    "void at::native::elementwise_kernel<128, at::native::impl<at::native::(anonymous namespace)::masked_fill_kernel"
    "(at::TensorIterator&, c10::Scalar const&)::{lambda()#1}::operator()() const::{lambda(float, bool)#1}> >(int, "
    "at::native::impl<at::native::(anonymous namespace)::masked_fill_kernel(at::TensorIterator&, c10::Scalar const&)>)"
)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        (
            MASK,
            "void at::native::elementwise_kernel<128, "
            "at::native::impl<at::native::masked_fill_kernel::{lambda#1}::operator const::{lambda#1}> >",
        ),
        ("void cutlass::Kernel2<a_gemm_128x64>(a_gemm_128x64::Params)", "void cutlass::Kernel2<a_gemm_128x64>"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        ("aten::mm", "aten::mm"),
    ],
)
def test_a_name_has_no_parameters(name, plain):
    assert profiling.plain(name) == plain
    assert kind_of(plain) == kind_of(name)


def test_kernels_that_share_a_thousandth_of_the_time_are_not_written_and_their_sum_is():
    times = [600.0, 399.5, 0.3, 0.2]
    part = {"busy_s": 1.0, "kernels_s": [[str(index), "other", 1, seconds] for index, seconds in enumerate(times)]}
    shortened = profiling.shortened(part)
    assert shortened == part | {"kernels_s": part["kernels_s"][:2], "left_out_s": 0.5}
    (only,) = profiling.shortened(part | {"kernels_s": [["mm", "matmul", 1, 0.1 + 0.2]]})["kernels_s"]
    assert only == ["mm", "matmul", 1, 0.3]  # nanoseconds, which is all that a profiler knows


def test_kinds_add_up_and_the_optimizers_are_those_launched_in_it():
    sgemm = "void sgemm<32>(float const*)"
    step = [Kernel(sgemm, 1.0, 0.0, 3.0), Kernel(sgemm, 2.0, 3.0, 1.0), Kernel("gemm_like_adam", 3.0, 4.0, 2.0)]
    parts = summary(step, step[2:], on_gpu=True)
    assert parts["kinds_s"]["matmul"] == 4.0
    assert parts["kinds_s"]["optimizer"] == 2.0
    assert parts["kernels_s"] == [["void sgemm<32>", "matmul", 2, 4.0], ["gemm_like_adam", "optimizer", 1, 2.0]]
    assert sum(parts["kinds_s"].values()) == parts["busy_s"] == 6.0


@pytest.mark.parametrize("is_causal", [True, False])
def test_the_annotated_attention_is_the_reference(is_causal):
    from cs336_systems.attention import reference

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 8, dtype=torch.float64) for n in (5, 7, 7))
    for scale in (None, 0.3):
        mine = profiling.scaled_dot_product_attention(q, k, v, is_causal, softmax_scale=scale)
        theirs = reference.scaled_dot_product_attention(q, k, v, is_causal, softmax_scale=scale)
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_the_annotated_attention_is_in_place_only_while_it_is_profiled():
    from cs336_systems.attention import reference

    before = reference.scaled_dot_product_attention
    with profiling.annotated(SETTING):
        assert reference.scaled_dot_product_attention is profiling.scaled_dot_product_attention
    assert reference.scaled_dot_product_attention is before
    with profiling.annotated(Setting("tiny", 16, 2, "fp32", "compiled", "reference")):
        assert reference.scaled_dot_product_attention is before


def test_the_forward_that_is_shown_alone_keeps_nothing_for_a_backward():
    training = lm.training_of(SETTING)
    forward, graphs = training.train.forward, []
    training.train.forward = lambda: graphs.append(torch.is_grad_enabled()) or forward()
    study.measure(training, SETTING, 1, 1)
    # Warm-up, phases, forward and step, each run, checked and, but for the warm-up, timed; then under the profiler.
    assert [kept for kept, _ in itertools.groupby(graphs)] == [True, False, True, False, True]


def numbers(*, busy, wall=1.0, matmul=0.0, fused=0.0, other=0.0, softmax=0.0):
    kinds = dict.fromkeys(profiling.KINDS, 0.0) | {"matmul": matmul, "fused attention": fused, "other": other}
    part = {"busy_s": busy, "kinds_s": kinds}
    parts = {"softmax_s": softmax, "scale_and_mask_s": 0.0} if softmax else None
    return {"wall_s": {"step": wall}, "step": part, "forward_only": part, "attention_parts": parts}


@pytest.mark.parametrize(
    ("precision", "variant", "limit", "changed"),
    [
        ("bf16", "eager", "compute", None),
        ("fp16", "eager", "launches", {"variant": "compiled"}),
        ("fp16", "compiled", "launches", None),
        ("bf16", "compiled", "launches", {"variant": "compiled_cuda_graph"}),
        ("bf16", "compiled", "bandwidth", None),
    ],
)
def test_nothing_is_advised_that_is_in_use_or_cannot_be(precision, variant, limit, changed):
    setting = Setting("tiny", 16, 2, precision, variant, "sdpa")
    following = study.next_to_try(setting, limit, numbers(busy=1.0, matmul=0.2, other=0.8))
    assert (following and following.axes()) == (changed and setting.axes() | changed)


FAKE = """#!/bin/sh
while [ "$1" != "%(python)s" ]; do shift; done
"$@" && touch "%(ran)s"
exit %(status)s
"""


@pytest.mark.slow
@pytest.mark.parametrize("status", [0, 3])
def test_where_nsys_exists_it_runs_the_process_and_its_failure_is_one_line(monkeypatch, tmp_path, status):
    fake, ran = tmp_path / "nsys", tmp_path / "ran"
    fake.write_text(FAKE % {"python": sys.executable, "ran": ran, "status": status})
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    done = invoke("kernels", *TINY, "--nsys")
    assert ran.exists()
    assert done.exit_code == (0 if status == 0 else 1), done.output
    assert ("Error: nsys ended with status 3" in done.output) == (status == 3)


def test_the_profiled_process_opens_a_range_for_the_warm_up_and_one_for_each_step():
    arguments = ["--size", "tiny", "--context", "16", "--warm-up", "2", "--steps", "3"]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        done = CliRunner().invoke(nsys.main, arguments)
    assert done.exit_code == 0, done.output
    ranges = profile_of(profiler.events(), on_gpu=False).ranges
    assert [len(ranges[name]) for name in ("warm-up", "step 1", "step 2", "step 3")] == [1, 1, 1, 1]
    assert len(ranges["backward"]) == 5
    ((begin, end),) = ranges["warm-up"]
    assert sum(begin <= start < end for start, _ in ranges["optimizer"]) == 2


def test_kinds_follow_from_names():
    kinds = {
        "matmul": (
            "ampere_sgemm_128x64_tn", "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", "triton_tem_fused_mm_3", "aten::bmm",
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(...)", "aten::addmm",
            "void cublasLt::splitKreduce_kernel<32, 16, int, float>(...)",
        ),
        "fused attention": (
            "void pytorch_flash::flash_fwd_kernel<Traits<64, cutlass::bfloat16_t>>(...)", "flash_bwd_dkdv_kernel",
            "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>)",
            "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128",
            "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
        ),
        "softmax": (
            "void at::native::(anonymous namespace)::softmax_warp_forward<float, float, 9, false>",
            "triton_per_fused__softmax_masked_fill_2",
        ),
        "elementwise": (
            "triton_poi_fused_addmm_silu_1", "aten::copy_", "aten::silu_backward",
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
        ),
        "other": (
            "void cunn_SoftMaxForward<4, float, LogSoftMaxForwardEpilogue>(...)", "aten::_log_softmax", "aten::cat",
            "Memcpy DtoD (Device -> Device)",
        ),
    }  # fmt: skip
    for kind, examples in kinds.items():
        assert {name: kind_of(name) for name in examples} == dict.fromkeys(examples, kind)


def test_a_study_on_a_laptop_has_every_range_and_a_row_for_what_does_not_fit(tmp_path, monkeypatch):
    """Three settings: eager attention, SDPA, and a context that runs out of memory; nsys is not on the PATH."""
    measure = study.measure

    def full_at_8(training, setting, *counts):
        if setting.context_length == 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return measure(training, setting, *counts)

    monkeypatch.setattr(study, "measure", full_at_8)
    monkeypatch.setenv("PATH", str(tmp_path))
    axes = ["--context", "8", "--attention", "reference", "--attention", "sdpa"]
    rows, _ = run_study(tmp_path, "kernels", *TINY, *axes, "--nsys")
    eager, fused = (row for row in rows if row["context"] == 16)
    assert {row["status"] for row in rows if row["context"] == 8} == {"out_of_memory"}
    assert set(eager["ranges_s"]) == set(study.RANGES)
    assert all(seconds > 0 for seconds in eager["ranges_s"].values())
    assert eager["ranges_s"]["computing softmax"] < eager["ranges_s"]["scaled dot product attention"]
    assert eager["ranges_s"]["scaled dot product attention"] < eager["ranges_s"]["attention"]
    assert "computing softmax" not in fused["ranges_s"] and fused["attention_parts"] is None
    on_file = sum(seconds for *_, seconds in eager["step"]["kernels_s"]) + eager["step"]["left_out_s"]
    assert on_file == pytest.approx(sum(eager["step"]["kinds_s"].values()), rel=1e-3)
    phases = eager["phases_s"]
    assert all(seconds > 0 for seconds in phases.values())
    assert sum(phases.values()) == pytest.approx(eager["step"]["busy_s"], rel=1e-2)
    assert eager["step"]["busy_s"] < eager["wall_s"]["step"]
    assert eager["step"]["kinds_s"]["optimizer"] == pytest.approx(phases["optimizer"])
    assert eager["forward_only"]["kinds_s"]["optimizer"] == 0
    heads = 2 * 2 * 4  # layers x batch x heads
    assert eager["attention_parts"]["softmax_flops"] == heads * 5 * 16**2
    assert eager["attention_parts"]["matmul_flops"] == heads * 4 * 16**2 * 16
    if not torch.cuda.is_available():
        calls = {name: count for name, _, count, _ in eager["forward_only"]["kernels_s"]}
        assert calls["aten::mm"] == 7 * 2 + 1  # two layers of four projections and three of the SwiGLU, and the head
        assert calls["aten::bmm"] == 2 * 2
    assert (tmp_path / "kernels.png").stat().st_size > 0
    lines = [line for line in (tmp_path / "nsys.sh").read_text().splitlines() if line.startswith("nsys profile")]
    assert len(lines) == len(rows)
    assert set(nsys.FLAGS) <= set(shlex.split(lines[0])) and "--size tiny --context 16 " in lines[0]


@pytest.mark.parametrize(
    ("row", "limit", "changed"),
    [
        (numbers(busy=0.69, matmul=0.69), "launches", {"variant": "cuda_graph"}),
        (numbers(busy=0.71, matmul=0.40, other=0.31), "compute", {"precision": "bf16"}),
        (numbers(busy=0.71, fused=0.40, other=0.31), "compute", {"precision": "bf16"}),
        (numbers(busy=0.9, matmul=0.3, other=0.6), "bandwidth", {"variant": "compiled"}),
        (numbers(busy=0.9, matmul=0.3, other=0.6, softmax=0.2), "bandwidth", {"variant": "compiled"}),
        (numbers(busy=0.9, matmul=0.3, other=0.6, softmax=0.5), "bandwidth", {"attention": "sdpa"}),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU triton is the attention to try")
def test_the_limit_and_what_to_try_follow_from_the_numbers(row, limit, changed):
    assert study.limit_of(row) == limit
    following = study.next_to_try(SETTING, limit, row)
    assert following.axes() == SETTING.axes() | changed
    ((axis, value),) = changed.items()
    row = SETTING.axes() | row | {"status": "ok", "limit": limit, "next": following.axes()}
    assert f"--{axis} {value}" in results.sentence(row)


def test_the_setting_to_try_next_is_measured():
    following = SETTING.axes() | {"precision": "bf16"}
    rows = [SETTING.axes() | {"next": following}, SETTING.axes() | {"next": None}]
    changed, settled = study.with_gains([SETTING] * 2, rows, 1)
    assert changed["next_s"] > 0 and changed["next_status"] == "ok"
    assert "next_s" not in settled
