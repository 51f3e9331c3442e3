"""Rows that a commit takes out of the suite: no later gate judges them, so the report says so."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from perf.gate import checkouts
from perf.gate.evidence import Arm

SUITE = "perf"


def removed_rows(arms: tuple[Arm, Arm], places: tuple[Path, Path]) -> tuple[str, ...]:
    """Return the keys of the rows that base's suite lists and head's does not; none if either cannot list its rows.

    The suites are put beside the packages in `places`.
    """
    if not any(path.startswith(f"{SUITE}/") for path in checkouts.changed_paths(*arms)):
        return ()
    with ThreadPoolExecutor(2) as threads:
        before, after = threads.map(_listed, arms, places)
    return tuple(sorted(before - after)) if after else ()


def _listed(arm: Arm, place: Path) -> set[str]:
    checkouts.export(arm, place, SUITE)
    command = [sys.executable, "-m", "perf", "case", "--list"]
    environment = os.environ | {"PYTHONPATH": str(place)}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    return set(done.stdout.splitlines()) if done.returncode == 0 else set()
