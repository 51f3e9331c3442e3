"""The arrows of the architecture, read off the import statements."""

import ast
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import perf

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = sorted((ROOT / "cs336_systems").rglob("*.py"))
PERF = sorted((ROOT / "perf").rglob("*.py"))


def imports(path: Path, *, top_level_only: bool = False) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", LIBRARY, ids=relative)
def test_what_is_measured_never_imports_what_measures(path):
    assert not [name for name in imports(path) if name.split(".")[0] in ("perf", "asv", "asv_runner", "tests")]


@pytest.mark.parametrize("path", LIBRARY, ids=relative)
def test_the_library_reads_no_environment_variables_and_no_clock(path):
    text = path.read_text()
    assert "environ" not in text
    assert "getenv" not in text
    assert "time" not in set(imports(path))


OF_PYTHON = {"_asdict", "_fields", "_make", "_replace", "_exit"}  # documented, in spite of their names


@pytest.mark.parametrize("path", [x for x in LIBRARY if "private" not in (x.parent.name, x.stem)], ids=relative)
def test_private_parts_of_others_are_reached_in_one_place(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    own = {"self", "cls", "plan", "launched"}
    found = {
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in OF_PYTHON
        and ast.unparse(node.value).split(".")[0] not in own
    }
    found |= {
        name
        for name in imports(path)
        if not name.startswith("cs336_systems") and any(part[:1] == "_" != part[1:2] for part in name.split("."))
    }
    assert {name for name in found if not name.startswith("_Algorithms.")} == set()


@pytest.mark.parametrize("path", PERF, ids=relative)
def test_discovery_imports_nothing_heavy_and_nothing_of_a_commit(path):
    """asv imports all of perf/ for every commit; only the plugins, which it loads itself, may import asv."""
    banned = {"torch", "triton", "cs336_systems", "pandas", "matplotlib", "numpy", "asv"}
    if path.parent.name == "asv_plugins":
        banned -= {"asv"}
    if path.parent.name == "gate" and path.name != "command.py":
        return  # not discovered: see below
    assert not [name for name in imports(path, top_level_only=True) if name.split(".")[0] in banned]


def test_asv_discovers_no_statistics():
    """perf/gate has no __init__.py, so asv, which walks packages, passes it by: scipy's import takes a second."""
    assert "perf.gate" not in {module.name for module in pkgutil.walk_packages(perf.__path__, "perf.")}


@pytest.mark.parametrize("path", PERF, ids=relative)
def test_only_workloads_touch_the_measured_package(path):
    """By name, through `perf.workloads.measured`; an import statement would take it from wherever it comes first."""
    assert not [name for name in imports(path) if name.split(".")[0] == "cs336_systems"]


def test_workloads_know_nothing_of_how_they_are_measured():
    for path in sorted((ROOT / "perf" / "workloads").rglob("*.py")):
        own = {name.split(".")[1] for name in imports(path) if name.startswith("perf.")}
        assert own <= {"workloads"}, relative(path)


def test_the_report_only_reads():
    for path in sorted((ROOT / "perf" / "report").rglob("*.py")):
        from_harness = {name.split(".")[2] for name in imports(path) if name.startswith("perf.harness.")}
        assert from_harness <= {"records", "status"}, relative(path)


def test_no_module_is_named_after_the_standard_library():
    """A `profile.py` beside a script that is started by path breaks torch.profiler."""
    import sys

    workers = ROOT / "perf" / "harness" / "workers"
    assert not {path.stem for path in workers.glob("*.py")} & set(sys.stdlib_module_names)


def test_importing_the_library_loads_neither_torch_nor_triton():
    import subprocess
    import sys

    code = "import sys, cs336_systems; sys.exit(any(name in sys.modules for name in ('torch', 'triton')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
