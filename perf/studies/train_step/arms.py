"""A fresh process with several ways to run a training step in it, timed in turn."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perf.harness.clock import Clock, WallClock, alternate
from perf.studies.lm import ATTENTIONS, OURS, PRECISIONS, VARIANTS, Setting, asked_for, train_step_of
from perf.workloads import imported, measured
from perf.workloads.workload import Floor, Workload

BUSY_STEPS = 3


@dataclass(frozen=True)
class Cell:
    """One model on one batch."""

    size: str
    context_length: int
    batch: int
    model: str = OURS


def check_arm(name: str) -> None:
    """Raises `ValueError` unless `name` is PRECISION/VARIANT/ATTENTION or module:function, and that can be imported."""
    if ":" in name:
        imported(name)
        return
    parts = name.split("/")
    allowed = (PRECISIONS, VARIANTS, ATTENTIONS)
    if len(parts) != 3 or any(part not in values for part, values in zip(parts, allowed, strict=True)):
        grammar = "/".join("{" + "|".join(values) + "}" for values in allowed)
        raise ValueError(f"{name!r} was given; allowed: module:function, or {grammar}")


def samples_of(names: tuple[str, ...], cell: Cell, rounds: int, built_first: int) -> dict[str, Any]:
    """Seconds of `rounds` steps of each arm, in turn, after all have warmed up; or the memory that was not there.

    On a GPU also of how much of a step it is busy, `BUSY_STEPS` of each arm, last, since the profiler slows launches.
    `built_first` is the index of the arm that allocates first, the next one follows; processes go through them all.
    """
    import torch

    from perf.harness.cuda_clocks import BusyClock, GpuWallClock

    on_gpu = torch.cuda.is_available()
    make: Callable[[], Clock] = GpuWallClock if on_gpu else WallClock
    arms: dict[int, tuple[Clock, Workload]] = {}
    try:
        for index in (*range(built_first, len(names)), *range(built_first)):
            arms[index] = make(), Workload(run=_step_of(names[index], cell), check=lambda: 0.0, floor=Floor())
            arms[index][0].warm_up(arms[index][1])
            if on_gpu:
                torch.cuda.empty_cache()  # what warming up left is the next arm's, which may need it
        for clock, work in arms.values():
            clock.warm_up(work)
        in_order = [arms[index] for index in range(len(names))]
        samples_s = alternate(in_order, "warm", rounds)
        busy_s = [BusyClock().batch(work, "warm", BUSY_STEPS) for _, work in in_order] if on_gpu else []
    except torch.OutOfMemoryError as error:
        return {"status": f"out of memory: {asked_for(error)}"}
    except Exception as error:
        return {"status": f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:100]}"}
    return {"status": "ok", "samples_s": samples_s, "busy_s": busy_s}


def _step_of(name: str, cell: Cell) -> Callable[[], Any]:
    if ":" in name:
        config = measured("configs", "MODEL_CONFIGS")[cell.size]
        return imported(name)(config, cell.context_length, cell.batch)
    precision, variant, attention = name.split("/")
    train = train_step_of(
        Setting(cell.size, cell.context_length, cell.batch, precision, variant, attention, cell.model)
    )
    return measured("training", "Captured")(train.step) if variant.endswith("cuda_graph") else train.step
