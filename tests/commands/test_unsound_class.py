"""A benchmark class with a missing or wrong attribute: a line with the class, the attribute and what is allowed."""

import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from perf import benchmarks, selection
from perf.__main__ import main
from perf.harness.suite import measure_class
from tests.repositories import needs_checkout

SOUND: dict[str, Any] = {
    "version": "1",
    "timeout": 60,
    "negligible": (0.01, 1e-6),
    "params": (["copy"],),
    "param_names": ("control",),
    "workload": "controls",
    "device": "cpu",
    "clock": "wall",
    "cache": "warm",
    "setup_cache": "method",
}

WRONG: dict[str, tuple[Any, str]] = {
    "version": (1, "string"),
    "timeout": ("60", "seconds"),
    "negligible": (0.01, "share"),
    "params": (["copy"], "each axis"),
    "param_names": (("control", "cache", "more"), "as many"),
    "workload": ("contrls", "perf/workloads"),
    "device": ("gpu", "'cuda' or 'cpu'"),
    "clock": ("cuda_event", "'cuda_events'"),
    "cache": ("hot", "'cold' or 'warm'"),
}

METHODS = """
    def track_time(self, results, control):
        pass
"""


@pytest.fixture
def declare(tmp_path, monkeypatch):
    """Make a class with these attributes the only one of the suite."""

    def write(attributes):
        lines = [f"    {name} = {value!r}" for name, value in attributes.items() if value != "method"]
        if "setup_cache" in attributes:
            lines.append("    def setup_cache(self):\n        pass")
        (tmp_path / "made_up.py").write_text("\n".join(["class MadeUp:", *lines]) + METHODS)
        selection._class_by_name.cache_clear()

    monkeypatch.setattr(benchmarks, "__path__", [str(tmp_path)])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield write
    sys.modules.pop("perf.benchmarks.made_up", None)
    selection._class_by_name.cache_clear()


def test_a_sound_class_is_taken(declare):
    declare(SOUND)
    ((name, cls, reason),) = selection.asv_classes()
    assert name == "made_up.MadeUp" and cls is not None and not reason


@pytest.mark.parametrize("axis", ["clock", "cache"])
def test_an_axis_of_the_name_is_as_good(declare, axis):
    declare({**SOUND, "params": ([SOUND[axis]],), "param_names": (axis,)} | {axis: SOUND[axis]})
    without = {name: value for name, value in SOUND.items() if name != axis}
    declare(without | {"params": ([SOUND[axis]],), "param_names": (axis,)})
    ((_, cls, reason),) = selection.asv_classes()
    assert cls is not None, reason


@pytest.mark.parametrize("name", SOUND)
def test_a_missing_attribute_is_named(declare, name):
    declare({other: value for other, value in SOUND.items() if other != name})
    ((_, cls, reason),) = selection.asv_classes()
    assert cls is None
    assert "MadeUp" in reason and f"{name} is missing" in reason and "allowed" in reason


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_attribute_is_named_with_what_is_allowed(declare, name):
    value, allowed = WRONG[name]
    declare(SOUND | {name: value})
    ((_, cls, reason),) = selection.asv_classes()
    assert cls is None
    assert "MadeUp" in reason and name in reason and allowed in reason


COMMANDS = {
    "gate": ["gate", "HEAD", "--dry-run", "--set", "gpu"],
    "case": ["case", "MadeUp"],
    "list": ["case", "--list"],
    "missed": ["missed", "gpu", "--machine", "m"],
    "select": ["select", "gpu", "--shard", "1/2"],
    "doctor": ["doctor"],
    "margins": ["study", "margins"],
}


OF_COMMITS = ("gate", "doctor")
"""Commands that read commits before classes."""


@pytest.mark.parametrize("attribute", ["workload", "negligible", "params"])
@pytest.mark.parametrize(
    "command", [pytest.param(one, marks=[needs_checkout] * (one in OF_COMMITS)) for one in COMMANDS]
)
def test_no_command_ends_in_a_traceback(declare, command, attribute, tmp_path):
    declare({other: value for other, value in SOUND.items() if other != attribute})
    done: Result = CliRunner().invoke(main, COMMANDS[command], env={"PERF_MACHINE_FILE": str(Path(tmp_path) / "no")})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code != 0
    assert f"{attribute} is missing" in " ".join(done.output.split())


def test_asv_is_told_in_a_line_too():
    class MadeUp:
        version = "1"

        def setup_cache(self):
            return measure_class(self)

    with pytest.raises(SystemExit, match=r"test_unsound_class\.MadeUp: .*workload is missing"):
        MadeUp().setup_cache()
