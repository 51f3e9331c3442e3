"""Which torch and triton are installed: the pins, the constraints of CI, and what the READMEs say of both."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
READMES = ROOT / "README.md", ROOT / "README.zh.md"


def requirements(lines):
    found = [Requirement(line) for line in lines]
    return {one.name: one.specifier for one in found if one.name in ("torch", "triton")}


PINS = requirements(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"])
CONSTRAINTS = requirements(
    line for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if not line.startswith("#")
)


def test_the_constraints_are_one_version_each_which_the_pins_accept():
    for name, specifier in CONSTRAINTS.items():
        (one,) = specifier
        assert one.operator == "==" and one.version in PINS[name], name


def test_ci_installs_and_tests_as_both_readmes_say():
    (install,) = re.findall(r"^pip install -q (.+)$", (ROOT / ".ci" / "run").read_text(), re.M)
    for readme in READMES:
        assert f"\npip install {install} && pytest\n" in readme.read_text(encoding="utf-8"), readme.name


def test_both_readmes_name_the_oldest_and_the_newest_that_the_pins_accept():
    for readme in READMES:
        text = " ".join(readme.read_text(encoding="utf-8").split())
        for name, specifier in PINS.items():
            ((oldest, newest),) = re.findall(rf"\b{name} (\d+\.\d+) ?(?:-|to|到) ?(\d+\.\d+)", text)
            major, minor = newest.split(".")
            assert f"{oldest}.0" in specifier and f"{newest}.0" in specifier, (readme.name, name)
            assert f"{major}.{int(minor) + 1}.0" not in specifier, (readme.name, name)
