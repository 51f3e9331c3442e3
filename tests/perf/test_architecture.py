"""The arrows of the architecture, read from the import statements."""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Name: folder, what its modules must not import, except these.
RULES = {
    "the measured code knows no measuring": ("cs336_systems", ("perf", "asv", "asv_runner", "tests"), ()),
    "the measured code reads no clock": ("cs336_systems", ("time",), ()),
    "perf reaches the measured code by name only": ("perf", ("cs336_systems",), ()),
    "workloads do not know how they are measured": ("perf/workloads", ("perf",), ("perf.workloads",)),
    "the site only reads": (
        "perf/site",
        ("perf.harness",),
        ("perf.harness.records", "perf.harness.status", "perf.harness.intervals"),
    ),
}

# From the bottom up: a part of perf imports from the lines below its own only.
LAYERS = (
    ("files", "forms", "git", "labels", "machines", "options", "printable", "stored", "tables", "units", "workloads"),
    ("harness",),
    ("benchmarks",),
    ("selection",),
    ("gate", "studies"),
    ("site",),
    ("writeup", "asv_plugins"),
    ("commands",),
    ("__main__",),
)


def modules(folder: str) -> list[Path]:
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths, folder
    return paths


@functools.cache
def imports(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("rule", RULES)
def test_imports_follow_the_arrows(rule: str) -> None:
    folder, banned, allowed = RULES[rule]
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(folder)
        for name in imports(path)
        if within(name, banned) and not within(name, allowed)
    ]
    assert wrong == []


def test_each_part_of_perf_imports_from_the_layers_below_it() -> None:
    layer = {part: number for number, parts in enumerate(LAYERS) for part in parts}
    wrong = []
    for path in modules("perf"):
        part = path.relative_to(ROOT / "perf").parts[0].removesuffix(".py")
        for name in imports(path):
            to = [*name.split("."), ""][1]
            if part != "__init__" and within(name, ("perf",)) and to not in (part, "") and layer[to] >= layer[part]:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert wrong == []


def test_discovery_imports_nothing_heavy_and_nothing_of_a_commit() -> None:
    """asv imports perf/benchmarks, and whatever that imports, for every commit and every case."""
    banned = ("torch", "triton", "cs336_systems", "pandas", "matplotlib", "numpy", "scipy", "asv")
    code = (
        "import sys, perf.selection as s; assert all(cls for _, cls, _ in s.asv_classes());"
        f"sys.exit(' '.join(name for name in {banned} if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_measured_code_reads_no_environment_variables() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in modules("cs336_systems")}
    assert [path for path, text in texts.items() if "environ" in text or "getenv" in text] == []


OF_PYTHON = {"_asdict", "_fields", "_make", "_replace", "_exit"}  # documented, in spite of their names
OWN = {"self", "cls", "super()", "plan", "launched", "_Algorithms"}


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
    outside = [
        path for path in modules("cs336_systems") if "private" not in (path.parent.name, path.stem.partition("_")[0])
    ]
    assert [name for path in outside for name in private_names(path)] == []


def test_no_worker_is_named_after_the_standard_library() -> None:
    """A `profile.py` beside a script that is started by path breaks torch.profiler."""
    assert not {path.stem for path in modules("perf/harness/workers")} & set(sys.stdlib_module_names)


def test_importing_the_library_loads_neither_torch_nor_triton() -> None:
    code = "import sys, cs336_systems; sys.exit(any(name in sys.modules for name in ('torch', 'triton')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
