"""`python -m perf case --profile`: a call of a case of the working tree under a profiler, in its own process."""

import json
import os
import re
import shutil
import subprocess
import sys
from typing import Any

import click

from perf import units
from perf.harness import working_tree
from perf.harness.case import Case
from perf.tables import text_table

TOP_KERNELS = 15
NSYS_REPORTS = working_tree.ROOT / ".asv" / "profiles"


def profile(case: Case, profiler: str) -> None:
    """Start `profiler` (torch, ncu or nsys) on a call of `case`, and exit with its status.

    Raises `click.ClickException` with one line if the tool or the case is unavailable here.
    """
    working_tree.make_importable()
    child = [sys.executable, "-P", "-m", "perf.commands.case_profile", profiler, json.dumps(case.to_json())]
    if profiler == "torch":
        click.echo(case.key)
        quiet = os.environ | {"KINETO_LOG_LEVEL": "99"}  # without the tracer's own messages
        sys.exit(subprocess.run(child, env=quiet, check=False).returncode)
    if shutil.which(profiler) is None:
        raise click.ClickException(f"{profiler} is not on the PATH; --profile torch needs nothing installed")
    if case.device != "cuda":
        raise click.ClickException(f"{profiler} profiles a GPU and {case.key} runs on the CPU; use --profile torch")
    if profiler == "ncu":
        command = ["ncu", "--profile-from-start", "off", *child]
    else:
        NSYS_REPORTS.mkdir(parents=True, exist_ok=True)
        report = NSYS_REPORTS / re.sub(r"[^A-Za-z0-9]+", "-", case.key).strip("-")
        command = ["nsys", "profile", "--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--stats=true"]
        command += ["--force-overwrite=true", f"--output={report}", *child]
    sys.exit(subprocess.run(command, check=False).returncode)  # exec would give up the device's lock


def profiled_child(profiler: str, case: Case) -> None:
    """Run a warm case once under torch's profiler, whose table is printed, or under the parent process's."""
    import torch

    from perf.harness.device import missing_device
    from perf.harness.measure import pin_package
    from perf.harness.status import one_line
    from perf.workloads import build

    pin_package(working_tree.ROOT)
    if reason := missing_device(case.device):
        raise click.ClickException(reason)
    try:
        work = build(case.workload, case.params, case.device)
        for _ in range(2):  # the first compiles
            work.prepare()
            work.run()
        work.prepare()
    except Exception as error:
        raise click.ClickException(f"{case.key}: {type(error).__name__}: {one_line(error)}") from None
    on_gpu = case.device == "cuda"
    synchronize = torch.cuda.synchronize if on_gpu else lambda: None
    synchronize()
    if profiler == "torch":
        activities = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if on_gpu else [])]
        with torch.profiler.profile(activities=activities) as profile:
            work.run()
            synchronize()
        click.echo(_kernels(profile.key_averages(), on_gpu))
    else:
        torch.cuda.profiler.start()
        work.run()
        synchronize()
        torch.cuda.profiler.stop()


def _kernels(events: Any, on_gpu: bool) -> str:
    """Format a table of kernels by device time; on a CPU, of operators by their own time."""
    from torch.autograd import DeviceType

    if on_gpu:  # without host events, and without a library's named ranges, whose kernels are listed already
        events = [e for e in events if e.device_type == DeviceType.CUDA and not getattr(e, "is_user_annotation", False)]
    times = [e.self_device_time_total if on_gpu else e.self_cpu_time_total for e in events]
    kernels = [(e.key, e.count, us) for e, us in zip(events, times, strict=True)]
    total = sum(us for _, _, us in kernels) or 1.0
    kernels.sort(key=lambda kernel: -kernel[2])
    rows = [[name, calls, f"{us:.1f}", units.percent(us / total)] for name, calls, us in kernels[:TOP_KERNELS]]
    if rest := kernels[TOP_KERNELS:]:
        us = sum(kernel[2] for kernel in rest)
        rows.append([f"{len(rest)} more", sum(kernel[1] for kernel in rest), f"{us:.1f}", units.percent(us / total)])
    rows.append(["all", sum(kernel[1] for kernel in kernels), f"{total:.1f}", ""])
    headers = ["kernel", "calls", "device us", "share"] if on_gpu else ["operator", "calls", "CPU us", "share"]
    cells = (dict(zip(headers, row, strict=True)) for row in rows)
    return text_table(cells, align=("left", "right", "right", "right"))


if __name__ == "__main__":
    try:
        profiled_child(sys.argv[1], Case(**json.loads(sys.argv[2])))
    except click.ClickException as refused:
        refused.show()
        sys.exit(refused.exit_code)
