"""What a statement may change in place, marked before it and compared after its failure.

Rebound names are put back by the cell itself, random states by `randomness`. This is what cannot be put back:
tensors and gradients (by the allocator), containers, iterators, names changed by ``global``.
No value that could hold device memory is kept alive: only its id, or what is light and immutable.
"""

from __future__ import annotations

import ast
import operator
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, GeneratorType, ModuleType
from typing import TYPE_CHECKING, Any

from ..memory.torch import ranks

if TYPE_CHECKING:
    from ..cells.rescuer import Step
    from ..memory.allocator import Allocator

__all__ = ["Marks", "may_act", "names_read", "take"]

LIGHT = (int, float, complex, bool, str, bytes, type(None), range)
_PLAIN = (*LIGHT, ModuleType, type, FunctionType, BuiltinFunctionType)
MOST = 1000
"""Items of one container that are compared; beyond it only the length."""

FEW = 50
"""Items of one container whose own lengths are compared too."""
_HOLDS = (list, dict, set, deque)

_ACTS: frozenset[type[ast.AST]] = frozenset(
    (ast.Call, ast.Await, ast.BinOp, ast.AugAssign, ast.For, ast.AsyncFor, ast.With, ast.AsyncWith, ast.Delete)
) | {ast.Subscript, ast.comprehension, ast.Starred, ast.Compare, ast.While}


def may_act(node: ast.AST | None) -> bool:
    """Whether a statement can run code that changes anything: definitions, imports and constants cannot."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return bool(node.decorator_list)
    if node is None:
        return True
    todo: list[ast.AST] = [node]
    while todo:  # ast.walk takes thrice as long, and this runs before every statement
        part = todo.pop()
        if type(part) in _ACTS:
            return True
        for name in part._fields:
            value = getattr(part, name, None)
            if isinstance(value, ast.AST):
                todo.append(value)
            elif type(value) is list:
                todo += [item for item in value if isinstance(item, ast.AST)]
    return False


def names_read(node: ast.AST | None) -> frozenset[str]:
    """Names that the statement's own text reads."""
    if node is None:
        return frozenset()
    return frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))


def _lengths(values: Collection[Any]) -> tuple[int, ...]:
    """Lengths of the containers inside a small container."""
    return tuple(len(v) for v in values if type(v) in _HOLDS) if len(values) <= FEW else ()


def _items(value: Any) -> tuple[int, ...] | None:
    """What changes when a plain container, or an object of the notebook's own class, is changed in place."""
    kind = type(value)
    if kind is dict:
        held: Collection[Any] = value.values()
    elif kind in _HOLDS:
        held = value
    elif kind is bytearray:
        return (len(value), hash(bytes(value)) if len(value) <= MOST else 0)
    elif kind.__module__ == "__main__":
        from ..memory.parts import fields  # reads past the user's own __dict__ and __class__

        held = fields(value).values()
    else:
        return None
    return (len(held), *(map(id, held) if len(held) <= MOST else ()), *_lengths(held))


def _generator(value: Any) -> Any:
    frame = value.gi_frame
    return None if frame is None else frame.f_lasti, id(frame)


def _hint(value: Any) -> int:
    return operator.length_hint(value, -1)


_ITERATORS: dict[type, Callable[[Any], Any]] = {
    GeneratorType: _generator,
    type(iter([])): _hint,
    type(iter(())): _hint,
    type(iter({})): _hint,
    type(iter({}.values())): _hint,
    type(iter({}.items())): _hint,
    type(iter(set())): _hint,
    type(iter(range(0))): _hint,
    type(iter("")): _hint,
    type(reversed([])): _hint,
}
"""Iterators that tell where they are; any other is taken to have moved on if the statement reads its name."""


@dataclass
class Marks:
    """Marks of one attempt."""

    light: dict[str, Any] = field(default_factory=dict)
    others: dict[str, int] = field(default_factory=dict)
    containers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    iterators: dict[str, Any] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    """Iterators that the statement reads and that do not tell where they are."""
    tensors: Any = None
    ranks: tuple[tuple[str, int], ...] = ()
    """Collectives that each group of this rank had entered."""
    bound: Collection[str] = ()

    def changed(self, namespace: Mapping[str, Any], allocator: Allocator | None) -> list[str]:
        """Sentences naming what changed and cannot be put back; empty when a repeat starts from the same state."""
        found = ranks.changed(self.ranks, namespace)
        if allocator is not None and self.tensors is not None:
            found += allocator.changed(self.tensors)
        lists = [n for n, before in self.containers.items() if n in namespace and _items(namespace[n]) != before]
        lists = [n for n in lists if id(namespace[n]) == self.others.get(n)]
        if lists:
            found.append(f"changed in place: {', '.join(lists)}")
        moved = [
            name
            for name, (where, kind) in self.iterators.items()
            if name in namespace and type(namespace[name]) is kind and _ITERATORS[kind](namespace[name]) != where
        ]
        moved += [name for name in self.unknown if name in namespace]
        if moved:
            found.append(f"iterators may have moved on: {', '.join(moved)}")
        rebound = [n for n, v in self.light.items() if n not in self.bound and namespace.get(n, self) is not v]
        rebound += [n for n, old in self.others.items() if n not in self.bound and id(namespace.get(n, self)) != old]
        if rebound:
            found.append(f"names changed by a function (global): {', '.join(sorted(rebound))}")
        return found


def take(step: Step, namespace: Mapping[str, Any], allocator: Allocator | None, saved: Collection[str]) -> Marks:
    """Marks before an attempt of a statement that may act. Names in `saved` are kept by a checkpoint: not marked."""
    marks = Marks(bound=step.names_bound, ranks=ranks.position())
    watched: dict[str, Any] = {}
    for name, value in namespace.items():
        if name[:1] == "_" or name in saved or name in ("In", "Out", "get_ipython"):
            continue
        kind = type(value)
        if kind in LIGHT:
            marks.light[name] = value
            continue
        if issubclass(kind, _PLAIN):
            continue
        marks.others[name] = id(value)
        items = _items(value)
        if items is not None:
            marks.containers[name] = items
        elif kind in _ITERATORS:
            marks.iterators[name] = (_ITERATORS[kind](value), kind)
        elif hasattr(kind, "__next__") and name in names_read(step.node):
            marks.unknown.append(name)
        watched[name] = value
    if allocator is not None and watched:
        marks.tensors = allocator.watch(watched)
    return marks
