"""Digests of a package's source by function, so that two commits can be compared by what a case runs of them.

A name is `module:function`, `module:Class.method`, or `module:` for what importing the module runs. Digests leave out
docstrings, comments and line numbers.
"""

import ast
import copy
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

DATA = "data files"
"""Name of all files of a package that are neither Python nor DOCUMENTS: nobody knows who reads them."""

DOCUMENTS = (".md",)
"""Suffixes of files that no code reads."""

RUN_BY_CLASSES = ("__init_subclass__", "__set_name__")
"""Methods that the definition of another class runs."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Definition:
    """A function or method, or the statements that a module runs when it is imported; read when it is asked for."""

    def __init__(self, node: ast.AST):
        self._node = node

    @functools.cached_property
    def digest(self) -> str:
        """Digest of its syntax tree."""
        return hashlib.sha256(ast.dump(self._node).encode()).hexdigest()[:16]

    @functools.cached_property
    def mentions(self) -> frozenset[str]:
        """Names and attributes in it, however they are bound; of what an import runs, those that it calls."""
        return _calls(self._node) if isinstance(self._node, ast.Module) else _mentions(self._node)

    @functools.cached_property
    def imports(self) -> frozenset[str]:
        """Modules, and names in modules, that it imports; absolute."""
        return _imports(self._node)

    @functools.cached_property
    def is_kernel(self) -> bool:
        """Whether a compiler reads it (`@triton.jit` and its kin): it runs without being entered."""
        return isinstance(self._node, Function) and _is_kernel(self._node)


class Sources:
    """The definitions of a package, by name."""

    def __init__(self, folder: Path):
        self._folder = folder.resolve()
        self.definitions: dict[str, Definition] = {}
        data = hashlib.sha256()
        for path in sorted(self._folder.rglob("*")):
            relative = path.relative_to(self._folder)
            if path.suffix == ".py":
                self._read(path, self.module_of(str(path)) or "")
            elif path.is_file() and path.suffix not in DOCUMENTS and "__pycache__" not in relative.parts:
                data.update(f"{relative.as_posix()}\0".encode() + path.read_bytes())
        self.definitions[DATA] = Definition(ast.Constant(data.hexdigest()))

    def module_of(self, file: str) -> str | None:
        """Return the module of a file, relative to the package ("" is the package itself); None if it is elsewhere."""
        path = Path(file)
        if not path.is_relative_to(self._folder):
            return None
        *parts, last = path.relative_to(self._folder).with_suffix("").parts
        return ".".join(parts if last == "__init__" else [*parts, last])

    def digests(self, names: Iterable[str]) -> dict[str, str]:
        """Return the digest of each name, "" for one that is not defined."""
        return {name: self.definitions[name].digest if name in self.definitions else "" for name in names}

    def digest_of_module(self, module: str) -> str:
        """Return the digest of everything that a module defines."""
        parts = sorted((name, one.digest) for name, one in self.definitions.items() if name.startswith(f"{module}:"))
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def needed(self, entered: Iterable[str], *, is_compiled: bool = False) -> set[str]:
        """Return everything that a run depends on which entered these functions.

        Beside them these are the kernels that an entered function mentions, whatever those mention, and of all these
        the modules, what they import, and what they call when they are imported. Of a run that compiles Python
        (`torch.compile`), which takes ways that no other run enters, it is whatever an entered function mentions.
        Mentions are followed by bare name, so there may be too many.
        """
        names = set(entered)
        seen = self._closure(names, lambda definition: is_compiled or definition.is_kernel)
        names |= seen | self._closure(seen, lambda _: True)
        modules = self._imported(names)
        return {DATA} | names | modules | self._closure(modules, lambda _: True)

    def _imported(self, names: Iterable[str]) -> set[str]:
        """Return the modules of these definitions, their packages, and what they import in turn."""
        found: set[str] = set()
        todo = [module for name in names for module in (name.partition(":")[0], *self._imports_of(name))]
        while todo:
            module = todo.pop()
            if f"{module}:" in self.definitions and f"{module}:" not in found:
                found.add(f"{module}:")
                todo += [module.rpartition(".")[0], *self._imports_of(f"{module}:")]
        return found

    def _imports_of(self, name: str) -> list[str]:
        """Return what a definition imports of the package; `from a import b` may mean module a or module a.b."""
        package = self._folder.name
        imported = (one for one in self.definitions[name].imports if one.partition(".")[0] == package)
        inside = [one.removeprefix(package).removeprefix(".") for one in imported]
        return [module for one in inside for module in (one, one.rpartition(".")[0])]

    def _closure(self, names: Iterable[str], follows: Callable[[Definition], bool]) -> set[str]:
        """Return the definitions that `follows` and that these names mention, or that such mention in turn."""
        found: set[str] = set()
        todo = [name for name in names if name in self.definitions]
        while todo:
            for mention in self.definitions[todo.pop()].mentions:
                for name in self._by_bare_name.get(mention, ()):
                    if name not in found and follows(self.definitions[name]):
                        found.add(name)
                        todo.append(name)
        return found

    @functools.cached_property
    def _by_bare_name(self) -> dict[str, list[str]]:
        """Functions by their name, and methods by their class's; kernels' methods by their own too."""
        named: dict[str, list[str]] = {}
        for name, definition in self.definitions.items():
            _, _, qualified = name.partition(":")
            first, _, last = qualified.partition(".")
            for bare in {first, last if definition.is_kernel else first} - {""}:
                named.setdefault(bare, []).append(name)
        return named

    def _read(self, path: Path, module: str) -> None:
        try:
            tree = ast.parse(path.read_bytes())
        except SyntaxError as error:
            file = path.relative_to(self._folder.parent).as_posix()
            raise SystemExit(f"{file}:{error.lineno}: {error.msg}") from None
        _WithoutDocstrings().visit(tree)
        for name, function in _functions(tree):
            qualified = f"{module}:{name}"
            while qualified in self.definitions:  # an overload, or a second definition under `if`
                qualified += "'"
            self.definitions[qualified] = Definition(function)
        _WithoutBodies().visit(tree)
        self.definitions[f"{module}:"] = Definition(tree)


def _functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """Yield the functions of a module and the methods of its classes with their qualified names.

    A function inside a function is a part of it.
    """
    stack: list[tuple[str, ast.AST]] = [("", tree)]
    while stack:
        prefix, node = stack.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                yield prefix + child.name, child
            else:
                stack.append((f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix, child))


class _WithoutDocstrings(ast.NodeTransformer):
    """Removes every string that stands alone as a statement."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) else node


