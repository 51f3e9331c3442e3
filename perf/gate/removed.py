"""Rows that a commit takes out of the suite: no later gate judges them, so the report says so."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from perf.files import scratch_folder
from perf.gate import checkouts
from perf.gate.evidence import Arm
from perf.harness.working_tree import ROOT

SUITE = "perf"


def removed_rows(base: Arm, head: Arm) -> tuple[str, ...]:
    """Return the keys of the rows that base's suite lists and head's does not; none if either cannot list its rows."""
    if not any(path.startswith(f"{SUITE}/") for path in checkouts.changed_paths(base, head)):
        return ()
    with scratch_folder("perf-gate-suites-") as folder, ThreadPoolExecutor(2) as threads:
        before, after = threads.map(_listed, (base, head), (folder / "base", folder / "head"))
    return tuple(sorted(before - after)) if after else ()


def _listed(arm: Arm, folder: Path) -> set[str]:
    place = ROOT
    if arm.commit != checkouts.WORKING_TREE:
        checkouts.export(arm, folder)
        checkouts.export(arm, folder, SUITE)
        place = folder
    command = [sys.executable, "-m", "perf", "case", "--list"]
    environment = os.environ | {"PYTHONPATH": str(place)}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    return set(done.stdout.splitlines()) if done.returncode == 0 else set()
