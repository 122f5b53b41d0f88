"""Names of the cell's namespace that a failed statement bound: put back without having kept old values alive.

A value that the statement replaces must be free to go as in the plain cell, else the guard would raise the peak.
So only a weak reference is kept, or the value itself where it is a small plain one; what has gone meanwhile is told.
"""

from __future__ import annotations

import ast
import dis
import sys
import weakref
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

from .rescuer import Step

__all__ = ["Saved", "bound", "is_plain", "perhaps_bound"]


def _ops(*names: str) -> frozenset[int]:
    return frozenset(dis.opmap[name] for name in names)


_BIND_HERE = _ops("STORE_NAME", "STORE_GLOBAL", "DELETE_NAME", "DELETE_GLOBAL")
_BIND_BELOW = _ops("STORE_GLOBAL", "DELETE_GLOBAL")
_READ_GLOBAL = _ops("LOAD_GLOBAL")
# From 3.11 on the lowest bit of LOAD_GLOBAL's argument is a flag (dis documentation, "LOAD_GLOBAL").
_GLOBAL_SHIFT = 1 if sys.version_info >= (3, 11) else 0

_WIDE = dis.EXTENDED_ARG

_PLAIN = frozenset((int, float, complex, bool, type(None), range))
_SMALL = 1 << 16  # length of a string that is kept


def bound(code: CodeType) -> frozenset[str]:
    """Names that running `code` may bind or delete in its namespace; ``global`` in functions elsewhere is not seen."""
    found = set(_names(code, _BIND_HERE)) if _BIND_HERE.intersection(code.co_code[::2]) else set()
    for inner in _inner(code):
        found.update(_names(inner, _BIND_BELOW))
    return frozenset(found)


def perhaps_bound(code: CodeType) -> Iterable[str]:
    """At least the names of `bound`, found faster."""
    if any(isinstance(constant, CodeType) for constant in code.co_consts):
        return bound(code)
    return code.co_names


def _names(code: CodeType, ops: frozenset[int], shift: int = 0) -> Iterator[str]:
    raw, argument = code.co_code, 0
    if _WIDE not in raw[::2]:  # most: no name beyond the 256th
        yield from [code.co_names[low >> shift] for op, low in zip(raw[::2], raw[1::2], strict=True) if op in ops]
        return
    for op, low in zip(raw[::2], raw[1::2], strict=True):
        argument = argument << 8 | low
        if op == _WIDE:
            continue
        if op in ops:
            yield code.co_names[argument >> shift]
        argument = 0


