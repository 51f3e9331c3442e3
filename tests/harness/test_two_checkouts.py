"""Two checkouts in one process: each imports itself, however it names the package."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
VALUE = """
import importlib

import torch

import cs336_systems.part
import cs336_systems.part as under_another_name
from cs336_systems import part
from cs336_systems.part import NUMBER

from .part import NUMBER as RELATIVE


@torch.library.custom_op("cs336_systems::number", mutates_args=())
def operator(x: torch.Tensor) -> torch.Tensor:
    return x * NUMBER


def lazily():
    from cs336_systems.inner.deep import DEEP

    return DEEP


def every_way():
    return [
        cs336_systems.part.NUMBER,
        under_another_name.NUMBER,
        part.NUMBER,
        NUMBER,
        RELATIVE,
        lazily(),
        importlib.import_module("cs336_systems.part").NUMBER,
        int(torch.ops.cs336_systems.number(torch.ones(()))),
        int(operator(torch.ones(()))),
    ]


def scaled(x):
    return x * part.NUMBER


def computed():
    return importlib.import_module("_".join(("cs336", "systems")) + ".part")
"""


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arms")
    for arm, number in (("base", 1), ("head", 2)):
        package = folder / arm / "cs336_systems"
        (package / "inner").mkdir(parents=True)
        for name in ("__init__.py", "inner/__init__.py"):
            (package / name).write_text("")
        (package / "part.py").write_text(f"NUMBER = {number}\n")
        (package / "inner" / "deep.py").write_text(f"DEEP = {number}\n")
        (package / "value.py").write_text(VALUE)
    return folder


SCRIPT = """
import sys
from pathlib import Path
project, arms = map(Path, sys.argv[1:])
sys.path.insert(0, str(project))
from perf.harness.two_checkouts import load
load(arms / "base", "a")
load(arms / "head", "b")

import importlib, json, traceback
import torch
import b.value, a.value
from perf import workloads

def ours(arm, x): return arm.scaled(x)
fused = torch.compile(ours, backend="eager", fullgraph=True)

def error_of(call):
    try: call()
    except Exception: return traceback.format_exc()

def reason_of(module, name):
    try: workloads.measured(module, name)
    except workloads.Unavailable as reason: return str(reason)

seen = {
    "every way": [a.value.every_way(), b.value.every_way()],
    "compiled": [float(fused(arm.value, torch.ones(()))) for arm in (a, b)],
    "computed": error_of(a.value.computed),
    "broken": error_of(lambda: __import__("a.broken")),
    "nowhere": load(Path("/nowhere"), "c"),
}
with workloads.importing("c"):
    seen["no package"] = reason_of("part", "NUMBER")
for arm in "pq":
    load(project, arm)
x = torch.randn(3, 1, 16, 16, device="cuda" if torch.cuda.is_available() else "cpu")
outs, seen["models"] = [], []
for arm in "pq":
    attend = importlib.import_module(arm + ".attention.flash_triton").FlashAttentionTriton
    outs.append(attend.apply(*x, True))
    config = importlib.import_module(arm + ".configs").ModelConfig(64, 32, 128, 1, 2)
    attend = importlib.import_module(arm + ".attention.api").flash_attention
    model = importlib.import_module(arm + ".transformer").TransformerLM(config, 8, attend)
    seen["models"].append(type(model).__module__)
seen["equal"] = torch.equal(*outs)
seen["under its own name"] = [name for name in sys.modules if name.partition(".")[0] == "cs336_systems"]
with workloads.importing("b"):
    seen["number"] = workloads.measured("part", "NUMBER")
    seen["absent"] = [reason_of("none", "NUMBER"), reason_of("part", "NONE")]
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def seen(arms: Path) -> dict[str, Any]:
    """What a process sees that has loaded both arms, and this project twice; Python has compiled the arms before."""
    (arms / "base" / "cs336_systems" / "broken.py").write_text('"""text"""\n\nraise ValueError("here")\n')
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(arms)], check=True)
    command = [sys.executable, "-c", SCRIPT, str(ROOT), str(arms)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_each_arm_sees_itself_under_every_name_whatever_python_has_compiled_before(seen: dict[str, Any]) -> None:
    assert seen["every way"] == [[1] * 9, [2] * 9]


def test_the_compiler_tells_the_arms_apart(seen: dict[str, Any]) -> None:
    assert seen["compiled"] == [1.0, 2.0]


def test_a_name_made_at_run_time_is_refused(seen: dict[str, Any]) -> None:
    assert "ImportError: cs336_systems" in seen["computed"]


def test_an_error_names_the_line_of_the_checkout(seen: dict[str, Any], arms: Path) -> None:
    assert f'File "{arms}/base/cs336_systems/broken.py", line 3' in seen["broken"]


def test_a_checkout_without_the_package_has_none(seen: dict[str, Any]) -> None:
    assert seen["nowhere"] is False and seen["number"] == 2
    assert seen["no package"].endswith(" cs336_systems")
    assert [reason.split()[-1] for reason in seen["absent"]] == ["cs336_systems.none", "cs336_systems.part.NONE"]


def test_this_project_runs_beside_itself(seen: dict[str, Any]) -> None:
    """Kernels included: Triton reads their text from the file and finds their helpers in the module."""
    assert seen["models"] == ["p.transformer", "q.transformer"]
    assert seen["equal"] is True
    assert seen["under its own name"] == []
