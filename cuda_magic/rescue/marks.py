"""What a statement may change in place, marked before it and compared after its failure.

Rebound names are put back by the cell itself, random states by `randomness`. This is what cannot be put back:
tensors and gradients (by the allocator), containers, iterators, names changed by ``global``.
No value that could hold device memory is kept alive: only its id, or what is light and immutable.
"""

from __future__ import annotations

import ast
import operator
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from types import BuiltinFunctionType, FunctionType, GeneratorType, ModuleType
from typing import TYPE_CHECKING, Any

from ..memory.torch import ranks
from .randomness import may_draw

if TYPE_CHECKING:
    from ..cells.rescuer import Step
    from ..memory.allocator import Allocator

__all__ = ["Marker", "Marks", "may_act", "names_read"]

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
    if node is None:
        return True
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return bool(node.decorator_list)
    of = type(getattr(node, "value", None))
    if type(node) in _ACTS or of in _ACTS:  # most statements
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
    elif _module(kind) == "__main__":
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


class Marks:
    """Marks of one attempt."""

    __slots__ = ("containers", "draw", "iterators", "light", "others", "ranks", "step", "tensors", "unknown")

    def __init__(self, step: Step | None, light: Mapping[str, Any], others: Mapping[str, int]) -> None:
        self.step, self.light, self.others = step, light, others
        self.containers: dict[str, tuple[int, ...]] = {}
        self.iterators: dict[str, Any] = {}
        self.unknown: list[str] = []
        """Iterators that the statement reads and that do not tell where they are."""
        self.draw: list[Any] = []
        """Values that may be random generators."""
        self.tensors: Any = None
        self.ranks: tuple[tuple[str, int], ...] = ()
        """Collectives that each group of this rank had entered."""

    @property
    def bound(self) -> Collection[str]:
        """Names that the statement itself binds: the cell puts those back."""
        return () if self.step is None else self.step.names_bound

    def entered(self, namespace: Mapping[str, Any]) -> list[str]:
        """Why this rank of a job may not repeat the statement alone: nothing keeps that state, nobody may allow it."""
        return ranks.changed(self.ranks, namespace)

    def changed(self, namespace: Mapping[str, Any], allocator: Allocator | None) -> list[str]:
        """Sentences naming what changed and cannot be put back; empty when a repeat starts from the same state."""
        found: list[str] = []
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
        bound = self.bound
        rebound = [n for n, v in self.light.items() if n not in bound and namespace.get(n, self) is not v]
        rebound += [n for n, old in self.others.items() if n not in bound and id(namespace.get(n, self)) != old]
        if rebound:
            found.append(f"names changed by a function (global): {', '.join(sorted(rebound))}")
        return found


_LIGHT, _SKIP, _CONTAINER, _ITERATOR, _UNKNOWN, _OTHER, _DRAWS = range(7)
"""What is marked of a value, by its type."""

_module = vars(type)["__module__"].__get__
_SORTS = {
    id(kind): sort
    for sort, kinds in (
        (_LIGHT, LIGHT),
        (_SKIP, _PLAIN[len(LIGHT) :]),
        (_CONTAINER, (*_HOLDS, bytearray)),
        (_ITERATOR, tuple(_ITERATORS)),
    )
    for kind in kinds
}
"""By the type's id: a metaclass of the user's may forbid to hash or compare types. None of these is ever collected."""


_MOST_TYPES = 500
_types: list[type] = []
"""Libraries' types whose sort was added to `_SORTS`; kept, so that no other type gets the id of one."""


def _sort(kind: type) -> int:
    sort = _found(kind)
    if _module(kind) != "__main__" and len(_types) < _MOST_TYPES:
        _types.append(kind)
        _SORTS[id(kind)] = sort
    return sort


def _found(kind: type) -> int:
    if issubclass(kind, _PLAIN):
        return _SKIP
    if _module(kind) == "__main__":
        return _CONTAINER
    if may_draw(kind):
        return _DRAWS
    return _UNKNOWN if hasattr(kind, "__next__") else _OTHER