class _WithoutBodies(ast.NodeTransformer):
    """Removes functions that do nothing when they are defined, and the bodies of others."""

    def visit(self, node: ast.AST) -> ast.AST | None:
        """Visit a function, or whatever may hold one."""
        return self._visit_function(node) if isinstance(node, Function) else super().visit(node)

    def _visit_function(self, node: Function) -> ast.AST | None:
        if node.name in RUN_BY_CLASSES:
            return node
        defaults = [default for default in (*node.args.defaults, *node.args.kw_defaults) if default]
        if not node.decorator_list and all(isinstance(default, ast.Constant) for default in defaults):
            return None
        without = copy.copy(node)
        without.body = []
        return without


def _mentions(node: ast.AST) -> frozenset[str]:
    return frozenset(
        child.id if isinstance(child, ast.Name) else child.attr
        for child in ast.walk(node)
        if isinstance(child, ast.Name | ast.Attribute)
    )


def _imports(node: ast.AST) -> frozenset[str]:
    names: set[str] = set()
    for child in ast.walk(node):
        if isinstance(child, ast.Import):
            names.update(alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            names.update(f"{child.module}.{alias.name}" for alias in child.names)
    return frozenset(names)


def _calls(tree: ast.AST) -> frozenset[str]:
    """Return the names of what importing a module calls, decorators among them."""
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    calls += [each for node in ast.walk(tree) for each in getattr(node, "decorator_list", ())]
    return frozenset(call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls)


def _is_kernel(function: Function) -> bool:
    decorators = " ".join(map(ast.unparse, function.decorator_list))
    return any(word in decorators for word in ("jit", "constexpr_function", "builtin"))
