"""The host's time of a call: 30 us planted in it are found, and identical code is the same, whatever interrupts it."""

import dataclasses
import math
import random
import time

import pytest

from perf.gate.evidence import Evidence, Outcome, PairedVisit
from perf.gate.judge import judge, open_rows
from perf.gate.verdicts import LOOKS
from perf.harness import ceilings
from perf.harness.case import Case
from perf.harness.clock import MAX_CALLS, MAX_CALLS_S, HostClock, alternate, host_samples
from perf.workloads.workload import Floor, Workload

CALL_S = 145e-6
CASE = Case("host.AttentionCall", "host", {}, "cuda", "host", "warm")


class Host:
    """A clock that only calls move, and a host that other programs interrupt in every second call."""

    def __init__(self, monkeypatch, seed=0):
        self.now, self.log, self._chance = 0.0, [], random.Random(seed)
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def work(self, seconds, drift=1.0):
        def run():
            self.log.append("run")
            self.now += drift * seconds * (1 + 0.002 * self._chance.random())
            if self._chance.random() < 0.5:
                self.now += self._chance.expovariate(1 / 200e-6)

        return Workload(run=run, check=lambda: 0.0, floor=Floor(), prepare=lambda: self.log.append("prepare"))

    def drain(self):
        self.log.append("drain")
        self.now += 1.0


def test_the_device_is_drained_before_each_call_and_outside_its_time(monkeypatch):
    host = Host(monkeypatch)
    (sample,) = host_samples(host.work(CALL_S), "warm", 1, CALL_S, drain=host.drain)
    assert host.log == ["prepare", "drain", "run"] * MAX_CALLS
    assert sample == pytest.approx(CALL_S, rel=0.002)


@pytest.mark.parametrize(("call_s", "calls"), [(0.0, MAX_CALLS), (MAX_CALLS_S / 3, 3), (2.0, 1)])
def test_long_work_is_called_less_often(call_s, calls, monkeypatch):
    host = Host(monkeypatch)
    host_samples(host.work(call_s), "warm", 2, call_s)
    assert host.log.count("run") == 2 * calls


def test_a_cold_cache_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="'cold' was given"):
        HostClock().batch(Host(monkeypatch).work(CALL_S), "cold", 1)


def measured(monkeypatch, planted_s, seed):
    """A row as a gate measures it, in as many processes as its rules want, each process with a drift of its own."""
    host, chance = Host(monkeypatch, seed), random.Random(seed)
    row = Evidence(CASE, (0.05, 1e-6), False, {arm: Outcome("ok") for arm in ("base", "head")}, [])
    for process in range(LOOKS[-1]):
        if process in LOOKS and not open_rows([row]):
            break
        drift = math.exp(chance.gauss(0, 0.05))
        for visit in range(6):
            arms = [(HostClock(), host.work(seconds, drift)) for seconds in (CALL_S, CALL_S + planted_s)]
            base_s, head_s = map(tuple, alternate(arms, "warm", 8))
            row.visits.append(PairedVisit(process, visit, base_s, head_s))
    return judge([row]).verdicts[0]


def test_a_gate_finds_30_us_and_calls_identical_code_the_same(monkeypatch):
    found = measured(monkeypatch, 30e-6, seed=0)
    assert found.word == "SLOWER"
    assert found.low < 30e-6 / CALL_S < found.high
    assert [measured(monkeypatch, 0.0, seed).word for seed in range(1, 9)] == ["SAME"] * 8


def test_a_call_quicker_than_its_bare_launches_is_an_error():
    rates = ceilings.measure(HostClock(), {ceilings.LAUNCH})
    launch_s = 1 / rates["launches_per_s"]
    two = Floor(launches=2)
    ceilings.require_floor(2 * launch_s, two, rates, "warm", 0)
    with pytest.raises(ceilings.TooFast, match="2 launches"):
        ceilings.require_floor(1.8 * launch_s, two, rates, "warm", 0)
    assert not ceilings.undercut(0.0, dataclasses.replace(two, launches=0), rates, "warm", 0)
