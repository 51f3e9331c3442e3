"""Checks before a measurement: other work on the GPU, a broken GPU, a full disk."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from perf.harness.device import Nvml, sees_gpus

VARIABLE = "PERF_PREFLIGHT"
"""Environment variable; `off` skips these checks."""

MIN_FREE_BYTES = 2**30
WORKERS = "perf/harness/workers/"


def objection(reasons: Iterable[str]) -> str:
    """Return the line that refuses to measure; "" without reasons, or if the checks are off."""
    text = "; ".join(reasons)
    if not text or os.environ.get(VARIABLE) == "off":
        return ""
    return f"nothing is measured: {text} ({VARIABLE}=off measures all the same)"


def full_disks(*folders: Path) -> list[str]:
    """Return a reason for each existing or future folder on a disk with less than 1 GiB free."""
    reasons = []
    for folder in folders:
        free = shutil.disk_usage(existing(folder)).free
        if free < MIN_FREE_BYTES:
            reasons.append(f"{free / 2**20:.0f} MiB are free for {folder}, less than 1 GiB: results may be lost")
    return reasons


def existing(folder: Path) -> Path:
    """Return the folder or its nearest existing parent."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def busy_or_broken_gpus() -> list[str]:
    """Return the reasons against each GPU that torch sees; the ancestors of this process may use it."""
    if not sees_gpus():
        return []
    import torch

    reasons, ancestors = [], _ancestors()
    for index in range(torch.cuda.device_count()):
        nvml = Nvml.open(f"GPU-{torch.cuda.get_device_properties(index).uuid}")
        if nvml is None:
            continue
        others = (pid for pid in nvml.others() if pid not in ancestors)
        reasons += [f"{_describe(pid)} uses GPU {index}: stop it first" for pid in others]
        reasons += [f"GPU {index} {damage}" for damage in nvml.damages()]
    return reasons


def asked_apart() -> list[str]:
    """Run `busy_or_broken_gpus` in a process of its own, since torch creates a context on each GPU that it queries."""
    done = subprocess.run([sys.executable, "-m", __name__], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def _ancestors() -> set[int]:
    pid, ancestors = os.getpid(), set[int]()
    try:
        while pid := int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]):
            ancestors.add(pid)
    except OSError:  # unreadable, or not Linux
        pass
    return ancestors


def _describe(pid: int) -> str:
    """Return the process's ID and command line; of another container or account only its ID is readable."""
    try:
        program, *arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return f"process {pid}"
    command = " ".join([Path(program).name, *arguments]).strip()  # without the folder of the virtual environment
    shown = command if len(command) <= 80 else f"{command[:38]} ... {command[-38:]}"
    if WORKERS in command:
        return f"process {pid}, left behind by an earlier run ({shown}),"
    return f"process {pid} ({shown})" if shown else f"process {pid}"


if __name__ == "__main__":
    for reason in busy_or_broken_gpus():
        print(reason)
