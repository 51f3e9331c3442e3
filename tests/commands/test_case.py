"""`perf case`: names select their cases, and the working tree is measured, right or wrong."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
import torch
from click.testing import CliRunner

from perf.benchmarks.smoke import SmokeAttention
from perf.commands import case as case_command
from perf.commands import case_profile
from perf.harness.device import machine
from perf.selection import SETS

ROOT = Path(__file__).resolve().parents[2]
FORWARD = "SmokeAttention(128, 64, float32, forward)"
PEERS = SmokeAttention.params[SmokeAttention.param_names.index("impl")]


def command(*arguments, cwd=ROOT, path=None):
    whole = [sys.executable, "-m", "perf", "case", *arguments]
    env = os.environ | ({"PATH": str(path)} if path else {})
    done = subprocess.run(whole, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stdout + done.stderr
    return done


def invoke(*arguments, **environment):
    """Run the command in this process."""
    return CliRunner().invoke(case_command.command, arguments, env=environment)


def one_error(done):
    """The one line that a refusal is."""
    assert done.exit_code == 1
    assert done.stdout == ""
    (text,) = done.stderr.splitlines()
    return text


@pytest.fixture(autouse=True)
def path_of_child_processes(monkeypatch):
    """The command sets it for its own, and ends; here it would stay."""
    monkeypatch.setenv("PYTHONPATH", "")


@pytest.fixture
def working_tree(tmp_path):
    """A copy of this one, to be broken; the installed cs336_systems is still the original's."""
    root = tmp_path / "tree"
    for package in ("perf", "cs336_systems"):
        unwanted = shutil.ignore_patterns("__pycache__", "nvidia-*")
        shutil.copytree(ROOT / package, root / package, ignore=unwanted)
    return root


def files(root):
    return {path.relative_to(root) for path in root.rglob("*") if "__pycache__" not in path.parts}


def fake_tool(folder, name):
    """An executable that prints how it was called."""
    folder.mkdir()
    tool = folder / name
    tool.write_text('#!/bin/sh\nfor argument in "$@"; do echo "$argument"; done\n')
    tool.chmod(0o755)
    return folder


def keys(name, impls=None):
    return [case.key for case in case_command.select(name, impls)]


@pytest.mark.parametrize(
    "name",
    [
        FORWARD,
        "smoke.SmokeAttention(128, 64, 'float32', 'forward', 'reference')",  # a peer's name brings the peers
        "SmokeAttention(128, 64, float32, forward, sdpa",
        r"SmokeAttention\(128.*'forward'",
        r"^smoke\.SmokeAttention\.track_time\(128, 64, 'float32', 'forward', 'sdpa'\)$",  # as for asv run -b
    ],
)
def test_a_cell_is_found_by_whatever_it_may_be_called(name):
    start = "smoke.SmokeAttention(128, 64, 'float32', 'forward', "
    assert keys(name) == [f"{start}{impl!r})" for impl in PEERS]


@pytest.mark.parametrize("name", ["host.CompiledStep.track_graphs", "data_parallel.DataParallel.track_parameter_bytes"])
def test_every_series_is_a_name(name):
    assert keys(rf"^{name}\(") == keys(rf"^{name.rpartition('.')[0]}\(") != []


def test_a_name_may_be_cut_anywhere():
    assert keys("SmokeAttention(128") == keys("smoke.SmokeAttention(128, 64, float32") != keys("SmokeAttention")


@pytest.mark.parametrize("name", sorted(SETS))
def test_named_sets_are_names_too(name):
    assert keys(SETS[name])


def test_the_first_implementation_given_leads_each_cell():
    assert [key.split("'")[-2] for key in keys("SmokeAttention(128", "sdpa,pytorch")] == ["sdpa", "pytorch"] * 2


@pytest.mark.parametrize(("name", "impls"), [(FORWARD, "cuda"), (FORWARD, ","), ("SmokeControls", "triton")])
def test_an_implementation_that_is_not_there_is_refused_with_those_that_are(name, impls):
    with pytest.raises(click.ClickException, match=r"allowed.*(pytorch|none)"):
        case_command.select(name, impls)


def test_the_working_tree_is_timed_beside_its_peers():
    done = invoke(FORWARD, "--visits", "1")
    assert done.exit_code == 0, done.output
    rows = [line for line in done.stdout.splitlines() if line.startswith(tuple(PEERS))]
    assert [impl in row for impl, row in zip(PEERS, rows, strict=True)] == [True] * len(PEERS)
    assert all(("\u00d7 ±\u00a0" in row) == (row is not rows[0]) for row in rows)
    assert all("FLOP/s" in row and "%" in row for row in rows)
    assert "1 visit " in done.stdout and "wall clock, warm cache" in done.stdout


