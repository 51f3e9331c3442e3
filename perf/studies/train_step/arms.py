"""A fresh process with several ways to run a training step in it, timed in turn."""

import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from perf.harness.bench import Bench
from perf.harness.clock import Clock, WallClock
from perf.studies.lm import ATTENTIONS, OURS, PRECISIONS, VARIANTS, device_kind, refusal, release
from perf.workloads import imported, peer_step
from perf.workloads.transformer_oracle import Exact
from perf.workloads.transformer_training import Training, exact_of
from perf.workloads.workload import Workload

BUSY_STEPS = 3


@dataclass(frozen=True)
class Cell:
    """One model on one batch."""

    size: str
    context_length: int
    batch: int
    model: str = OURS

    @property
    def params(self) -> dict[str, Any]:
        """As the workload takes them, but for the way to run the step."""
        model = {} if self.model == OURS else {"model": self.model}
        return {"size": self.size, "context_length": self.context_length, "batch": self.batch} | model


class Known(NamedTuple):
    """What the arms of a cell are held to."""

    exact: Exact
    second_loss: float
    """After one step; NaN where no arm is a user's own."""


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


def samples_of(
    names: tuple[str, ...], cell: Cell, rounds: int, built_first: int, known: Known | None = None
) -> dict[str, Any]:
    """Seconds of `rounds` steps of each arm, in turn, after each was checked and all have warmed up; or why not.

    On a GPU also of how much of a step it is busy, `BUSY_STEPS` of each arm, last, since the profiler slows launches.
    `built_first` is the index of the arm that allocates first, the next one follows; processes go through them all.
    `known` is what the reply of an earlier process to these arms has under that name.
    """
    try:
        return {"status": "ok"} | _samples(names, cell, rounds, built_first, known)
    except Exception as error:  # a user's own arm may raise anything
        found = refusal(error)
        if found["status"] == "error":
            traceback.print_exception(error)
        return found


def _samples(names: tuple[str, ...], cell: Cell, rounds: int, built_first: int, known: Known | None) -> dict[str, Any]:
    import torch

    from perf.harness.cuda_clocks import BusyClock, GpuWallClock

    device = device_kind()
    bench, on_gpu = Bench(device), device == "cuda"
    make: Callable[[], Clock] = GpuWallClock if on_gpu else WallClock
    bench.measure_ceilings()  # while there is memory
    known = known or _known(cell, device, with_peers=any(":" in name for name in names))
    arms: dict[int, tuple[Clock, Workload]] = {}
    for index in (*range(built_first, len(names)), *range(built_first)):
        arms[index] = make(), _built(names[index], cell, device, known)
        bench.check(arms[index][1])
        arms[index][0].warm_up(arms[index][1])
        if on_gpu:
            torch.cuda.empty_cache()  # what building and warming up left is the next arm's, which may need it
    for clock, work in arms.values():
        clock.warm_up(work)
    in_order = [arms[index] for index in range(len(names))]
    samples_s = bench.alternate(in_order, "warm", rounds)
    busy_s = [bench.batch(BusyClock(), work, "warm", BUSY_STEPS) for _, work in in_order] if on_gpu else []
    return {"samples_s": samples_s, "busy_s": busy_s, "known": known}


def _known(cell: Cell, device: str, *, with_peers: bool) -> Known:
    """From the oracle; for peers the loss after one step too, of a plain step that was held to the oracle."""
    exact = exact_of(cell.params, device)
    if not with_peers:
        return Known(exact, math.nan)
    plain = {"precision": "bf16" if device == "cuda" else "fp32", "variant": "eager", "attention": "sdpa"}
    work = Training(cell.params | plain, device, exact).step()
    work.check()
    second_loss = float(work.run())
    del work
    release()
    return Known(exact, second_loss)


def _built(name: str, cell: Cell, device: str, known: Known) -> Workload:
    if ":" in name:
        return peer_step.build(name, cell.params, device, known.exact, known.second_loss)
    precision, variant, attention = name.split("/")
    own = {"precision": precision, "variant": variant, "attention": attention}
    return Training(cell.params | own, device, known.exact).step()
