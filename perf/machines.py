"""Names of machines, as `perf machine` makes them: nvidia-h200-x2 has two of nvidia-h200's GPU."""

import re

_NUM_GPUS = re.compile(r"-x(\d+)(?=$|-\d+mhz$)")


def of_one_gpu(machine: str) -> str:
    """Return the name of the machine with one such GPU."""
    return _NUM_GPUS.sub("", machine)


def num_gpus(machine: str) -> int:
    """Return the number of GPUs by the name."""
    found = _NUM_GPUS.search(machine)
    return int(found[1]) if found else 1
