"""Plan and compile with a process an arm, and return one report."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from perf.files import scratch_folder
from perf.gate import checkouts
from perf.gate.evidence import Arm
from perf.gate.machine_code.compared import Comparison, Plan, Report, compare, unlike
from perf.gate.unreached import change_between
from perf.harness.case import Case
from perf.harness.json_process import JsonProcess
from perf.harness.working_tree import ROOT

CACHE = ROOT / ".asv" / "machine-code"
"""What was compiled before, by the digest of everything that it depends on."""

ENVIRONMENT = {
    "TRITON_INTERPRET": "0",
    "TRITON_DISABLE_LINE_INFO": "1",  # with it a comment changes machine code
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
}


def run(arms: tuple[Arm, Arm], cases: Sequence[Case], targets: Sequence[str], command: str) -> Report:
    """Compare the machine code of the cases' kernels. Raises `click.ClickException` with one line."""
    begin = time.monotonic()
    found: dict[str, Comparison] = {}
    compiled = 0
    jobs = max(1, (os.cpu_count() or 2) // len(arms))
    with (
        checkouts.exported(*arms) as places,
        scratch_folder("perf-machine-code-") as folder,
        ThreadPoolExecutor(len(arms)) as threads,
    ):
        change = change_between(*arms, places)
        if change and not (change.uncovered or change.is_of_definitions):
            click.echo("No definition of the package differs", err=True)
            nothing = Comparison((), tuple(case.key for case in cases), {}, {}, {}, ())
            found, targets = dict.fromkeys(targets, nothing), ()
        for target in targets:
            with _planner(places[0], target, folder) as base, _planner(places[1], target, folder) as head:
                planners = base, head
                click.echo(f"Planning {len(cases)} rows of both commits for compute capability {target}", err=True)
                plans = list(threads.map(lambda planner: planner.plan(cases), planners))
                digests = unlike(*plans)
                compiled += sum(map(len, digests))
                click.echo(f"Compiling {len(digests[0])} and {len(digests[1])} kernels", err=True)
                results = list(threads.map(lambda planner, own: planner.compile(own, jobs), planners, digests))
            found[target] = compare(target, *plans, *results)
    return Report(*arms, found, compiled, version("triton"), round(time.monotonic() - begin, 1), command)


@dataclass
class _Planner:
    """A process that has one commit's package and a GPU that is not there; see `worker`."""

    process: JsonProcess

    def plan(self, cases: Sequence[Case]) -> Plan:
        """Return what the cases launch."""
        reply = next(self._ask({"cases": [case.to_json() for case in cases]}, 1))
        return Plan(reply["rows"], reply["kernels"])

    def compile(self, digests: Sequence[str], jobs: int) -> dict[str, dict[str, Any]]:
        """Return what became of kernels of the plan, by digest."""
        replies = self._ask({"compile": list(digests), "jobs": jobs}, len(digests))
        return {reply.pop("digest"): reply for reply in replies}

    def _ask(self, request: dict[str, Any], replies: int) -> Iterator[dict[str, Any]]:
        self.process.send(request)
        for _ in range(replies):
            if (reply := self.process.reply()) is None:
                said = self.process.log().strip().splitlines() or ["no output"]
                raise click.ClickException(f"the process that plans launches ended: {said[-1]}")
            yield reply


@contextlib.contextmanager
def _planner(checkout: Path, target: str, folder: Path) -> Iterator[_Planner]:
    command = [sys.executable, "-m", "perf.gate.machine_code.worker", str(checkout), target, str(CACHE)]
    environment = ENVIRONMENT | {"TRITON_CACHE_DIR": str(folder / "triton")}
    with contextlib.closing(JsonProcess(command, folder=folder, environment=environment)) as process:
        yield _Planner(process)
