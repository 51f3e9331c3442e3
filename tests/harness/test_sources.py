"""What of a package differs between two versions of its sources."""

from pathlib import Path

import pytest

from perf.harness.sources import DATA, Sources

MODULE = '''
"""A module."""
import functools

TABLE = {16: 4}

def plain(x):
    """Return x."""
    def inner():
        return TABLE
    return x, inner

def other(x, unit=1):
    return tile(x)

@jit
def kernel(x):
    return helper(x)

@jit
def helper(x):
    return x * SCALE

class Thing(Base):
    size: int = 4

    @property
    def method(self):
        return 1
'''


def sources(folder: Path, text: str, **files: str) -> Sources:
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "module.py").write_text(text)
    for name, content in files.items():
        (folder / name.replace("_dot_", ".")).write_text(content)
    return Sources(folder)


def differing(tmp_path: Path, before: str, after: str) -> set[str]:
    first, second = sources(tmp_path / "a", before), sources(tmp_path / "b", after)
    names = first.definitions.keys() | second.definitions.keys()
    return {name for name in names if first.digests([name]) != second.digests([name])}


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ('"""A module."""', '"""Another text.\n\nLonger."""\n# and a comment', set()),
        ('    """Return x."""\n', "\n\n", set()),
        ("return TABLE", "return dict(TABLE)", {"module:plain"}),
        ("{16: 4}", "{16: 8}", {"module:"}),
        ("import functools", "import functools, os", {"module:"}),
        ("unit=1", "unit=2", {"module:other"}),
        ("unit=1", "unit=make()", {"module:other", "module:"}),
        ("x * SCALE", "x + SCALE", {"module:helper"}),
        ("@jit\ndef helper", "@jit(debug=True)\ndef helper", {"module:helper", "module:"}),
        ("size: int = 4", "size: int = 5", {"module:"}),
        ("return 1\n", "return 2\n", {"module:Thing.method"}),
        ("class Thing", "if NEW:\n    def plain(x):\n        return 2\n\nclass Thing", {"module:plain", "module:"}),
        ("class Thing", "def added():\n    pass\n\nclass Thing", {"module:added", "module:"}),
        (
            "class Thing(Base):",
            "class Thing(Base):\n    def __eq__(self, other):\n        pass\n",
            {"module:Thing.__eq__", "module:"},
        ),
        ("class Thing", "def SCALE():\n    pass\n\nclass Thing", {"module:SCALE", "module:"}),
    ],
)
def test_a_change_is_one_of_the_definitions_that_it_touches(
    tmp_path: Path, old: str, new: str, names: set[str]
) -> None:
    assert old in MODULE
    assert differing(tmp_path, MODULE, MODULE.replace(old, new)) == names


def test_a_file_that_is_not_python_belongs_to_everybody(tmp_path: Path) -> None:
    first, second = (sources(tmp_path / name, MODULE, table_dot_json=name) for name in "ab")
    assert first.digests([DATA]) != second.digests([DATA])
    assert DATA in first.needed([])


def test_a_module_that_a_package_hides_is_not_what_runs(tmp_path: Path) -> None:
    (package := tmp_path / "code" / "module").mkdir(parents=True)
    (tmp_path / "code" / "module.py").write_text("def f():\n    return 1\n")
    (package / "__init__.py").write_text("def f():\n    return 2\n")
    before = Sources(tmp_path / "code")
    (package / "__init__.py").write_text("def f():\n    return 3\n")
    assert before.digests(["module:f"]) != Sources(tmp_path / "code").digests(["module:f"])


def test_a_document_belongs_to_nobody(tmp_path: Path) -> None:
    first, second = (sources(tmp_path / name, MODULE, notes_dot_md=name) for name in "ab")
    assert first.digests(first.definitions) == second.digests(second.definitions)


def test_a_function_needs_the_kernels_that_it_mentions_and_what_these_mention(tmp_path: Path) -> None:
    text = (
        MODULE.replace("return tile(x)", "return kernel[(1,)](x)") + "\nSCALE = made()\n\ndef made():\n    return 2\n"
    )
    found = sources(tmp_path / "a", text)
    assert found.needed(["module:other"]) == {
        DATA, ":", "module:", "module:other", "module:kernel", "module:helper", "module:made",
    }  # fmt: skip
    assert "module:plain" not in found.needed(["module:other"], is_compiled=True)


