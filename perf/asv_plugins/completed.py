"""Publish the cases that only the records have, as those of a killed run, with asv's results."""

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asv.commands import publish
from asv.plugins import regressions

from perf.harness import HARNESS_VERSION
from perf.site.completed import complete
from perf.stored import problem_of_benchmark


def _completing(iterate: Any) -> Any:
    @functools.wraps(iterate)
    def completed(results_dir: str) -> Iterator[Any]:
        folder = Path(results_dir)
        document = json.loads((folder / "benchmarks.json").read_text(encoding="utf-8"))  # asv has read it before
        known = {
            name: one for name, one in document.items() if name != "version" and not problem_of_benchmark(name, one)
        }
        for results in iterate(results_dir):
            complete(results, known, folder.parent / "records", HARNESS_VERSION)
            yield results

    return completed


def install() -> None:
    """Wrap asv's function in both modules that publish from it, once a process."""
    for module in (publish, regressions):
        if not hasattr(module.iter_results, "__wrapped__"):
            module.iter_results = _completing(module.iter_results)
