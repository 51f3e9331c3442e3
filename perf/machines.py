"""asv's machine file, and its names, as `perf machine` makes them: nvidia-h200-x2 has two of nvidia-h200's GPU."""

import os
import re
from pathlib import Path

MACHINE_FILE = "PERF_MACHINE_FILE"
"""Environment variable with the path of asv's machine file, for the demo, which brings its own."""

_NUM_GPUS = re.compile(r"-x(\d+)(?=$|-\d+mhz$)")


def machine_file() -> Path:
    """Return the path of asv's machine file, which need not exist."""
    return Path(os.environ.get(MACHINE_FILE) or "~/.asv-machine.json").expanduser()


def of_one_gpu(machine: str) -> str:
    """Return the name of the machine with one such GPU."""
    return _NUM_GPUS.sub("", machine)


def num_gpus(machine: str) -> int:
    """Return the number of GPUs by the name."""
    found = _NUM_GPUS.search(machine)
    return int(found[1]) if found else 1
