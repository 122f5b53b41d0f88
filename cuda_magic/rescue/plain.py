"""Whether a statement is nothing but names, calls, attributes and operators: then the library may know that it only
computes, and nothing has to be marked before it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

from .boxes import LIGHT

__all__ = ["Plain", "plain"]

_LIGHT = frozenset(map(id, LIGHT))
_MOST = 40
"""Parts of a statement that are looked at."""
_NOT_GIVEN = frozenset(("generator", "hook", "inplace", "out"))
"""Keywords by which a call changes what it is given."""


class Plain(NamedTuple):
    """What a plain statement uses."""

    used: list[Any]
    """Values of its names that are not light."""
    called: list[Any]
    """Those that it calls."""
    words: list[tuple[Any, str]]
    """Attributes: (the library's module whose member it is, or None, its name)."""


def plain(node: ast.AST | None, namespace: Mapping[str, Any]) -> Plain | None:
    """What a statement uses; None where it is more than names, calls, attributes, operators and items that it reads."""
    if type(node) is ast.Assign:
        for target in node.targets:
            if type(target) is not ast.Name and not (
                type(target) is ast.Tuple and all(type(part) is ast.Name for part in target.elts)
            ):
                return None
    elif type(node) is not ast.Expr:
        return None
    found = Plain([], [], [])
    todo: list[ast.AST] = [node.value]
    left = _MOST
    while todo:
        part = todo.pop()
        left -= 1
        if not left:
            return None
        kind = type(part)
        if kind is ast.Constant:
            continue
        if kind is ast.Name:
            value = namespace.get(part.id, namespace)  # type: ignore[attr-defined]
            if value is namespace:  # a builtin, or none
                return None
            if id(type(value)) not in _LIGHT:
                found.used.append(value)
        elif kind is ast.Call:
            called = part.func  # type: ignore[attr-defined]
            if type(called) is ast.Name:
                found.called.append(namespace.get(called.id))
            elif type(called) is not ast.Attribute:
                return None
            todo.append(called)
            todo += part.args  # type: ignore[attr-defined]
            for keyword in part.keywords:  # type: ignore[attr-defined]
                if keyword.arg is None or keyword.arg in _NOT_GIVEN:
                    return None
                todo.append(keyword.value)
        elif kind is ast.Attribute:
            inner = part.value  # type: ignore[attr-defined]
            home = namespace.get(inner.id) if type(inner) is ast.Name else None
            found.words.append((home if type(home) is ModuleType else None, part.attr))  # type: ignore[attr-defined]
            todo.append(inner)
        elif kind is ast.BinOp:
            todo += (part.left, part.right)  # type: ignore[attr-defined]
        elif kind is ast.UnaryOp:
            todo.append(part.operand)  # type: ignore[attr-defined]
        elif kind is ast.Tuple or kind is ast.List:
            todo += part.elts  # type: ignore[attr-defined]
        elif kind is ast.Subscript:
            todo += (part.value, part.slice)  # type: ignore[attr-defined]
        elif kind is ast.Slice:
            todo += [one for one in (part.lower, part.upper, part.step) if one is not None]  # type: ignore[attr-defined]
        else:
            return None
    return found
