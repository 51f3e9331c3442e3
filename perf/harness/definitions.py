"""Dependencies of a definition in a package's source, as far as reading tells."""

import ast
import functools
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

BY_ANY_NAME = ("globals", "vars", "__dict__", "eval", "exec")
"""What looks names up that no reader of the source can tell."""

BY_NAME = {"getattr": 1, "import_module": 0, "__import__": 0}
"""What looks up the name that it is given, and the place of the argument: a reader can tell if that is a string."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Definition:
    """The functions or methods of one name, or the statements that a module runs when it is imported."""

    def __init__(self, nodes: Sequence[ast.AST], module: "Module | None" = None, *, is_kernel: bool = False):
        self._nodes = nodes  # several are overloads, a property's methods, or definitions under `if`
        self._module = module or Module()
        self.is_kernel = is_kernel
        """Whether a compiler reads it (`@triton.jit` and its kin): it runs without being entered."""

    @functools.cached_property
    def digest(self) -> str:
        """Digest of its syntax trees."""
        return hashlib.sha256("".join(map(ast.dump, self._nodes)).encode()).hexdigest()[:16]

    @functools.cached_property
    def mentions(self) -> frozenset[str]:
        """Names and attributes in it, however they are bound; of what an import runs, those that it calls."""
        each = (_calls(node) if isinstance(node, ast.Module) else self._module.mentions(node) for node in self._nodes)
        return frozenset().union(*each)

    @functools.cached_property
    def mentions_anything(self) -> bool:
        """Whether it looks up a name that is not in the source."""
        return any(None in self._module.looked_up(node) for node in self._nodes)

    @functools.cached_property
    def imports(self) -> frozenset[str]:
        """Modules, and names in modules, that it imports; absolute."""
        return frozenset().union(*map(self._module.imports, self._nodes))


@dataclass(frozen=True)
class Module:
    """Module of a definition, by which its names are read."""

    package: str = ""
    """The package that relative imports begin at."""

    foreign: frozenset[str] = frozenset()
    """Names that the module imports from elsewhere: nothing of the package is an attribute of them."""

    @classmethod
    def of(cls, tree: ast.Module, package: str) -> "Module":
        """Read what a file in `package` imports from elsewhere."""
        ours, foreign = package.partition(".")[0], set[str]()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                roots = ((alias.name.partition(".")[0], alias.asname) for alias in node.names)
                foreign.update(asname or root for root, asname in roots if root != ours)
            elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] != ours:
                foreign.update(alias.asname or alias.name for alias in node.names)
        return cls(package, frozenset(foreign))

    def mentions(self, node: ast.AST) -> frozenset[str]:
        """Return every name and attribute, and what is looked up by a string."""
        return frozenset(names_in(node)) | {name for name in self.looked_up(node) if name}

    def looked_up(self, node: ast.AST) -> set[str | None]:
        """Return the strings by which it looks up attributes and modules; None stands for what is no string in it."""
        found: set[str | None] = {None for name in names_in(node) if name in BY_ANY_NAME}
        for call in (child for child in ast.walk(node) if isinstance(child, ast.Call)):
            for place in {BY_NAME[name] for name in names_in(call.func) if name in BY_NAME}:
                if not self._is_foreign(call.args[:place]):
                    found.add(next(map(_text, call.args[place:]), None))
        return found

    def _is_foreign(self, owner: Sequence[ast.AST]) -> bool:
        """Whether it, of one node or none, is an imported module from elsewhere, or an attribute of one."""
        nodes = [child for node in owner for child in ast.walk(node) if isinstance(child, ast.expr)]
        last = nodes[-1] if nodes and all(isinstance(one, ast.Name | ast.Attribute) for one in nodes) else None
        return isinstance(last, ast.Name) and last.id in self.foreign

    def imports(self, node: ast.AST) -> frozenset[str]:
        """Return the modules, and names in modules, that it imports; absolute."""
        names = {name for name in self.looked_up(node) if name}
        for child in ast.walk(node):
            if isinstance(child, ast.Import):
                names.update(alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                relative = self.package.split(".")[: 1 - child.level or None] if child.level else []
                module = ".".join([*relative, *([child.module] if child.module else [])])
                names.update(f"{module}.{alias.name}" for alias in child.names)
        return frozenset(names)


def names_in(node: ast.AST) -> Iterator[str]:
    """Yield every name and attribute."""
    for child in ast.walk(node):
        if isinstance(child, ast.Name | ast.Attribute):
            yield child.id if isinstance(child, ast.Name) else child.attr


def _text(node: ast.AST) -> str | None:
    """Return a string that is no relative name of a module."""
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) and not value.startswith(".") else None


def _calls(tree: ast.AST) -> frozenset[str]:
    """Return the names of what importing a module calls, decorators among them."""
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    calls += [each for node in ast.walk(tree) for each in getattr(node, "decorator_list", ())]
    return frozenset(call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls)
