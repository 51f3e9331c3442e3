"""The study of kernels attributes them to ranges, sorts them by kind, and names the limit that the numbers show."""

import itertools
import json
import os
import shlex
import stat
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner
from torch.autograd import DeviceType

from perf.__main__ import main
from perf.studies import lm
from perf.studies.kernels import nsys, profiling, results, study
from perf.studies.kernels.profiling import Kernel, busy_s, kind_of, profile_of, summary
from perf.studies.lm import Setting

TINY = ["--size", "tiny", "--context", "16", "--batch", "2", "--warm-up", "1", "--steps", "1"]
SETTING = Setting("tiny", 16, 2, "fp32", "eager", "reference")


def invoke(*arguments):
    return CliRunner().invoke(main, ["study", "kernels", *arguments])


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


def names(found):
    return [kernel.name for kernel in found]


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


def test_torchs_warning_about_cycles_fails_no_test_that_profiles():
    """torch 2.11 gives it at the first profile of a process, whichever test that is in."""
    warnings.warn(
        "Warning: Profiler clears events at the end of each cycle.Only events from the current cycle will be reported."
        "To keep events across cycles, set acc_events=True.",
        stacklevel=2,
    )


def test_busy_counts_overlapping_kernels_once():
    overlapping = [Kernel("a", 0.0, 1.0, 2.0), Kernel("b", 0.0, 2.0, 2.0), Kernel("c", 0.0, 5.0, 1.0)]
    assert busy_s(overlapping, on_gpu=True) == 4.0


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ampere_sgemm_128x64_tn", "matmul"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8", "matmul"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", "matmul"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(...)", "matmul"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(...)", "matmul"),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_tn", "matmul"),
        ("triton_tem_fused_mm_3", "matmul"),
        ("aten::bmm", "matmul"),
        ("aten::addmm", "matmul"),
        ("void pytorch_flash::flash_fwd_kernel<Traits<64, cutlass::bfloat16_t>>(...)", "fused attention"),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>)", "fused attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128", "fused attention"),
        ("flash_bwd_dkdv_kernel", "fused attention"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "fused attention"),
        ("void at::native::(anonymous namespace)::softmax_warp_forward<float, float, 9, false>", "softmax"),
        ("triton_per_fused__softmax_masked_fill_2", "softmax"),
        ("void cunn_SoftMaxForward<4, float, LogSoftMaxForwardEpilogue>(...)", "other"),
        ("aten::_log_softmax", "other"),
        ("triton_poi_fused_addmm_silu_1", "elementwise"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "elementwise"),
        ("aten::copy_", "elementwise"),
        ("aten::silu_backward", "elementwise"),
        ("aten::cat", "other"),
        ("Memcpy DtoD (Device -> Device)", "other"),
    ],
)  # fmt: skip
def test_kinds_are_told_by_name(name, kind):
    assert kind_of(name) == kind


def test_a_name_is_cut_after_what_all_of_torchs_have_in_common():
    name = "void at::native::(anonymous namespace)::softmax_warp_forward<float, float, 9, false>"
    assert results.short(name, 20) == "softmax_warp_forward"


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
    found = profiling.shortened(part)
    assert found == part | {"kernels_s": part["kernels_s"][:2], "left_out_s": 0.5}
    (only,) = profiling.shortened(part | {"kernels_s": [["mm", "matmul", 1, 0.1 + 0.2]]})["kernels_s"]
    assert only == ["mm", "matmul", 1, 0.3]  # nanoseconds, which is all that a profiler knows


def test_kinds_add_up_and_the_optimizers_are_those_launched_in_it():
    sgemm = "void sgemm<32>(float const*)"
    step = [Kernel(sgemm, 1.0, 0.0, 3.0), Kernel(sgemm, 2.0, 3.0, 1.0), Kernel("gemm_like_adam", 3.0, 4.0, 2.0)]
    found = summary(step, step[2:], on_gpu=True)
    assert found["kinds_s"]["matmul"] == 4.0
    assert found["kinds_s"]["optimizer"] == 2.0
    assert found["kernels_s"] == [["void sgemm<32>", "matmul", 2, 4.0], ["gemm_like_adam", "optimizer", 1, 2.0]]
    assert sum(found["kinds_s"].values()) == found["busy_s"] == 6.0


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


