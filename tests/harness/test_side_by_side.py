"""Two checkouts in one process: each sees itself, under every way to name a package."""

import os
import subprocess
import sys
from pathlib import Path

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


@pytest.fixture
def arms(tmp_path: Path) -> Path:
    for arm, number in (("base", 1), ("head", 2)):
        package = tmp_path / arm / "cs336_systems"
        (package / "inner").mkdir(parents=True)
        for name in ("__init__.py", "inner/__init__.py"):
            (package / name).write_text("")
        (package / "part.py").write_text(f"NUMBER = {number}\n")
        (package / "inner" / "deep.py").write_text(f"DEEP = {number}\n")
        (package / "value.py").write_text(VALUE)
    return tmp_path


def run(arms: Path, text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`text` in a process that has loaded both arms as `a` and `b`, beside the project's own package."""
    script = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from perf.harness.side_by_side import load
load(Path({str(arms)!r}) / "base", "a")
load(Path({str(arms)!r}) / "head", "b")
{text}
"""
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=os.environ | environment, check=False
    )


def test_each_arm_sees_itself_under_every_name(arms: Path) -> None:
    done = run(arms, "import b.value, a.value; print(*a.value.every_way(), *b.value.every_way())")
    assert done.stdout.split() == ["1"] * 9 + ["2"] * 9, done.stderr


def test_what_python_has_compiled_before_is_not_used(arms: Path) -> None:
    for arm in ("base", "head"):
        subprocess.run([sys.executable, "-m", "compileall", "-q", str(arms / arm)], check=True)
    done = run(arms, "import b.value, a.value; print(*a.value.every_way(), *b.value.every_way())")
    assert done.stdout.split() == ["1"] * 9 + ["2"] * 9, done.stderr


def test_the_compiler_tells_the_arms_apart(arms: Path) -> None:
    compiled = """
import torch, a.value, b.value
def ours(arm, x): return arm.scaled(x)
fused = torch.compile(ours, backend="eager", fullgraph=True)
print(float(fused(a.value, torch.ones(()))), float(fused(b.value, torch.ones(()))))
"""
    assert run(arms, compiled).stdout.split() == ["1.0", "2.0"]


def test_a_name_made_at_run_time_is_refused(arms: Path) -> None:
    done = run(arms, "import a.value; a.value.computed()")
    assert "ImportError: cs336_systems was asked for by a name made at run time" in done.stderr


def test_an_error_names_the_line_of_the_checkout(arms: Path) -> None:
    (arms / "base" / "cs336_systems" / "broken.py").write_text('"""text"""\n\nraise ValueError("here")\n')
    done = run(arms, "import a.broken")
    assert f'File "{arms}/base/cs336_systems/broken.py", line 3' in done.stderr


def test_a_checkout_without_the_package_has_none(arms: Path) -> None:
    done = run(
        arms,
        """
from perf import workloads
print(load(Path("/nowhere"), "c"))
with workloads.importing("c"):
    try: workloads.measured("part", "NUMBER")
    except workloads.Unavailable as reason: print(reason)
with workloads.importing("b"):
    print(workloads.measured("part", "NUMBER"))
    for module, name in (("none", "NUMBER"), ("part", "NONE")):
        try: workloads.measured(module, name)
        except workloads.Unavailable as reason: print(reason)
""",
    )
    assert done.stdout.splitlines() == [
        "False",
        "this commit has no package cs336_systems",
        "2",
        "this commit has no module cs336_systems.none",
        "this commit has no cs336_systems.part.NONE",
    ], done.stderr


def test_this_project_runs_beside_itself(tmp_path: Path) -> None:
    """Kernels included: Triton reads their text from the file and finds their helpers in the module."""
    for arm in ("base", "head"):
        (tmp_path / arm).mkdir()
        (tmp_path / arm / "cs336_systems").symlink_to(ROOT / "cs336_systems")
    done = run(
        tmp_path,
        """
import torch
from importlib import import_module
x = torch.randn(3, 1, 16, 16, generator=torch.Generator().manual_seed(0))
outs = []
for arm in "ab":
    attend = import_module(arm + ".attention.flash_triton").FlashAttentionTriton
    outs.append(attend.apply(*x, True))
    config = import_module(arm + ".configs").ModelConfig(64, 32, 128, 1, 2)
    attend = import_module(arm + ".attention.api").flash_attention
    print(type(import_module(arm + ".transformer").TransformerLM(config, 8, attend)).__module__)
print(torch.equal(*outs), any(name.partition(".")[0] == "cs336_systems" for name in sys.modules))
""",
        TRITON_INTERPRET="1",
    )
    assert done.stdout.split() == ["a.transformer", "b.transformer", "True", "False"], done.stderr
