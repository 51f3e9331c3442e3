"""Whatever measures is refused in one line while another measurement has the device."""

import pytest
from click.testing import CliRunner

from perf.__main__ import main
from perf.harness.lock import measuring
from perf.studies import CALCULATED, STUDIES
from tests.repositories import needs_checkout

MEASURING = {
    "gate": ["gate", "HEAD", "--set", "smoke", "--no-tests"],
    "self-test": ["self-test", "--set", "smoke"],
    "mutations": ["mutations", "HEAD", "-k", "tile table"],
    "case": ["case", "SmokeControls"],
    "profile": ["case", "SmokeControls('copy')", "--profile", "torch"],
} | {f"study {name}": ["study", name] for name in STUDIES if name not in CALCULATED}


@pytest.mark.parametrize(
    "command", [pytest.param(one, marks=[needs_checkout] * (one == "mutations")) for one in MEASURING]
)
def test_a_second_measurement_is_refused_with_the_name_of_the_first(command):
    with measuring("python -m perf gate main"):
        done = CliRunner().invoke(main, MEASURING[command])
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code != 0
    (line,) = (line for line in done.output.splitlines() if line.startswith("Error: "))
    assert "python -m perf gate main" in line


@pytest.mark.parametrize("command", [["case", "SmokeControls", "--list"], ["study", "attention", "--help"]])
def test_what_measures_nothing_is_not(command):
    with measuring("python -m perf gate main"):
        assert CliRunner().invoke(main, command).exit_code == 0
