"""A digest of Python source, the same on every version of Python."""

import ast
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def digest_of(files: Iterable[Path]) -> str:
    """Return the digest of the modules' syntax: docstrings, comments and formatting aside."""
    syntax = [(path.name, _syntax(ast.parse(path.read_bytes()))) for path in files]
    return hashlib.sha256(repr(syntax).encode()).hexdigest()[:16]


def _syntax(node: Any) -> Any:
    """Return a node as plain values. Fields that are empty are left out: newer versions have more of them."""
    if isinstance(node, list):
        return [_syntax(one) for one in node if not _is_text(one)]
    if not isinstance(node, ast.AST):
        return node
    fields = ((name, _syntax(value)) for name, value in ast.iter_fields(node))
    return type(node).__name__, [(name, value) for name, value in fields if value not in (None, [])]


def _is_text(node: Any) -> bool:
    """Return whether it is a docstring, or another string that is a statement."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
