"""What makes a measurement worthless before it begins: other work on the GPU, a GPU that is broken, a full disk."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from perf.harness.device import Nvml

VARIABLE = "PERF_PREFLIGHT"
"""off: measure all the same."""

LEAST_FREE_BYTES = 2**30
WORKERS = "perf/harness/workers/"


def objection(found: Iterable[str]) -> str:
    """One line that refuses to measure, "" if nothing was found or nobody wants to know."""
    reasons = "; ".join(found)
    if not reasons or os.environ.get(VARIABLE) == "off":
        return ""
    return f"nothing is measured: {reasons} ({VARIABLE}=off measures all the same)"


def full_disks(*folders: Path) -> list[str]:
    """A reason for each folder that lies, or will lie, on a disk with less than a GiB left."""
    found = []
    for folder in folders:
        free = shutil.disk_usage(existing(folder)).free
        if free < LEAST_FREE_BYTES:
            found.append(f"{free / 2**20:.0f} MiB are free for {folder}, less than 1 GiB: results may be lost")
    return found


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there already."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def busy_or_broken_gpus() -> list[str]:
    """Reasons of every GPU that torch sees; who started this process is no reason."""
    import torch

    found, ours = [], _ancestors()
    for index in range(torch.cuda.device_count()):
        nvml = Nvml.open(f"GPU-{torch.cuda.get_device_properties(index).uuid}")
        if nvml is None:
            continue
        found += [f"{_named(pid)} uses GPU {index}: stop it first" for pid in nvml.others() if pid not in ours]
        found += [f"GPU {index} {damage}" for damage in nvml.damages()]
    return found


def asked_apart() -> list[str]:
    """`busy_or_broken_gpus` of a process that ends with its answer, since asking torch takes hold of the GPUs."""
    done = subprocess.run([sys.executable, "-m", __name__], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def _ancestors() -> set[int]:
    pid, found = os.getpid(), set[int]()
    try:
        while pid := int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]):
            found.add(pid)
    except OSError:  # not ours to read, or no Linux
        pass
    return found


def _named(pid: int) -> str:
    """The process as a person knows it; of another container or account only its number is known."""
    try:
        program, *arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return f"process {pid}"
    words = " ".join([Path(program).name, *arguments]).strip()  # a virtual environment's folder says nothing
    shown = words if len(words) <= 80 else f"{words[:38]} ... {words[-38:]}"
    if WORKERS in words:
        return f"process {pid}, left behind by an earlier run ({shown}),"
    return f"process {pid} ({shown})" if shown else f"process {pid}"


if __name__ == "__main__":
    for reason in busy_or_broken_gpus():
        print(reason)
