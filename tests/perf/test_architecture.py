"""The arrows of the architecture, read from the import statements."""

import ast
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import perf

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "triton", "cs336_systems", "pandas", "matplotlib", "numpy")

# Name: folder, what its modules must not import, except these, and whether imports within functions count.
# import-linter expresses neither "at module level only" nor folders without __init__.py, as perf/gate.
RULES = {
    "the measured code knows no measuring": ("cs336_systems", ("perf", "asv", "asv_runner", "tests"), (), True),
    "the measured code reads no clock": ("cs336_systems", ("time",), (), True),
    "perf reaches the measured code by name only": ("perf", ("cs336_systems",), (), True),
    "asv discovers without heavy imports": ("perf", (*HEAVY, "asv"), (), False),
    "workloads do not know how they are measured": ("perf/workloads", ("perf",), ("perf.workloads",), True),
    "the report only reads": ("perf/report", ("perf.harness",), ("perf.harness.records", "perf.harness.status"), True),
}
# asv discovers no folder without __init__.py, and loads its plugins itself.
UNDISCOVERED = {"perf/gate": HEAVY, "perf/asv_plugins": ("asv",)}
DISCOVERED_ALL_THE_SAME = {"perf/gate/command.py"}


def modules(folder: str) -> list[Path]:
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found, folder
    return found


def imports(path: Path, *, within_functions: bool = True) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if within_functions else tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("rule", RULES)
def test_imports_follow_the_arrows(rule: str) -> None:
    folder, banned, allowed, within_functions = RULES[rule]
    wrong = []
    for path in modules(folder):
        name = path.relative_to(ROOT).as_posix()
        exempt = (
            () if within_functions or name in DISCOVERED_ALL_THE_SAME else UNDISCOVERED.get(str(Path(name).parent), ())
        )
        for one in imports(path, within_functions=within_functions):
            if within(one, banned) and not within(one, (*allowed, *exempt)):
                wrong.append(f"{name} imports {one}")
    assert wrong == []


def test_the_measured_code_reads_no_environment_variables() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in modules("cs336_systems")}
    assert [path for path, text in texts.items() if "environ" in text or "getenv" in text] == []


OF_PYTHON = {"_asdict", "_fields", "_make", "_replace", "_exit"}  # documented, in spite of their names
OWN = {"self", "cls", "plan", "launched", "_Algorithms"}


def private_names(path: Path) -> Iterator[str]:
    """Yield the private attributes and modules of others that a module uses."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Attribute)
            and node.attr[:1] == "_" != node.attr[1:2]
            and node.attr not in OF_PYTHON
            and ast.unparse(node.value).split(".")[0] not in OWN
        ):
            yield f"{path.name}: {ast.unparse(node)}"
    for name in imports(path):
        if not within(name, ("cs336_systems",)) and any(part[:1] == "_" != part[1:2] for part in name.split(".")):
            yield f"{path.name}: {name}"


def test_private_parts_of_others_are_reached_in_one_place() -> None:
    outside = [path for path in modules("cs336_systems") if path.parent.name != "private"]
    assert [name for path in outside for name in private_names(path)] == []


def test_asv_discovers_no_statistics() -> None:
    """perf/gate has no __init__.py, so asv, which walks packages, skips it: importing scipy takes a second."""
    assert "perf.gate" not in {module.name for module in pkgutil.walk_packages(perf.__path__, "perf.")}


def test_no_worker_is_named_after_the_standard_library() -> None:
    """A `profile.py` beside a script that is started by path breaks torch.profiler."""
    assert not {path.stem for path in modules("perf/harness/workers")} & set(sys.stdlib_module_names)


def test_importing_the_library_loads_neither_torch_nor_triton() -> None:
    code = "import sys, cs336_systems; sys.exit(any(name in sys.modules for name in ('torch', 'triton')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