def test_an_uncommitted_mistake_is_what_is_measured_beside_a_damaged_record_and_nothing_is_written(working_tree):
    damaged = working_tree / "perf" / "records" / machine()["machine"] / f"{'a' * 40}.jsonl.gz"
    damaged.parent.mkdir(parents=True, exist_ok=True)
    damaged.write_bytes(b"cut off")
    kernel = working_tree / "cs336_systems" / "attention" / "flash_pytorch.py"
    kernel.write_text(kernel.read_text() + "\nFlashAttentionPyTorch.apply = staticmethod(lambda q, k, v, causal: q)\n")
    before = files(working_tree)
    done = command(FORWARD, "--visits", "1", cwd=working_tree)
    assert done.returncode == 1
    assert "'pytorch'): wrong: out" in done.stdout
    assert len([line for line in done.stdout.splitlines() if line.endswith(" ok")]) == len(PEERS) - 1, (
        "the peers have their times"
    )
    assert f"1 of {len(PEERS)}" in done.stderr and str(damaged) in done.stderr
    assert files(working_tree) == before


def test_a_package_from_anywhere_else_is_never_timed(tmp_path, monkeypatch):
    monkeypatch.setattr(case_command, "ROOT", tmp_path)
    error = one_error(invoke("SmokeControls('copy')", "--visits", "1"))
    assert "cs336_systems" in error and str(tmp_path) in error


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_a_gpu_case_is_one_clear_line():
    name = "FlashAttention(8192, 64, bfloat16, forward)"
    assert "GPU" in one_error(invoke(name))
    with pytest.raises(click.ClickException, match="GPU"):
        case_profile.profiled_child("torch", case_command.select(name, "triton")[0])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["SmokeAtention(128"], "smoke.SmokeAttention"),
        (["nothing"], "--list"),
        (["FlashAttention"], "at most 60"),
        (["SmokeAttention(128", "--profile", "torch"], "--profile takes 1"),
        ([FORWARD, "--impl", "sdpa,pytorch", "--profile", "torch"], "2 cases"),
        ([FORWARD, "--impl", "cuda"], ", ".join(PEERS)),
    ],
)
def test_bad_input_is_one_clear_line(arguments, named):
    assert named in one_error(invoke(*arguments))


@pytest.mark.parametrize("arguments", [[], ["Smoke", "--visits", "0"], ["Smoke", "--profile", "perf"]])
def test_bad_usage_is_a_usage_line_and_status_2(arguments):
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith("Usage:")


def test_list_prints_names_that_find_themselves():
    listed = invoke("SmokeAttention(512", "--list").stdout.splitlines()
    assert listed == keys("SmokeAttention(512")
    assert all(key in keys(key) for key in listed)
    assert len(invoke("--list").stdout.splitlines()) > 700


def test_torch_profile_names_what_ran(capfd):
    (case,) = case_command.select(FORWARD, "reference")
    with pytest.raises(SystemExit) as ended:
        case_profile.profile(case, "torch")
    printed = capfd.readouterr()
    assert ended.value.code == 0, printed.err
    assert case.key in printed.out
    assert "aten::bmm" in printed.out
    assert printed.out.splitlines()[-1].startswith("all ")


def test_on_a_gpu_only_what_ran_there_counts_and_nothing_twice():
    from torch.autograd import DeviceType

    def event(key, us, device=DeviceType.CUDA, annotation=False):
        times = {"self_device_time_total": us, "self_cpu_time_total": 9.0}
        return SimpleNamespace(key=key, count=1, device_type=device, is_user_annotation=annotation, **times)

    kernels = [event(f"kernel_{n}", 10.0) for n in range(case_profile.TOP_KERNELS + 2)]
    others = [event("cudaLaunchKernel", 0.0, DeviceType.CPU), event("a named range", 170.0, annotation=True)]
    lines = case_profile._kernels([*kernels, *others], on_gpu=True).splitlines()
    assert lines[0].split() == ["kernel", "calls", "device", "us", "share"]
    assert lines[-2].split()[:4] == ["2", "more", "2", "20.0"]
    assert lines[-1].split() == ["all", "17", "170.0"]
    assert "range" not in "".join(lines)


@pytest.mark.parametrize("tool", ["ncu", "nsys"])
def test_a_profiler_is_started_on_one_call_of_the_case(tool, tmp_path, monkeypatch):
    gpu_case = "FlashAttention(128, 64, bfloat16, forward)"
    empty = tmp_path / "empty"
    empty.mkdir()
    assert f"{tool} " in one_error(invoke(gpu_case, "--profile", tool, PATH=str(empty)))
    path = f"{fake_tool(tmp_path / 'bin', tool)}:{os.environ['PATH']}"
    assert "--profile torch" in one_error(invoke(FORWARD, "--profile", tool, PATH=path))
    started = command(gpu_case, "--profile", tool, path=path).stdout
    assert f"\n-m\nperf.commands.case_profile\n{tool}\n{{" in started
    assert '"impl": "triton"' in started, "ours, of several implementations"
    assert ("--profile-from-start\noff" if tool == "ncu" else "--capture-range=cudaProfilerApi") in started
