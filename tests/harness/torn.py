"""A copy of the package in which whatever a case does not need, by the map, raises when it is called."""

import ast
from collections.abc import Collection
from pathlib import Path

import cs336_systems
from perf.harness.sources import RUN_BY_CLASSES, Sources, functions_of

PACKAGE = Path(cs336_systems.__file__).parent


def tear(folder: Path, needed: Collection[str], sources: Sources) -> int:
    """Write the package to `folder`; return the number of functions that were torn out."""
    torn = 0
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_bytes())
        for name, function in functions_of(tree):
            full = f"{sources.module_of(str(path))}:{name}"
            if full not in needed and function.name not in RUN_BY_CLASSES:
                function.body = ast.parse(f"raise AssertionError({full!r})").body
                torn += 1
        copy = folder / path.relative_to(PACKAGE.parent)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(ast.unparse(tree))
    return torn