def test_a_run_that_compiles_needs_whatever_it_mentions(tmp_path: Path) -> None:
    text = MODULE.replace("return tile(x)", "return plain(x), Thing")
    found = sources(tmp_path / "a", text)
    assert "module:plain" not in found.needed(["module:other"])
    assert {"module:plain", "module:Thing.method"} <= found.needed(["module:other"], is_compiled=True)


@pytest.mark.parametrize(
    ("entered", "added"),
    [
        ("return TILES[x][(1,)](x)", "\nTILES = {16: kernel}\n"),
        ("return TILES[x][(1,)](x)", "\nKERNELS = (kernel,)\nTILES = dict(enumerate(KERNELS))\n"),
        ("return Plan().launch(x)", "\nclass Plan:\n    launch = kernel\n"),
        ("return getattr(module, 'kernel')[(1,)](x)", ""),
        ("return getattr(module, f'kern{x}')[(1,)](x)", ""),
        ("return getattr(module, x, 'other')[(1,)](x)", ""),
        ("return globals()[x][(1,)](x)", ""),
        ("return late[(1,)](x)", "\nlate = getattr(module, 'kernel')"),
        ("return late[(1,)](x)", "\nlate = triton.jit(undecorated)\n"),
    ],
)
def test_a_function_needs_the_kernels_that_its_module_binds_to_what_it_mentions(
    tmp_path: Path, entered: str, added: str
) -> None:
    text = MODULE.replace("return tile(x)", entered) + "\ndef undecorated(x):\n    return helper(x)\n" + added
    kernel = "module:undecorated" if "undecorated" in added else "module:kernel"
    needed = sources(tmp_path / "a", text).needed(["module:other"])
    assert {kernel, "module:helper"} <= needed
    assert "module:plain" not in needed


@pytest.mark.parametrize(
    "line",
    [
        "from package.kernels import kernel_16 as kernel",
        "from .kernels import kernel_16 as kernel",
        "from . import kernels",
        "import package.kernels as all_kernels",
        "kernels = importlib.import_module('package.kernels')",
        "kernels = importlib.import_module('.kernels', 'package')\nimport package.kernels",
    ],
)
def test_a_kernel_is_found_by_any_import(tmp_path: Path, line: str) -> None:
    called = "kernel" if line.endswith("as kernel") else "kernels.kernel_16"
    text = f"{line}\ndef run(x):\n    return {called}[(1,)](x)\n"
    kernels = "@jit\ndef kernel_16(x):\n    return x\n"
    found = sources(tmp_path / "package", text, kernels_dot_py=kernels)
    assert {"kernels:", "kernels:kernel_16"} <= found.needed(["module:run"])


def test_a_mention_is_of_nothing_in_a_module_that_is_not_imported(tmp_path: Path) -> None:
    text = "from package import near\n@jit\ndef kernel(x):\n    return x.load()\ndef run(x):\n    kernel(x)\n"
    load = "def load():\n    return 1\n"
    found = sources(tmp_path / "package", text, near_dot_py=load, far_dot_py=load)
    assert found.needed(["module:run"]) == {
        DATA, ":", "module:", "module:run", "module:kernel", "near:", "near:load",
    }  # fmt: skip
    assert "far:load" in found.needed(["module:run"], is_compiled=True)


def test_a_function_needs_the_modules_that_its_own_imports(tmp_path: Path) -> None:
    package = tmp_path / "package"
    late = MODULE.replace("return tile(x)", "from package.sub.late import tile\n    return tile(x)")
    found = sources(
        package, f"from package import first\n{late}", first_dot_py="import package.second\n", second_dot_py=""
    )
    assert found.needed(["module:plain"]) >= {":", "module:", "first:", "second:"}
    (package / "sub").mkdir()
    for name in ("__init__", "late", "other"):
        (package / "sub" / f"{name}.py").write_text("X = 1\n")
    with_sub = Sources(package).needed(["module:other"])
    assert {"sub:", "sub.late:"} <= with_sub
    assert "sub.other:" not in with_sub


@pytest.mark.parametrize("content", ["x = 1\ndef (\n", "x = 1\0\n", f"x = {'(' * 300}1{')' * 300}\n"])
def test_a_module_that_is_no_python_is_one_definition_that_changes(tmp_path, content):
    module = tmp_path / "package" / "inner" / "module.py"
    module.parent.mkdir(parents=True)
    digests = set()
    for text in ("def f():\n    return 1\n", content, content + "\n"):
        module.write_text(text)
        digests.add(tuple(sorted(Sources(tmp_path / "package").digests(["inner.module:", "inner.module:f"]).items())))
    assert len(digests) == 3
