"""What asv reads is checked, and what is wrong with it is said in a line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asv.results import Results
from asv.util import UserError

from perf.asv_plugins import checked


class Benchmarks:
    """As asv's, which finds two."""

    @classmethod
    def discover(cls, *arguments: Any, regex: Any = None) -> dict[str, Any]:
        shared = {"params": [["1"]], "param_names": ["n"], "unit": "s"}
        entries = {"mine.Sound.track_time": shared, "mine.Mine.track_time": shared | {"params": [["torch.float32"]]}}
        return {name: entry | {"name": name, "given": (*arguments, regex)} for name, entry in entries.items()}


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
    (found,) = Benchmarks.discover("conf", regex="x").values()
    assert (found["name"], found["given"]) == ("mine.Sound.track_time", ("conf", "x"))
    assert said[0] == "perf/benchmarks/smoke.py: Unsound: version is missing"
    assert len(said) == 2 and said[1].startswith("mine.Mine.track_time is left out: "), "its row could not be read"


@pytest.mark.parametrize(("finds", "own", "status"), [([], 0, 0), (["why"], 0, 1), (["why"], 3, 3)])
def test_a_command_that_finds_such_a_class_fails(finds: list[str], own: int, status: int) -> None:
    reasons: list[str] = []

    class Command:
        @classmethod
        def run(cls) -> int:
            reasons.extend(finds)
            return own

    assert checked._failing(Command.run, 1, reasons).__func__(Command) == status


@pytest.mark.parametrize("version", [None, "2", [2], {}])
def test_a_version_that_is_no_number_is_one_line(version: Any, tmp_path: Path) -> None:
    checked.install()
    path = tmp_path / "m" / "aaaaaaaa-linked.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"version": version}))
    with pytest.raises(UserError, match=rf"^{path} .*version is no number$"):
        Results.load(str(path))
