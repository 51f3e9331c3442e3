"""What asv reads is checked, and what is wrong with it is said in a line."""

from collections.abc import Iterator
from typing import Any

import pytest

from perf.asv_plugins import checked


class Benchmarks:
    """As asv's, which finds two."""

    @classmethod
    def discover(cls, *arguments: Any, regex: Any = None) -> list[Any]:
        return [*arguments, regex]


def test_a_class_that_cannot_run_is_named_with_the_reason_before_asv_looks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def classes() -> Iterator[tuple[str, Any, str]]:
        yield "smoke.Sound", Benchmarks, ""
        yield "smoke.Unsound", None, "perf/benchmarks/smoke.py: Unsound: version is missing"

    said: list[str] = []
    monkeypatch.setattr(checked, "asv_classes", classes)
    monkeypatch.setattr(checked.log, "error", said.append)
    monkeypatch.setattr(Benchmarks, "discover", checked._naming_unsound_classes(Benchmarks.discover))
    assert Benchmarks.discover("conf", regex="x") == ["conf", "x"]
    assert said == ["perf/benchmarks/smoke.py: Unsound: version is missing"]
