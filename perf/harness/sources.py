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

from perf.harness.definitions import Definition, Function, Module, names_in

DATA = "data files"
"""Name of all files of a package that are neither Python nor DOCUMENTS: nobody knows who reads them."""

DOCUMENTS = (".md",)
"""Suffixes of files that no code reads."""

RUN_BY_CLASSES = ("__init_subclass__", "__set_name__")
"""Methods that the definition of another class runs."""


class Sources:
    """The definitions of a package, by name."""

    def __init__(self, folder: Path):
        self._folder = folder.resolve()
        self.definitions: dict[str, Definition] = {}
        self._bound: dict[str, set[str]] = {}
        """What a module or a class binds to a name, by assignment or from another module: the names it mentions."""
        self._scopes: dict[str, frozenset[str]] = {}
        data = hashlib.sha256()
        for path in sorted(self._folder.rglob("*")):
            relative = path.relative_to(self._folder)
            if path.suffix == ".py" and path.is_file() and not _is_hidden(path):
                self._read(path, self.module_of(str(path)) or "")
            elif path.is_file() and path.suffix not in DOCUMENTS and not _is_of_a_tool(relative):
                data.update(f"{relative.as_posix()}\0".encode() + path.read_bytes())
        self.definitions[DATA] = Definition([ast.Constant(data.hexdigest())])

    def module_of(self, file: str) -> str | None:
        """Return the module of a file, relative to the package ("" is the package itself); None if it is elsewhere."""
        path = Path(file)
        if not path.is_relative_to(self._folder):
            return None
        *parts, last = path.relative_to(self._folder).with_suffix("").parts
        return ".".join(parts if last == "__init__" else [*parts, last])

    def names_of(self, entered: Iterable[str]) -> set[str]:
        """Return the names of functions given as "file:qualified name"; bodies of modules and classes are none."""
        split = (one.rpartition(":")[::2] for one in entered)
        names = {f"{module}:{name}" for file, name in split if (module := self.module_of(file)) is not None}
        return names & self.definitions.keys()

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
        A mention may be of anything of that bare name in the modules that the mentioning one imports, so there may be
        too many; in a run that compiles, in any module.
        """
        names = set(entered)
        seen = self._closure(names, lambda one: is_compiled or one.is_kernel, is_anywhere=is_compiled)
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

    def _closure(
        self, names: Iterable[str], follows: Callable[[Definition], bool], *, is_anywhere: bool = False
    ) -> set[str]:
        """Return the definitions that `follows` and that these names mention, or that such mention in turn."""
        found: set[str] = set()
        todo = [name for name in names if name in self.definitions]
        while todo:
            mentioning = todo.pop()
            for name in self._mentioned(mentioning):
                is_known = is_anywhere or name.partition(":")[0] in self._scope(mentioning)
                if name not in found and is_known and follows(self.definitions[name]):
                    found.add(name)
                    todo.append(name)
        return found

    def _mentioned(self, name: str) -> Iterator[str]:
        """Yield what a definition may mention, itself or by what a module or a class has bound to a mentioned name."""
        if self.definitions[name].mentions_anything:
            yield from self.definitions
            return
        mentions, todo = set(), list(self.definitions[name].mentions)
        while todo:
            mention = todo.pop()
            if mention not in mentions:
                mentions.add(mention)
                todo += self._bound.get(mention, ())
                yield from self._by_bare_name.get(mention, ())

    def _scope(self, name: str) -> frozenset[str]:
        """Return the modules that a definition can name something of: its own, and what that imports in turn."""
        if name not in self._scopes:
            self._scopes[name] = frozenset(module.removesuffix(":") for module in self._imported([name]))
        return self._scopes[name]

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
        package = ".".join(path.relative_to(self._folder.parent).parent.parts)
        definitions, bound = _read(path.read_bytes(), package)
        self.definitions |= {f"{module}:{name}": definition for name, definition in definitions.items()}
        for name, mentions in bound.items():
            self._bound.setdefault(name, set()).update(mentions)


@functools.lru_cache(maxsize=1024)  # two commits share most of their modules
def _read(content: bytes, package: str) -> tuple[dict[str, Definition], dict[str, set[str]]]:
    """Return the definitions of a module in a package by name, and what it and its classes bind to a name."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError):  # whoever imports it learns why
        return {"": Definition([ast.Constant(content)])}, {}
    _WithoutDocstrings().visit(tree)
    place = Module.of(tree, package)
    compiled = _compiled_by_calls(tree)
    bound: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.asname:
                    bound.setdefault(alias.asname, set()).add(alias.name)
    of_name: dict[str, list[Function]] = {}
    for name, function in functions_of(tree):
        of_name.setdefault(name, []).append(function)
    definitions = {}
    for name, functions in of_name.items():
        decorators = [decorator for function in functions for decorator in function.decorator_list]
        is_kernel = functions[0].name in compiled or any(map(_compiles, decorators))
        definitions[name] = Definition(functions, place, is_kernel=is_kernel)
    _WithoutBodies().visit(tree)
    definitions[""] = Definition([tree], place)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            mentions = place.mentions(node.value)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for name in names_in(target):
                    bound.setdefault(name, set()).update(mentions)
    return definitions, bound


def functions_of(tree: ast.Module) -> Iterator[tuple[str, Function]]:
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
    """Removes the bodies of functions, and their constant defaults: what is left is what defining them does.

    It binds a name, which may have been another's, and evaluates annotations, decorators and other defaults.
    """

    def visit(self, node: ast.AST) -> ast.AST | None:
        """Visit a function, or whatever may hold one."""
        return self._visit_function(node) if isinstance(node, Function) else super().visit(node)

    def _visit_function(self, node: Function) -> ast.AST:
        if node.name in RUN_BY_CLASSES:
            return node
        without = copy.copy(node)
        without.body = []
        if not node.decorator_list:
            without.args = copy.copy(node.args)
            without.args.defaults = [*map(_but_for_constants, node.args.defaults)]
            without.args.kw_defaults = [each and _but_for_constants(each) for each in node.args.kw_defaults]
        return without


def _but_for_constants(default: ast.expr) -> ast.expr:
    """Return a default whose value is not the function's own business."""
    return ast.Constant(None) if isinstance(default, ast.Constant) else default


def _compiles(decorator: ast.AST) -> bool:
    return any(word in ast.unparse(decorator) for word in ("jit", "constexpr_function", "builtin"))


def _compiled_by_calls(tree: ast.AST) -> set[str]:
    """Return the names of functions that are no decorated kernels but given to one's decorator: `triton.jit(name)`."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _compiles(node.func)]
    return {argument.id for call in calls for argument in call.args if isinstance(argument, ast.Name)}


def _is_of_a_tool(relative: Path) -> bool:
    """Whether an editor or Python keeps the file, by a name that starts with a dot or "__pycache__"."""
    return any(part.startswith(".") or part == "__pycache__" for part in relative.parts)


def _is_hidden(module: Path) -> bool:
    """Whether a package beside a module has its name, which Python imports instead."""
    return (module.with_suffix("") / "__init__.py").is_file()