def _inner(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inner(constant)


class Saved:
    """What the names of one statement stood for before an attempt.

    Parameters
    ----------
    step
        The statement.
    namespace
        The cell's namespace.
    """

    def __init__(self, step: Step, namespace: dict[str, Any]) -> None:
        self._step = step
        self._old: dict[str, _Mark] = {}
        self._late = _binds_at_its_end(step)
        if not self._late:
            for name in step.names_perhaps_bound:
                if name in namespace:
                    self._old[name] = _Mark(namespace[name])

    def made(self, namespace: dict[str, Any]) -> dict[str, Any]:
        """What the attempt bound and holds no memory but the interpreter's: it can wait until no repeat is made."""
        names = () if self._late else self._step.names_bound
        return {name: namespace[name] for name in names if name in namespace and light(namespace[name])}

    def put_back(self, namespace: dict[str, Any]) -> tuple[str, ...]:
        """Undo what the attempt bound.

        Returns
        -------
        tuple of str
            Names whose earlier value is gone and which the statement may read before it binds them. They keep the
            value that the attempt gave them. A name that is surely bound first is removed, which frees its value.
        """
        lost = []
        for name in () if self._late else self._step.names_bound:
            mark = self._old.get(name)
            if mark is None:
                namespace.pop(name, None)
            elif mark.there:
                namespace[name] = mark.value
            elif _may_read_first(self._step.node, name, namespace):
                lost.append(name)
            elif id(namespace.get(name)) != mark.id:
                namespace.pop(name, None)
        return tuple(sorted(lost))


_ATOMS = (int, float, complex, bool, str, bytes, type(None))
_MANY = 10_000
"""Values that are looked at in one container: a larger one is not kept."""


def light(value: object, left: list[int] | None = None) -> bool:
    """Whether a value is numbers and text alone, in containers or in an array of numpy's: nothing of a card."""
    left = [_MANY] if left is None else left
    left[0] -= 1
    kind = type(value)
    if left[0] < 0:
        return False
    if kind in _ATOMS:
        return True
    if kind in (list, tuple, set, frozenset):
        return all(light(one, left) for one in value)  # type: ignore[attr-defined]
    if kind is dict:
        return all(light(one, left) for pair in value.items() for one in pair)  # type: ignore[attr-defined]
    array = kind.__name__ == "ndarray" and kind.__module__ == "numpy"
    return array and not value.dtype.hasobject  # type: ignore[attr-defined]


class _Mark:
    """A value held weakly, or held because it is small and plain, or known by its id alone."""

    __slots__ = ("_held", "_weak", "id")

    def __init__(self, value: object) -> None:
        self.id = id(value)
        self._held: tuple[object, ...] = ()
        self._weak: weakref.ref[Any] | None = None
        if is_plain(value):
            self._held = (value,)
            return
        try:
            self._weak = weakref.ref(value)
        except TypeError:  # lists, dicts, tuples: an equal id may be another object's by now, so it proves nothing
            pass

    @property
    def there(self) -> bool:
        return bool(self._held) or (self._weak is not None and self._weak() is not None)

    @property
    def value(self) -> Any:
        return self._held[0] if self._held else self._weak and self._weak()


_module, _dict_offset = (vars(type)[name].__get__ for name in ("__module__", "__dictoffset__"))
"""These attributes of a class, past its metaclass."""


def is_plain(value: object) -> bool:
    """Whether holding `value` can hold no memory worth naming. No code of the user's runs, whatever its class does."""
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind is str or kind is bytes:
        return len(value) <= _SMALL  # type: ignore[arg-type]
    if issubclass(kind, tuple):  # shapes, torch.Size
        items: Any = value
        few = not _dict_offset(kind) and tuple.__len__(items) <= 16
        return few and all(type(item) in _PLAIN for item in tuple.__iter__(items))
    home = _module(kind)
    return type(home) is str and home == "numpy" and getattr(value, "shape", None) == () and kind.__name__ != "ndarray"


def _binds_at_its_end(step: Step) -> bool:
    """Whether the statement binds names as the last thing it does, or none: then a failed attempt bound none."""
    node = step.node
    if isinstance(node, ast.Assign):
        if len(node.targets) > 1 or type(node.targets[0]) is not ast.Name:
            return False
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        if type(node.target) is not ast.Name:
            return False
    elif not isinstance(node, (ast.Expr, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return False
    return ":=" not in step.source


def _may_read_first(node: ast.AST, name: str, namespace: dict[str, Any]) -> bool:
    """Whether the statement may read `name` before it has bound it, itself or by a function of the namespace."""
    if _Reads(name).statement(node):
        return True
    for value in list(namespace.values()):
        functions = [value] if isinstance(value, FunctionType) else []
        if isinstance(value, type):
            functions = [f for f in vars(value).values() if isinstance(f, FunctionType)]
        for function in functions:
            if function.__globals__ is namespace and _reads_global(function.__code__, name):
                return True
    return False


def _reads_global(code: CodeType, name: str) -> bool:
    return any(name in c.co_names and name in _names(c, _READ_GLOBAL, _GLOBAL_SHIFT) for c in (code, *_inner(code)))


class _Reads:
    """Does a statement read a name before it surely bound it? Branches and loop bodies bind nothing for sure."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.bound = False

    def statement(self, node: ast.AST) -> bool:
        """Walk in the order in which Python evaluates; True at the first read that may come before a binding."""
        if self.bound:
            return False
        if isinstance(node, ast.Name):
            if node.id == self.name:
                if not isinstance(node.ctx, ast.Store):
                    return True
                self.bound = True
            return False
        if isinstance(node, ast.Assign):
            return self._all(node.value, *node.targets)
        if isinstance(node, ast.AugAssign):
            same = isinstance(node.target, ast.Name) and node.target.id == self.name
            return same or self._all(node.value, node.target)
        if isinstance(node, ast.AnnAssign):
            return node.value is not None and self._all(node.value, node.target)
        if isinstance(node, ast.NamedExpr):
            return self._all(node.value, node.target)
        if isinstance(node, (ast.For, ast.AsyncFor)):
            if self._all(node.iter):
                return True
            return self._perhaps(node.target, *node.body) or self._perhaps(*node.orelse)
        if isinstance(node, ast.While):
            return self._all(node.test) or self._perhaps(*node.body) or self._perhaps(*node.orelse)
        if isinstance(node, (ast.If, ast.IfExp)):
            body = node.body if isinstance(node.body, list) else [node.body]
            orelse = node.orelse if isinstance(node.orelse, list) else [node.orelse]
            return self._all(node.test) or self._perhaps(*body) or self._perhaps(*orelse)
        if isinstance(node, (ast.With, ast.AsyncWith)):
            items = [part for item in node.items for part in (item.context_expr, item.optional_vars) if part]
            return self._all(*items, *node.body)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, *_COMPREHENSIONS)):
            return any(isinstance(n, ast.Name) and n.id == self.name for n in ast.walk(node))
        if isinstance(node, (ast.BoolOp, ast.Try, ast.ExceptHandler, ast.Match, ast.match_case)):
            return any(self._perhaps(child) for child in ast.iter_child_nodes(node))
        return self._all(*ast.iter_child_nodes(node))

    def _all(self, *nodes: ast.AST) -> bool:
        return any(self.statement(node) for node in nodes)

    def _perhaps(self, *nodes: ast.AST) -> bool:
        """Nodes that may not run, or not to their end: what they bind is not sure afterwards."""
        reads = self._all(*nodes)
        self.bound = False
        return reads


_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
