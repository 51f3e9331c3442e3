"""A fresh process with several ways to run a training step in it, timed in turn."""

from functools import partial
from typing import Any, NamedTuple

from perf.harness.bench import Bench
from perf.harness.comparison import ComparedArm
from perf.harness.cuda_clocks import BusyClock
from perf.studies.device import device_kind, release
from perf.studies.lm import ATTENTIONS, PRECISIONS, VARIANTS
from perf.studies.rows import refused
from perf.workloads import imported, peer_step
from perf.workloads.transformer_oracle import ExactStep
from perf.workloads.transformer_training import Training, exact_of
from perf.workloads.workload import Workload

BUSY_STEPS = 3


Model = dict[str, Any]
"""One model on one batch: the `params` of `Training` except the way to run the step."""


class Expected(NamedTuple):
    """Expected results of the arms of a model."""

    exact: ExactStep
    next_losses: list[float]
    """After 1, 2 and 3 steps; none where no arm is a user's own."""


def check_arm(name: str) -> None:
    """Raise `ValueError` unless `name` is PRECISION/VARIANT/ATTENTION or a module:function that can be imported."""
    if ":" in name:
        imported(name)
        return
    parts = name.split("/")
    allowed = (PRECISIONS, VARIANTS, ATTENTIONS)
    if len(parts) != 3 or any(part not in values for part, values in zip(parts, allowed, strict=True)):
        grammar = "/".join("{" + "|".join(values) + "}" for values in allowed)
        raise ValueError(f"{name!r} was given; allowed: module:function, or {grammar}")


def samples_of(
    names: tuple[str, ...], model: Model, rounds: int, built_first: int, expected: Expected | None = None
) -> dict[str, Any]:
    """Compare arms in this process: return the seconds of `rounds` steps of each, in their order, or the failure.

    On a GPU also return the busy time of `BUSY_STEPS` steps of each arm, taken last, since the profiler slows launches.
    `built_first` is the index of the arm that allocates first; it differs between processes. `expected` is the field of
    that name in the reply of an earlier process to these arms.
    """
    bench = Bench(device_kind())
    reply = bench.instruments.with_status(lambda: _samples(bench, names, model, rounds, built_first, expected))
    return reply if reply["status"] == "ok" else refused(reply)


def _samples(
    bench: Bench, names: tuple[str, ...], model: Model, rounds: int, built_first: int, expected: Expected | None
) -> dict[str, Any]:
    device = device_kind()
    bench.instruments.measure_ceilings()  # while there is memory
    oracle = expected or _expected(model, device, with_peers=any(":" in name for name in names))
    works: list[Workload | None] = [None] * len(names)

    def build(index: int) -> Workload:
        works[index] = work = _built(names[index], model, device, oracle)
        return work

    new_clock = partial(bench.instruments.new_clock, "gpu_wall" if device == "cuda" else "wall")
    arms = [ComparedArm(str(index), partial(build, index), new_clock) for index in range(len(names))]
    order = [arm.name for arm in arms]
    built = (*arms[built_first:], *arms[:built_first])
    replies = bench.take_turns(built, "warm", lambda round_s: rounds, all_or_none=True, order=order)
    if failed := next((reply for reply in replies.values() if reply["status"] != "ok"), None):
        return failed
    busy_s = [bench.batch(BusyClock(), work, "warm", BUSY_STEPS) for work in works if work and device == "cuda"]
    return {"samples_s": [replies[name]["samples_s"] for name in order], "busy_s": busy_s, "expected": oracle}


def _expected(model: Model, device: str, *, with_peers: bool) -> Expected:
    """Return the loss from the oracle; for peers also the losses after a checked eager step."""
    exact = exact_of(model, device)
    if not with_peers:
        return Expected(exact, [])
    plain = {"precision": "bf16" if device == "cuda" else "fp32", "variant": "eager", "attention": "sdpa"}
    work = Training(model | plain, device, exact).step()
    work.check()
    next_losses = [float(work.run()) for _ in range(peer_step.NEXT_LOSSES)]
    del work
    release()
    return Expected(exact, next_losses)


def _built(name: str, model: Model, device: str, expected: Expected) -> Workload:
    if ":" in name:
        return peer_step.build(name, model, device, expected.exact, expected.next_losses)
    precision, variant, attention = name.split("/")
    own = {"precision": precision, "variant": variant, "attention": attention}
    return Training(model | own, device, expected.exact).step()
