"""Two checkouts of one package in one process, each under a name of its own.

Both arms of a comparison must alternate within milliseconds, so both must be imported at once. A package that says
`from cs336_systems.configs import ...`, or registers an operator `cs336_systems::attention`, would meet its twin there.
So each is imported as another package: wherever its sources name `cs336_systems` in an import, in a string that begins
with it, or as `torch.ops.cs336_systems`, the name is changed as the module is compiled. Files, lines and the code of
kernels stay as they are: Triton reads a kernel's text from its file.
"""

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

from perf.workloads import PACKAGE


def load(checkout: Path, name: str) -> bool:
    """Make the checkout's package importable as `name`; False if the checkout has none.

    From then on nothing can be imported as `cs336_systems` in this process: a name that escaped the change raises
    `ImportError` instead of mixing two commits.
    """
    if not any(isinstance(finder, _NoOriginal) for finder in sys.meta_path):
        sys.meta_path.insert(0, _NoOriginal())
    folder = checkout / PACKAGE
    if not (folder / "__init__.py").is_file():
        sys.modules[name] = None  # type: ignore[assignment] # importing it says that there is none
        return False
    sys.meta_path.insert(0, _Finder(name, folder))
    return True


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of one checkout's package under its new name."""

    def __init__(self, name: str, folder: Path):
        self._name, self._folder = name, folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        head, *rest = fullname.split(".")
        if head != self._name:
            return None
        place = self._folder.joinpath(*rest)
        if (place / "__init__.py").is_file():
            return self._spec(fullname, place / "__init__.py", [str(place)])
        if (file := place.with_suffix(".py")).is_file():
            return self._spec(fullname, file, None)
        return None

    def _spec(self, fullname: str, file: Path, inside: list[str] | None) -> importlib.machinery.ModuleSpec | None:
        loader = _Loader(fullname, str(file), self._name)
        return importlib.util.spec_from_file_location(fullname, file, loader=loader, submodule_search_locations=inside)


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles a source with the package's name changed."""

    def __init__(self, fullname: str, path: str, name: str):
        super().__init__(fullname, path)
        self._package = name

    def get_code(self, fullname: str) -> CodeType:
        """Always from the source: what lies in __pycache__ was compiled under the package's own name."""
        path = self.get_filename(fullname)
        tree = _Rename(self._package).visit(ast.parse(self.get_data(path), path))
        return compile(tree, path, "exec", dont_inherit=True)


class _Rename(ast.NodeTransformer):
    def __init__(self, name: str):
        self._name = name

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        if not node.level and node.module:
            node.module = self._renamed(node.module)
        return node

    def visit_Import(self, node: ast.Import) -> ast.AST:
        """`import cs336_systems.configs` binds the first name, which the code then goes on with: keep that name."""
        lines: list[ast.stmt] = []
        for alias in node.names:
            new = self._renamed(alias.name)
            if new == alias.name:
                lines.append(ast.Import([alias]))
            elif alias.asname:
                lines.append(ast.Import([ast.alias(new, alias.asname)]))
            else:
                lines.append(ast.Import([ast.alias(new)]))
                lines.append(ast.Import([ast.alias(self._name, PACKAGE)]))
        return [ast.fix_missing_locations(ast.copy_location(line, node)) for line in lines]  # type: ignore[return-value]

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str):
            return ast.copy_location(ast.Constant(self._renamed(node.value)), node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr == PACKAGE:
            node.attr = self._name
        return node

    def _renamed(self, text: str) -> str:
        rest = text.removeprefix(PACKAGE)
        return self._name + rest if text.startswith(PACKAGE) and (not rest or rest[:1] in ".:") else text


class _NoOriginal(importlib.abc.MetaPathFinder):
    """Refuses the package under its own name."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname.partition(".")[0] == PACKAGE:
            raise ImportError(
                f"{fullname} was asked for by a name made at run time: of two commits side by side, which one is meant?"
            )
