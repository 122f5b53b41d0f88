"""What plain containers and objects of the notebook's own classes hold, marked before a statement and compared after.

Nothing that could hold device memory is kept alive. Light values are kept, others are known by a weak reference or,
where they allow none, by their id: an id alone may be that of another object that came after it.
"""

from __future__ import annotations

import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from ..memory.parts import fields  # reads past the user's own __dict__ and __class__

__all__ = ["HOLDS", "LIGHT", "PLAIN", "TEXT", "Box", "Boxes", "box_of", "reference", "same"]

LIGHT = (int, float, complex, bool, str, bytes, type(None), range)
PLAIN = (*LIGHT, ModuleType, type, FunctionType, BuiltinFunctionType)
DICTS = (dict, OrderedDict, defaultdict, Counter)
HOLDS = (list, set, deque, bytearray, *DICTS)
"""By exactly these types; a subclass is another object."""

MOST = 1000
"""Items of one container that are compared; beyond it only the length."""
FEW = 50
"""Items of one container whose own lengths are compared too."""

TEXT = 1 << 14
"""Characters that are kept when a cell has ended."""

_LIGHT = frozenset(map(id, LIGHT))
_HOLDS = frozenset(map(id, HOLDS))
_DICTS = frozenset(map(id, DICTS))
"""By their ids: a metaclass of the user's may forbid to hash or to compare types."""

Reference = Any
"""A weak reference, or the id of what allows none."""


def reference(value: object, gone: Callable[[Any], None] | None = None) -> Reference:
    """What `same` knows `value` by. `gone` is called with the reference when the value has died."""
    try:
        return weakref.ref(value, gone)
    except TypeError:  # lists, dicts, tuples
        return id(value)


def same(known: Reference, value: object) -> bool:
    """Whether `value` is the very object."""
    return known() is value if type(known) is weakref.ReferenceType else known == id(value)


class Box:
    """The items of one container at one moment."""

    __slots__ = ("held", "ids", "lengths", "light", "modest", "references", "size")

    def __init__(self, size: int, ids: list[int], items: list[Any]) -> None:
        self.size, self.ids, self.held = size, ids, items
        self.modest = False
        """Known to keep little memory alive."""
        self.references: list[Any] = []
        self.lengths: list[int] = []
        self.light = size <= MOST and _LIGHT.issuperset(map(id, map(type, items)))
        if self.light:
            return
        # not functions: they may hold tensors in a closure
        self.held = [item for item in items if id(type(item)) in _LIGHT]
        known = [reference(item) for item in items if id(type(item)) not in _LIGHT]
        self.references = [r for r in known if type(r) is weakref.ReferenceType]
        if size <= FEW:
            self.lengths = _lengths(items)

    def holds(self, value: Any) -> bool:
        """Whether the container holds the very same items still."""
        held = _open(value)
        items = _items(held)
        return len(held) == self.size and list(map(id, items)) == self.ids and self.sound(items)

    def heavy(self) -> bool:
        """Whether it keeps much memory of the host alive: long strings."""
        if not self.modest:
            texts = [len(item) for item in self.held if type(item) is str or type(item) is bytes]
            self.modest = sum(texts) <= TEXT
        return not self.modest

    def sound(self, items: list[Any]) -> bool:
        """Whether items of the same ids are the same: none has died, none of them holds more or less than it did."""
        if self.light:
            return True
        if self.lengths and _lengths(items) != self.lengths:
            return False
        return all(r() is not None for r in self.references)


def _lengths(items: Iterable[Any]) -> list[int]:
    """Lengths of the containers inside a small container."""
    return [len(item) for item in items if id(type(item)) in _HOLDS]


def _open(value: Any) -> Collection[Any]:
    """The container itself, or an object's attributes."""
    return value if id(type(value)) in _HOLDS else fields(value)


def _views(held: Collection[Any]) -> tuple[Collection[Any], ...]:
    """What is compared of a container; a dict's keys follow its values."""
    if len(held) > MOST:
        return ()
    return (dict.values(held), held) if isinstance(held, dict) else (held,)


def _items(held: Collection[Any]) -> list[Any]:
    return _chain(_views(held))


def box_of(value: Any) -> Box:
    """The mark of one container."""
    held = _open(value)
    items = _items(held)
    return Box(len(held), list(map(id, items)), items)


class Boxes:
    """Marks of the containers under some names, taken again before each statement."""

    def __init__(self) -> None:
        self.marks: dict[str, Box] = {}
        """By name. They hold until the next `take`."""
        self._lists: list[str] = []
        self._dicts: list[str] = []
        self._objects: list[str] = []
        self._ids: list[int] = []
        self._sizes: list[int] = []
        self._heavy: list[str] = []
        """Names whose items are not all light."""

    def add(self, name: str, value: Any) -> None:
        """A name of a container, or of an object of the notebook's own class."""
        self.marks[name] = NOTHING
        kind = id(type(value))
        names = self._dicts if kind in _DICTS else self._lists if kind in _HOLDS else self._objects
        names.append(name)
        self._sizes = []

    def forget(self, name: str) -> None:
        """The name stands for another object now."""
        if self.marks.pop(name, None) is not None:
            for names in (self._lists, self._dicts, self._objects):
                if name in names:
                    names.remove(name)
            self._sizes = []

    def rest(self) -> None:
        """Let go of what keeps much memory alive."""
        for name, box in self.marks.items():
            if box.heavy():
                self.marks[name] = NOTHING
                self._sizes = []

    def take(self, namespace: Mapping[Any, Any]) -> None:
        """Bring the marks to what the containers hold now: all are compared, those that have changed marked anew."""
        if not self.marks:
            return
        lists: list[Collection[Any]] = [namespace[name] for name in self._lists]
        dicts = [namespace[name] for name in self._dicts] + [fields(namespace[name]) for name in self._objects]
        sizes = [*map(len, lists), *map(len, dicts)]
        if max(sizes) > MOST:
            lists = [value if len(value) <= MOST else () for value in lists]
            dicts = [value if len(value) <= MOST else {} for value in dicts]
        in_lists, values, keys = _chain(lists), _chain(map(dict.values, dicts)), _chain(dicts)
        items = [*in_lists, *values, *keys]
        ids = list(map(id, items))
        if sizes != self._sizes or ids != self._ids:
            self._find(sizes, len(values), items, ids)
            self._ids, self._sizes = ids, sizes
        for name in self._heavy:
            box = self.marks[name]
            mine = _items(_open(namespace[name])) if box.lengths else []
            if not box.sound(mine):
                self.marks[name] = Box(box.size, box.ids, _items(_open(namespace[name])))

    def _find(self, sizes: list[int], values: int, items: list[Any], ids: list[int]) -> None:
        """Mark anew what has changed. `items` are those of the lists, then the dicts' values, then their keys."""
        names = [*self._lists, *self._dicts, *self._objects]
        start = 0
        for i, (name, size) in enumerate(zip(names, sizes, strict=True)):
            box, end = self.marks[name], start + (size if size <= MOST else 0)
            mine = ids[start:end]
            if i >= len(self._lists):
                mine += ids[start + values : end + values]
            if box is NOTHING or box.size != size or box.ids != mine:
                held = items[start:end]
                if i >= len(self._lists):
                    held += items[start + values : end + values]
                self.marks[name] = Box(size, mine, held)
            start = end
        self._heavy = [name for name, box in self.marks.items() if not box.light]


def _chain(parts: Iterable[Iterable[Any]]) -> list[Any]:
    return list(chain.from_iterable(parts))


NOTHING = Box(0, [], [])
"""Of a container that was not looked at yet."""
