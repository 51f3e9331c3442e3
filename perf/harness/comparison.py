"""The engine of comparisons: arms alternate in one process, sample by sample, then in others, until enough is known.

`compare` starts process after process as a stopping rule demands (`Looks`, `Pilot`). In each of them a `Comparer` holds
all arms at once and samples them in turn. What differs between the comparisons of this repository is data:

    comparison      arms                            processes                           samples of an arm in a process
    gate            two commits of one case         `Looks`: open rows go on            `Rounds()`, six visits a row
    attention       implementations of a cell       `Pilot` of each cell                `Rounds(rounds, 5 s)`
    train-step      ways to run a step              `Pilot` of each model               exactly --rounds
    parallel-step,  ways to share a step            one `Pilot` of all rows             exactly --rounds
      fsdp
    tiles           tiles of a kernel               as many as asked for                --rounds, without the slow

Arms of two environments, which no process holds at once, take turns in `two_processes`.
"""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from perf.harness.case import ARMS, Cache
from perf.harness.clock import Clock, alternate
from perf.harness.instruments import Instruments
from perf.workloads.workload import Workload

C = TypeVar("C")
T = TypeVar("T")

Until = Callable[[Sequence[C], int], Sequence[C]]
"""A stopping rule: the comparisons that the next process measures, given all of them and the number of processes."""

Held = Mapping[str, tuple[Clock, Workload]]
"""Arms by name, built and warmed up, each with a clock of its own: a clock knows the work that it has warmed up."""

Reply = dict[str, Any]
"""The result of one arm: status and reason; if ok, flops, error (if checked), samples_s and perhaps sm_mhz."""


def compare(
    comparisons: Sequence[C], until: Until[C], measure: Callable[[Sequence[C], int], Iterable[T]]
) -> Iterator[T]:
    """Run `measure(comparisons, number)` in process after process with those that `until` still wants measured."""
    number = 0
    while wanted := until(comparisons, number):
        yield from measure(wanted, number)
        number += 1


class Pilot(Generic[C]):
    """Stopping rule: the scatter of the first processes fixes, once, how many each comparison gets (Stein 1945)."""

    def __init__(self, pilot: int, most: int, wanted: Callable[[C], int]):
        self._pilot, self._most, self._wanted = pilot, most, wanted
        self.number_of: list[int] = []
        """Processes of each comparison; empty until the pilot is over."""

    def __call__(self, comparisons: Sequence[C], processes: int) -> Sequence[C]:
        """Return the comparisons that want more than so many processes."""
        if processes == self._pilot < self._most:
            self.number_of = [self._wanted(each) for each in comparisons]
        numbers = self.number_of or [self._most] * len(comparisons)
        return [each for each, number in zip(comparisons, numbers, strict=True) if processes < number]


class Looks(Generic[C]):
    """Stopping rule: after so many processes `still_open` picks those that go on until the next look.

    `can_go_on` says whether another process can add anything to those picked last; if not, the next look comes at once.
    """

    def __init__(
        self,
        looks: Sequence[int],
        still_open: Callable[[Sequence[C]], Sequence[C]],
        can_go_on: Callable[[Sequence[C]], bool],
    ):
        self._looks, self._still_open, self._can_go_on = list(looks), still_open, can_go_on
        self._open: Sequence[C] | None = None

    def __call__(self, comparisons: Sequence[C], processes: int) -> Sequence[C]:
        """Return the comparisons that are open after so many processes."""
        if self._open is None:
            self._open = comparisons
        while self._looks:
            if processes < self._looks[0] and self._can_go_on(self._open):
                return self._open
            del self._looks[0]
            self._open = self._still_open(comparisons)
        return ()


@dataclass(frozen=True)
class Rounds:
    """Number of samples of each arm: as many as fit into the seconds, at most `most`, and never below 2."""

    most: int = 40
    seconds: float = 0.25

    def number(self, round_s: float) -> int:
        """Return the number for rounds of `round_s` each; even, so that each arm is first as often as last."""
        return max(2, 2 * int(min(self.most, self.seconds / round_s) / 2))


@dataclass(frozen=True)
class ComparedArm:
    """One of several ways to do the same work."""

    name: str
    build: Callable[[], Workload]
    new_clock: Callable[[], Clock]
    is_checked: bool = True
    """True to compare the output with its oracle; once for all processes is enough."""


def paired(stays: Mapping[str, Sequence[Sequence[int]]]) -> dict[str, list[int]]:
    """Return ARM_ns for base and head, whose n-th samples were taken at about the same time.

    `stays` holds the samples of each uninterrupted stay of an arm. Both arms keep as many of a stay as the shorter one.
    """
    samples: dict[str, list[int]] = {f"{arm}_ns": [] for arm in ARMS}
    for of_both in zip(*(stays[arm] for arm in ARMS), strict=True):
        count = min(map(len, of_both))
        for arm, stay in zip(ARMS, of_both, strict=True):
            samples[f"{arm}_ns"] += stay[:count]
    return samples


class Turns(NamedTuple):
    """Samples of several arms, taken in turn."""

    samples_s: dict[str, list[float]]
    """Seconds of each arm, round by round, without the rounds in `slow`."""

    mhz: dict[str, float | None]
    """Mean SM clock while the samples of each arm ran; None where the device does not say."""

    slow: dict[int, list[str]]
    """Rounds in which the device reported that it was slowing itself down, with its reasons."""


