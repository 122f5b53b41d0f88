"""Which names a statement reads."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any

__all__ = ["names_read", "uses"]


def names_read(node: ast.AST | None) -> frozenset[str]:
    """Names that the statement's own text reads."""
    if node is None:
        return frozenset()
    return frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))


def uses(name: str, read: Iterable[str], namespace: Mapping[str, Any], depth: int = 5) -> bool:
    """Whether a statement that reads these names uses `name`, itself or through the notebook's own functions."""
    names = set(read)
    if name in names:
        return True
    if depth == 0:
        return False
    for one in names:
        value = namespace.get(one)
        if (
            isinstance(value, FunctionType)
            and value.__globals__ is namespace
            and uses(name, value.__code__.co_names, namespace, depth - 1)
        ):
            return True
    return False
