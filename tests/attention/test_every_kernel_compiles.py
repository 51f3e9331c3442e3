"""Every kernel of the library compiles for compute capability 9.0 with the installed triton; no GPU is needed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "cs336_systems"


@pytest.mark.slow
def test_every_kernel_compiles_for_hopper() -> None:
    """Gluon's too, whose names change between releases: a GPU would be the first to say so."""
    source = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    kernels = re.findall(r"^@(?:triton|gluon)\.jit.*\ndef (\w+_kernel)\(", source, re.M)
    command = [sys.executable, "-m", "tests.attention.every_kernel_compiled"]
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert len(kernels) > 10 and sorted(kernels) == done.stdout.split()