class Comparer:
    """Holds several arms at once, and samples them in turn."""

    def __init__(self, instruments: Instruments):
        self.instruments = instruments

    def take_turns(
        self,
        arms: Sequence[ComparedArm],
        cache: Cache,
        rounds: Callable[[float], int],
        *,
        all_or_none: bool = False,
        order: Sequence[str] = (),
        too_slow: Callable[[Mapping[str, float]], Mapping[str, str]] = lambda first_s: {},
    ) -> dict[str, Reply]:
        """Build the arms in this order, check them, warm up, and sample them in turn: A B C, C B A.

        `rounds` gives the number of samples of each arm from the seconds that a round takes; `order` names the arms in
        the order of sampling, if that is another. `too_slow` gives reasons not to sample an arm, from the
        seconds of a first call of each.

        An arm that fails costs the others nothing. `all_or_none` is for arms that barely fit together: each is warmed
        up, and its leftovers are released, before the next is built; the first that fails is the only reply. The same
        goes for an arm that broke the device, after which this process has to end.
        """
        self.instruments.leftovers.release()
        replies: dict[str, Reply] = {}
        held: dict[str, tuple[Clock, Workload]] = {}
        steps = [(arm.name, partial(self._build_arm, arm, held, all_or_none)) for arm in arms]
        steps += [(arm.name, partial(self._warm_up_arm, arm.name, held)) for arm in arms]
        for name, step in steps:
            if name in replies and replies[name]["status"] != "ok":
                continue
            reply = self.instruments.with_status(step)
            if reply["status"] != "ok":
                held.pop(name, None)
            replies[name] = replies.get(name, {}) | reply if reply["status"] == "ok" else reply
            if not self.instruments.usable or (all_or_none and reply["status"] != "ok"):
                return {name: reply}
        for name, reason in too_slow({name: clock.call_s for name, (clock, _) in held.items()}).items():
            replies[name] |= {"status": "too_slow", "reason": reason}
            del held[name]
        if held:
            self._add_samples(replies, {name: held[name] for name in order or held}, cache, rounds)
        return replies

    def _build_arm(self, arm: ComparedArm, held: dict[str, tuple[Clock, Workload]], is_tight: bool) -> Reply:
        """Build one arm and run it once, which may compile."""
        work, clock = arm.build(), arm.new_clock()
        self._run_once(work)
        reply = {"flops": work.floor.flops} | ({"error": self._check(work)} if arm.is_checked else {})
        held[arm.name] = clock, work
        if is_tight:
            clock.warm_up(work)
            self._empty_cache()
        return reply

    def _run_once(self, work: Workload) -> None:
        work.prepare()
        work.run()
        self.instruments.synchronize()

    def _check(self, work: Workload) -> float:
        """Compare the output of the last run with the oracle; return the error."""
        return work.check()

    def _warm_up_arm(self, name: str, held: Held) -> Reply:
        clock, work = held[name]
        clock.warm_up(work)
        return {}

    def _add_samples(self, replies: dict[str, Reply], held: Held, cache: Cache, rounds: Callable[[float], int]) -> None:
        taken: dict[str, Turns] = {}

        def take() -> Reply:
            count = rounds(sum(clock.call_s for clock, _ in held.values()))
            taken["turns"] = turns = self._alternate(held, cache, count)
            if count - len(turns.slow) >= 2:
                return {}
            reasons = dict.fromkeys(reason for reported in turns.slow.values() for reason in reported)
            return {"status": "throttled", "reason": f"the GPU slowed itself down: {', '.join(reasons)}"}

        def of_arm(name: str, turns: Turns) -> Reply:
            self.instruments.require_above_floor(turns.samples_s[name], held[name][1], cache)
            mhz = turns.mhz[name]
            return {"samples_s": turns.samples_s[name]} | ({} if mhz is None else {"sm_mhz": mhz})

        outcome = self.instruments.with_status(take)
        for name in held:
            ok = outcome["status"] == "ok"
            replies[name] |= self.instruments.with_status(partial(of_arm, name, taken["turns"])) if ok else outcome

    def sample_in_turn(self, held: Held, cache: Cache, count: int) -> Turns:
        """Take `count` samples of each arm in turn. Raises `TooFast` for samples below an arm's floor."""
        turns = self._alternate(held, cache, count)
        for name, (_, work) in held.items():
            self.instruments.require_above_floor(turns.samples_s[name], work, cache)
        return turns

    def _alternate(self, held: Held, cache: Cache, count: int) -> Turns:
        """Call `clock.alternate`, and read the GPU's clock and throttle reasons meanwhile."""
        mhz: dict[str, list[int]] = {name: [] for name in held}
        slow: dict[int, list[str]] = {}
        names = list(held)

        def look(arm: int, number: int) -> None:
            if nvml := self.instruments.nvml:
                mhz[names[arm]].append(nvml.sm_mhz())
                if reasons := nvml.throttling():
                    slow.setdefault(number, []).extend(reasons)

        samples = alternate(list(held.values()), cache, count, look)
        return Turns(
            {
                name: [sample for number, sample in enumerate(own) if number not in slow]
                for name, own in zip(names, samples, strict=True)
            },
            {name: round(statistics.fmean(read), 1) if read else None for name, read in mhz.items()},
            slow,
        )

    def _empty_cache(self) -> None:
        """Give the driver what building and warming up left: the next arm may need it."""
        if self.instruments.device == "cuda":
            import torch

            torch.cuda.empty_cache()
