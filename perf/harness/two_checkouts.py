"""Two checkouts of one package in one process, each under a name of its own.

The arms of a comparison alternate within milliseconds, so both must be imported at once. Their imports of
`cs336_systems.configs` and their operators `cs336_systems::attention` would collide. Each checkout is therefore
imported under another package name: wherever its sources name `cs336_systems` in an import, at the start of a string,
or as `torch.ops.cs336_systems`, the name is replaced when the module is compiled. Files, line numbers and the code of
kernels do not change: Triton reads a kernel's text from its file.
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
    """Make the checkout's package importable as `name`; return False if the checkout has none.

    From then on `cs336_systems` cannot be imported in this process: a name that was not replaced raises `ImportError`
    instead of mixing two commits.
    """
    if not any(isinstance(finder, _NoOriginal) for finder in sys.meta_path):
        sys.meta_path.insert(0, _NoOriginal())
    folder = checkout / PACKAGE
    if not (folder / "__init__.py").is_file():
        sys.modules[name] = None  # type: ignore[assignment] # importing it raises ModuleNotFoundError
        return False
    sys.meta_path.insert(0, _Finder(name, folder))
    return True


class _Finder(importlib.abc.MetaPathFinder):
    """Finder of the modules of one checkout's package under its new name."""

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
    """Loader that compiles a source with the package's name replaced."""

    def __init__(self, fullname: str, path: str, name: str):
        super().__init__(fullname, path)
        self._package = name

    def get_code(self, fullname: str) -> CodeType:
        """Compile from the source: __pycache__ holds code under the package's own name."""
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
        """Rename the import, but bind the original name, because `import a.b` binds `a`."""
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
    """Finder that refuses the package's original name."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname.partition(".")[0] == PACKAGE:
            raise ImportError(
                f"{fullname} is imported by a name built at run time, which is ambiguous with two commits side by side"
            )