_NOT_THE_USERS = frozenset(("In", "Out", "get_ipython", "exit", "quit"))


def _label(key: object) -> str:
    """A name for what the namespace holds under a key that is no string."""
    return f"globals()[{key!r}]" if type(key) in (int, float, bool, bytes, type(None)) else f"globals()[{id(key)}]"


class Marker:
    """Takes the marks of a cell's statements, one after the other.

    What stands under a name is looked at again only if another object stands there than before the last statement.
    """

    def __init__(self) -> None:
        self._names: list[Any] = []
        self._ids: list[int] = []
        self._kinds: list[int] = []
        self._saved: Collection[str] = ()
        self._clear()

    def _clear(self) -> None:
        self._light: dict[str, Any] = {}
        self._others: dict[str, int] = {}
        self._special: dict[str, int] = {}
        self._watched: dict[Any, str] = {}
        self._draw: dict[Any, None] = {}

    def take(
        self, step: Step, namespace: Mapping[Any, Any], allocator: Allocator | None, saved: Collection[str] = ()
    ) -> Marks:
        """Marks before an attempt of a statement that may act. Names in `saved` are kept by a checkpoint: not marked.

        They hold until the next call.
        """
        now = dict(namespace)  # at once: other threads may bind names
        names, values, known = list(now), list(now.values()), len(self._names)
        ids, kinds = list(map(id, values)), list(map(id, map(type, values)))
        same = saved == self._saved and names[:known] == self._names
        if same and ids[:known] == self._ids and kinds[:known] == self._kinds:
            fresh: Iterable[int] = range(known, len(names))
        elif same:
            was = enumerate(zip(self._ids, self._kinds, ids, kinds, strict=False))
            fresh = [i for i, (a, b, c, d) in was if a != c or b != d]
            for i in fresh:
                for table in (self._light, self._others, self._special, self._watched, self._draw):
                    table.pop(names[i], None)
            fresh += range(known, len(names))
        else:
            self._clear()
            fresh = range(len(names))
        self._names, self._ids, self._kinds, self._saved = names, ids, kinds, saved
        sorts = list(map(_SORTS.get, kinds))
        for i in fresh:
            if sorts[i] != _SKIP:
                self._look(names[i], values[i], sorts[i])
        marks = Marks(step, self._light, self._others)
        marks.ranks = ranks.position()
        for name, sort in self._special.items():
            self._mark(marks, name, now[name], sort)
        if self._draw:
            marks.draw = [now[key] for key in self._draw]
        if allocator is not None and self._watched:
            marks.tensors = allocator.watch({label: now[key] for key, label in self._watched.items()})
        return marks

    def _look(self, key: Any, value: Any, sort: int | None) -> None:
        """Sort what stands under this name now."""
        if type(key) is str and (key[:1] == "_" or key in _NOT_THE_USERS or key in self._saved):
            theirs = False
        elif sort == _LIGHT and type(key) is str:
            self._light[key] = value
            return
        else:
            theirs = True
        if sort is None:
            sort = _sort(type(value))
        if sort == _DRAWS:
            self._draw[key] = None
        if not theirs or sort in (_SKIP, _LIGHT):
            return
        if type(key) is not str:
            self._watched[key] = _label(key)
            return
        self._others[key] = id(value)
        self._watched[key] = key
        if sort in (_CONTAINER, _ITERATOR, _UNKNOWN):
            self._special[key] = sort

    @staticmethod
    def _mark(marks: Marks, name: str, value: Any, sort: int) -> None:
        if sort == _CONTAINER:
            items = _items(value)
            if items is not None:
                marks.containers[name] = items
        elif sort == _ITERATOR:
            marks.iterators[name] = (_ITERATORS[type(value)](value), type(value))
        elif marks.step is not None and name in names_read(marks.step.node):
            marks.unknown.append(name)
