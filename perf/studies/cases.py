"""Cases of a study, measured as those of the suite are."""

from collections.abc import Iterator
from typing import Any

import click

from perf.harness import working_tree
from perf.harness.case import Case
from perf.harness.preflight import objection
from perf.harness.records import counted_samples
from perf.harness.worker_process import WorkerProcess
from perf.harness.working_tree import ROOT
from perf.studies.device import Device
from perf.studies.progress import progress
from perf.studies.rows import Row, refused

STOP = {"min_samples": 10, "max_samples": 40, "max_seconds": 2.0}
"""Fields of `clock.Stop`."""

LIMIT_S = 600.0
"""A visit that takes longer has hung; its first call may compile for minutes."""


def measured_rows(
    workload: str, settings: list[dict[str, Any]], device: Device, stop: dict[str, Any] = STOP
) -> Iterator[Row]:
    """Yield each setting (params of a workload, which may have a clock) with samples_s, facts and status.

    Each is measured as an asv case is: one visit checks the output and takes facts and peak memory, the next samples.
    Raises `click.ClickException` where the GPUs are busy or broken.
    """
    working_tree.make_importable()
    worker = WorkerProcess(device, ROOT)
    try:
        greeting = worker.start()
        if trouble := objection(greeting.get("troubles", ())):
            raise click.ClickException(trouble)
        for params in progress(settings, unit="case"):
            if not worker.alive():
                worker.stop()
                greeting = worker.start()
            if reason := greeting.get("unavailable"):
                yield {"device": device} | params | {"status": "unavailable", "reason": reason}
            else:
                case = Case("study", workload, params, device, params.get("clock", "ranks"), "warm")
                row = _visit_twice(worker, case, stop, greeting["ceilings"])
                if row["status"] == "error":
                    click.echo(worker.last_output(), err=True)  # the traceback
                yield {"device": device} | params | row
    finally:
        worker.stop()


def _visit_twice(worker: WorkerProcess, case: Case, stop: dict[str, Any], ceilings: dict[str, Any]) -> Row:
    request = {"case": case.to_json(), "stop": stop, "ceilings": ceilings}
    checked = worker.ask(request | {"first": True}, LIMIT_S)
    if checked["status"] != "ok":
        return refused(checked)
    sampled = worker.ask(request | {"first": False}, LIMIT_S)
    if sampled["status"] != "ok":
        return refused(sampled)
    samples_s = list(counted_samples(sampled))
    row = {"status": "ok", "error": checked["error"], "samples_s": samples_s, "facts": checked.get("facts", {})}
    return row | ({"peak_bytes": checked["peak_bytes"]} if "peak_bytes" in checked else {})
