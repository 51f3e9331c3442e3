"""Compile the kernels of many cells at once, before the cells are measured one after another.

Each problem runs once in one of several processes. Its kernels go to Triton's cache on disk, where the measuring
process finds them: 150 random problems take half an hour to compile in one process.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from perf.studies.attention.arms import builder
from perf.studies.attention.cells import Cell
from perf.studies.device import Device
from perf.studies.fresh_process import side_by_side
from perf.studies.progress import progress

MAX_PROCESSES = 16
"""Each takes a CUDA context and the tensors of one cell."""


def compile_ahead(plan: Mapping[Cell, Sequence[dict[str, Any]]], device: Device) -> None:
    """Run each arm of ours once in each problem, in as many processes as cores; on a CPU do nothing.

    `plan` has the rows of each cell. What fails here fails again, with its reason, where it is measured.
    """
    if device == "cpu" or (processes := min(MAX_PROCESSES, len(os.sched_getaffinity(0)))) < 2:
        return
    # The modes of a problem are in the order of MODES: the last one runs the kernels of all.
    cells = {replace(cell, mode=""): cell for cell in plan}.values()
    asked = [(cell, row["impl"]) for cell in cells for row in plan[cell] if row["role"] == "ours"]
    for _ in progress(side_by_side(__name__, run_once, asked, processes), total=len(asked), unit="problem compiled"):
        pass


def run_once(asked: tuple[Cell, str]) -> None:
    """Run an arm of a cell once in this process."""
    import torch

    builder(*asked, "cuda")().run()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # the memory is for the other processes