def test_compiled_code_gets_no_ranges_and_its_phases_do():
    compiled = Setting("tiny", 16, 2, "fp32", "compiled", "reference")
    found = study.measure(lm.training_of(SETTING), compiled, 1, 1)  # as if: the compiler is not what is tested
    assert found["ranges_s"] == {}
    assert all(found["phases_s"][name] > 0 for name in study.PHASES)
    assert all(seconds > 0 for seconds in found["wall_s"].values())


def test_a_study_on_a_laptop_has_every_table_every_range_and_says_that_it_was_a_cpu(tmp_path):
    done = invoke(*TINY, "--attention", "reference", "--attention", "sdpa", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    eager, fused = json.loads((tmp_path / "kernels.json").read_text())["rows"]
    assert set(eager["ranges_s"]) == set(study.RANGES)
    assert all(seconds > 0 for seconds in eager["ranges_s"].values())
    assert eager["ranges_s"]["computing softmax"] < eager["ranges_s"]["scaled dot product attention"]
    assert eager["ranges_s"]["scaled dot product attention"] < eager["ranges_s"]["attention"]
    assert "computing softmax" not in fused["ranges_s"]
    written = sum(seconds for *_, seconds in eager["step"]["kernels_s"]) + eager["step"]["left_out_s"]
    assert written == pytest.approx(sum(eager["step"]["kinds_s"].values()), rel=1e-3)
    assert fused["attention_parts"] is None
    phases = eager["phases_s"]
    assert all(seconds > 0 for seconds in phases.values())
    assert sum(phases.values()) == pytest.approx(eager["step"]["busy_s"], rel=1e-2)
    assert eager["step"]["busy_s"] < eager["wall_s"]["step"]
    assert eager["step"]["kinds_s"]["optimizer"] == pytest.approx(phases["optimizer"])
    assert eager["forward_only"]["kinds_s"]["optimizer"] == 0
    assert (tmp_path / "kernels.png").stat().st_size > 0
    assert "tiny, 16, fp32, eager, sdpa: the" in done.output
    if not torch.cuda.is_available():
        assert lm.ON_A_CPU in done.output


def profiled_row(context):
    kinds = dict.fromkeys(profiling.KINDS, 0.0) | {"matmul": 1.0}
    part = {"busy_s": 1.0, "launches": 1, "unattributed": 0, "kernels_s": [["sgemm", "matmul", 1, 1.0]]}
    row = dict.fromkeys(("forward", "backward", "optimizer"), 1.0)
    found = {"status": "ok", "wall_s": row | {"forward only": 1.0, "step": 3.0}, "phases_s": row, "ranges_s": {}}
    parts = dict.fromkeys(results.PARTS, part | {"kinds_s": kinds})
    return SETTING.axes() | {"context": context, "attention_parts": None} | found | parts


@pytest.mark.parametrize("count", [4, 5])
def test_every_setting_has_its_kernels_in_a_table_until_they_are_too_many(capsys, count):
    results.echo_tables([profiled_row(2**index) for index in range(count)], 5, on_gpu=True)
    said = capsys.readouterr().out
    assert said.count("eager, reference: the kernels that take the most") == (count if count <= 4 else 0)
    assert ("name one --size, say" in said) == (count > 4)


def test_the_figure_has_no_empty_margins(tmp_path, drawn):
    results.draw([profiled_row(2**index) for index in range(20)], tmp_path / "kernels.png", "", on_gpu=True)
    axes = drawn[0].axes[0]
    (below, above), ticks = axes.get_ylim(), axes.get_yticks()
    assert below > max(ticks) > min(ticks) > above  # the first on top
    assert max(below - max(ticks), min(ticks) - above) < 1


def test_matmuls_are_counted_and_their_flops_are_the_closed_form():
    found = study.measure(lm.training_of(SETTING), SETTING, 1, 1)
    if not torch.cuda.is_available():
        calls = {name: count for name, _, count, _ in found["forward_only"]["kernels_s"]}
        assert calls["aten::mm"] == 7 * 2 + 1  # two layers of four projections and three of the SwiGLU, and the head
        assert calls["aten::bmm"] == 2 * 2
    heads = 2 * 2 * 4  # layers x batch x heads
    assert found["attention_parts"]["softmax_flops"] == heads * 5 * 16**2
    assert found["attention_parts"]["matmul_flops"] == heads * 4 * 16**2 * 16


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
    ("found", "limit", "changed"),
    [
        (numbers(busy=0.69, matmul=0.69), "launches", {"variant": "cuda_graph"}),
        (numbers(busy=0.71, matmul=0.40, other=0.31), "compute", {"precision": "bf16"}),
        (numbers(busy=0.71, fused=0.40, other=0.31), "compute", {"precision": "bf16"}),
        (numbers(busy=0.9, matmul=0.3, other=0.6), "bandwidth", {"variant": "compiled"}),
        (numbers(busy=0.9, matmul=0.3, other=0.6, softmax=0.2), "bandwidth", {"variant": "compiled"}),
        (numbers(busy=0.9, matmul=0.3, other=0.6, softmax=0.5), "bandwidth", {"attention": "sdpa"}),
    ],
)
def test_the_limit_and_what_to_try_follow_from_the_numbers(found, limit, changed, monkeypatch):
    monkeypatch.setattr(study, "device_kind", lambda: "cpu")
    assert study.limit_of(found) == limit
    following = study.next_to_try(SETTING, limit, found)
    assert following.axes() == SETTING.axes() | changed
    row = SETTING.axes() | found | {"status": "ok", "limit": limit, "next": following.axes()}
    ((axis, value),) = changed.items()
    assert f"Try --{axis} {value}." in results.sentence(row)


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


