"""One rank of a case: it builds, runs, checks, samples and weighs on request."""

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perf.harness.cuda_clocks import MARKER
from perf.harness.injection import Injection
from perf.harness.memory import Leftovers, peak_memory
from perf.harness.profiler import device_activity, host_activity
from perf.harness.spans import Span, merged
from perf.harness.status import failure
from perf.workloads import build
from perf.workloads.workload import Workload

SHORT_S, CALLS = 1e-3, 20
"""Calls shorter than SHORT_S are timed CALLS at a time: ranks leave a barrier some microseconds apart."""

COLLECTIVES = ("nccl", "gloo:")
"""Prefixes of the names of NCCL's kernels and of gloo's events."""

COPIES = ("Memcpy", "Memset")
"""Prefixes of the names of a GPU's copies and fills."""

RUNS_BEFORE = 2
"""Runs right before the run whose spans are returned: a GPU computes at a higher clock after a pause."""


@dataclass
class Built:
    """One arm of a comparison, or the only one."""

    work: Workload | None = None
    case: dict[str, Any] | None = None
    injection: Injection | None = None
    calls: int = 1


class RankWork:
    """The rank's side of `perf.harness.ranks.Ranks`."""

    def __init__(self, device: str):
        self._device = device
        self._leftovers = Leftovers()
        self._arms = [Built()]
        self._arm = self._arms[0]

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer `{"do": name, "arm": number, ...}`. Never raises: what goes wrong is the reply's status and reason.

        Building arm 0, which is meant where none is given, forgets all others.
        """
        try:
            do, arm = request.pop("do"), request.pop("arm", 0)
            if do == "build":
                self._arms[arm:] = [Built()]
            self._arm = self._arms[arm]
            return {"status": "ok"} | getattr(self, f"_{do}")(**request)
        except (Exception, SystemExit) as error:  # the measured code may call sys.exit
            reply = failure(error)
            if reply["status"] == "error":
                traceback.print_exc()
            return reply

    def _build(self, case: dict[str, Any], injection: dict[str, Any] | None = None) -> dict[str, Any]:
        self._leftovers.release()
        self._arm.case = case
        self._arm.injection = Injection(**injection) if injection else None
        self._arm.work = self._new_work()
        return {"floor": vars(self._held.floor), "is_difference": self._held.without is not None}

    def _slow_down(self, seconds: float) -> dict[str, Any]:
        """Slow every further run down by the injection's share of `seconds`."""
        if self._arm.injection:
            self._arm.work = self._arm.injection.slowed(self._held, seconds, self._device)
        return {}

    def _run(self) -> dict[str, Any]:
        self._held.prepare()
        self._held.run()
        self._synchronize()
        return {}

    def _check(self) -> dict[str, Any]:
        return {"error": self._held.check()}

    def _memory(self) -> dict[str, Any]:
        """Measure this rank's peak memory on a GPU, which discards the work: it has to be built again. {} on a CPU."""
        if self._device == "cpu":
            return {}
        self._arm.work = None
        return peak_memory(self._new_work, self._leftovers)

    def _spans(self) -> dict[str, Any]:
        """Return when this rank computed and communicated in one run after a barrier, seconds from its first work.

        Copies in a stream without kernels communicate: copy engines that move what others compute with.
        """
        if self._device == "cpu":
            self._meet()
            activities = host_activity(self._held.run)
            # The host's other events wait, or contain these.
            activities = [activity for activity in activities if activity.name.startswith(("aten::", *COLLECTIVES))]
        else:
            activities = device_activity(self._run_at_the_clock_of_work)
            marks = [number for number, activity in enumerate(activities) if MARKER in activity.name]
            activities = activities[marks[-1] + 1 :] if marks else []
        begin = min((activity.start_s for activity in activities), default=0.0)
        spans: dict[str, list[Span]] = {"compute": [], "communication": []}
        computing = {each.stream for each in activities if not each.name.startswith((*COLLECTIVES, *COPIES))}
        for each in activities:
            moves = each.name.startswith(COLLECTIVES) or (each.name.startswith(COPIES) and each.stream not in computing)
            spans["communication" if moves else "compute"].append((each.start_s - begin, each.end_s - begin))
        return {kind: merged(of) for kind, of in spans.items()}

    def _run_at_the_clock_of_work(self) -> None:
        """Run `RUNS_BEFORE` times, launch the mark, run once more."""
        import torch

        for _ in range(RUNS_BEFORE):
            self._meet()
            self._held.run()
        self._meet()
        torch.cuda._sleep(1)
        self._held.run()

    def _facts(self) -> dict[str, Any]:
        return {"facts": self._held.facts()}

    def _warm_up(self, seconds: float) -> dict[str, Any]:
        """Run at least twice; agree with the other ranks on the number of calls in a sample."""
        import torch.distributed as dist

        self._take(1)
        call_s = self._take(1)["samples_s"][0]
        slowest: list[float] = [0.0] * dist.get_world_size()
        dist.all_gather_object(slowest, call_s)
        self._arm.calls = CALLS if max(slowest) < SHORT_S else 1
        for _ in range(min(1000, int(seconds / max(slowest) / self._arm.calls))):
            self._take(1)
        return {"call_s": max(slowest) * self._arm.calls}

    def _take(self, count: int) -> dict[str, Any]:
        """Take `count` samples, each from a barrier to the end of this rank's work.

        Of a difference twice as many, and as many of `without`, A B B A for each sample: a GPU at the limit of its
        power is the slower after the arm that draws more.
        """
        run, without = self._held.run, self._held.without
        arms = {"samples_s": run, "without_s": without or run}
        taken: dict[str, list[float]] = {name: [] for name in arms}
        order = ("samples_s", "without_s", "without_s", "samples_s") if without else ("samples_s",)
        for name in order * count:
            taken[name].append(self._time(arms[name]))
        return taken

    def _time(self, run: Callable[[], Any]) -> float:
        import torch

        self._meet()
        if self._device == "cpu":
            begin = time.perf_counter()
            for _ in range(self._arm.calls):
                run()
            return (time.perf_counter() - begin) / self._arm.calls
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(self._arm.calls):
            run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3 / self._arm.calls

    def _meet(self) -> None:
        """Wait until all ranks are ready for a run and their devices are idle."""
        import torch.distributed as dist

        self._held.prepare()
        self._synchronize()
        dist.barrier()
        self._synchronize()

    @property
    def _held(self) -> Workload:
        assert self._arm.work is not None
        return self._arm.work

    def _new_work(self) -> Workload:
        assert self._arm.case is not None
        work = build(self._arm.case["workload"], self._arm.case["params"], self._device)
        return self._arm.injection.enlarged(work, self._device) if self._arm.injection else work

    def _synchronize(self) -> None:
        if self._device == "cuda":
            import torch

            torch.cuda.synchronize()