def test_what_is_advised_is_measured_and_its_failure_is_told(monkeypatch):
    advised = [SETTING.axes() | {"precision": "bf16"}, None, SETTING.axes() | {"attention": "sdpa"}]
    rows = [
        SETTING.axes() | numbers(busy=1.0, matmul=1.0) | {"status": "ok", "limit": "compute", "next": one}
        for one in advised
    ]
    measured_step = study.step_s

    def step_s(train, setting, steps):
        if setting.attention == "sdpa":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        assert train.precision == "bf16"
        return measured_step(train, setting, steps) * 0 + 0.5

    monkeypatch.setattr(study, "step_s", step_s)
    rows = study.with_gains([SETTING] * 3, rows, 1)
    said = [results.sentence(row) for row in rows]
    assert "1000.00 -> 500.00 ms a step, 2.00 times as fast" in said[0]
    assert "easy remedies are in use" in said[1]
    assert "(out of memory: asked for 2.00 GiB)" in said[2]


def test_out_of_memory_is_a_row_and_the_other_rows_have_numbers(monkeypatch, tmp_path):
    measure = study.measure

    def full(train, setting, *counts):
        if setting.context_length == 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return measure(train, setting, *counts)

    monkeypatch.setattr(study, "measure", full)
    done = invoke(*TINY, "--context", "8", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "out of memory: asked for 2.00 GiB" in done.output
    assert [row["status"] for row in json.loads((tmp_path / "kernels.json").read_text())["rows"]] == [
        "ok",
        "out_of_memory",
    ]
    nothing_fits = invoke(*TINY[:2], "--context", "8")
    assert nothing_fits.exit_code == 0, nothing_fits.output
    assert "matmuls" not in nothing_fits.output  # no heading above an empty table


def test_without_nsys_its_commands_are_printed_and_written_and_one_line_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(nsys.shutil, "which", lambda name: None)
    done = invoke(*TINY, "--nsys", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert nsys.MISSING in done.output
    script = (tmp_path / "nsys.sh").read_text()
    (line,) = [line for line in script.splitlines() if line.startswith("nsys profile")]
    assert line in done.output
    for flag in nsys.FLAGS:
        assert flag in shlex.split(line)
    assert "--size tiny --context 16 --batch 2" in line


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
    done = invoke(*TINY, "--nsys")
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--variant", "cuda_graph"], "cuda_graph was given; allowed: variants with phases"),
        (["--warm-up", "0"], "Invalid value for '--warm-up'"),
        (["--model", "nowhere:build"], "Error: --model 'nowhere:build' was given; allowed: module:function"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, message):
    done = invoke(*TINY, *arguments)
    assert done.exit_code != 0
    assert message in done.output
    assert "Traceback" not in done.output
