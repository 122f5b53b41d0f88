"""Takes the marks of a cell's statements, one after the other: in microseconds, since it is done before each.

What stands under a name is looked at again only if another object stands there than before the last statement; that is
found by comparing lists of ids, which Python does fast.
"""

from __future__ import annotations

import ast
import weakref
from collections.abc import Collection, Iterable, Mapping
from itertools import compress, count
from operator import ne
from types import FunctionType
from typing import TYPE_CHECKING, Any

from ..memory.torch import ranks, tensors
from .boxes import HOLDS, LIGHT, PLAIN, TEXT, Boxes, box_of, reference
from .codes import leaves_at_top, names_in
from .depths import Depths
from .marks import ITERATORS, Marks
from .plain import plain
from .randomness import draws
from .reach import reach

if TYPE_CHECKING:
    from ..cells.rescuer import Step
    from ..memory.allocator import Allocator

__all__ = ["Marker", "forget", "take_up"]

_LIGHT, _SKIP, _CONTAINER, _ITERATOR, _UNKNOWN, _OTHER, _DRAWS = range(7)
"""What is marked of a value, by its type."""

_module, _offset = (vars(type)[name].__get__ for name in ("__module__", "__dictoffset__"))
_SORTS = {
    id(kind): sort
    for sort, kinds in (
        (_LIGHT, LIGHT),
        (_SKIP, PLAIN[len(LIGHT) :]),
        (_CONTAINER, HOLDS),
        (_ITERATOR, tuple(ITERATORS)),
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
    if issubclass(kind, PLAIN):
        return _SKIP
    if _module(kind) == "__main__":
        return _CONTAINER
    if draws(kind):
        return _DRAWS
    return _UNKNOWN if hasattr(kind, "__next__") else _OTHER


_NOT_THE_USERS = frozenset(("In", "Out", "get_ipython", "exit", "quit"))


def _label(key: object) -> str:
    """A name for what the namespace holds under a key that is no string."""
    return f"globals()[{key!r}]" if type(key) in (int, float, bool, bytes, type(None)) else f"globals()[{id(key)}]"


def _may_set_parts(node: ast.AST | None) -> bool:
    """Whether a statement sets attributes or items itself; what it calls is not looked through."""
    if isinstance(node, ast.Assign):
        return not all(isinstance(target, ast.Name) for target in node.targets)
    return not isinstance(node, ast.Expr)


_FUNCTIONS = (FunctionType, type(None))
_NOISY = frozenset(
    (
        *(
            "apply",
            "backward",
            "clear",
            "copy",
            "cpu",
            "cuda",
            "double",
            "eval",
            "fit",
            "float",
            "half",
            "insert",
            "load",
        ),
        *("append", "extend", "load_state_dict", "pop", "set", "step", "to", "train", "update", "zero_grad"),
    )
)


def _is_quiet(step: Step, namespace: Mapping[str, Any]) -> bool:
    """Whether a statement seems to change no tensor: a guess, wrong at the price of a repeat that is refused."""
    if type(step.node) is not ast.Assign and type(step.node) is not ast.Expr:
        return False
    if step.code is None or leaves_at_top(step.code):
        return False
    for name in names_in(step.code):
        if name in _NOISY or name[-1:] == "_" or type(namespace.get(name)) is FunctionType:
            return False
    return True


def _is_backward(node: ast.AST | None) -> bool:
    """Whether a statement is ``loss.backward()``: it changes gradients alone, as a rule."""
    call = getattr(node, "value", None)
    return type(node) is ast.Expr and type(call) is ast.Call and getattr(call.func, "attr", "") == "backward"


_resting: weakref.WeakKeyDictionary[Any, Marker] = weakref.WeakKeyDictionary()
"""By shell: the marker of the last cell. What it knows is compared anew with what is there."""


def take_up(shell: Any) -> Marker:
    """The marker of this shell's last cell, or a new one where there is none or it is in use."""
    return (_resting.pop(shell, None) if shell is not None else None) or Marker()


def forget() -> None:
    """Drop what is kept from one cell to the next."""
    _resting.clear()


class Marker:
    """Takes the marks of cells' statements, one after the other."""

    def __init__(self) -> None:
        self._names: list[Any] = []
        self._ids: list[int] = []
        self._kinds: list[int] = []
        self._saved: Collection[str] = ()
        self._walk = True
        """Whether the last statement may have changed which tensors a module has."""
        self._quiet = False
        """Whether the statements since the last marks of tensors seem to have changed none."""
        self._clear()

    def _clear(self) -> None:
        self._light: dict[str, Any] = {}
        self._long: set[str] = set()
        """Names of long strings."""
        self._objects: set[str] = set()
        """Names of objects that led to no tensor when they were looked at, and may do so later."""
        self._others: dict[str, Any] = {}
        self._boxes = Boxes()
        self._iterators: dict[str, None] = {}
        self._unknown: dict[str, None] = {}
        self._fresh: dict[str, Any] = {}
        self._watched: dict[str, Any] = {}
        """Keys of the namespace, by what they are called in a report: those that may lead to tensors, once they were
        asked for. Before a library is imported all are fresh."""
        self._draw: dict[Any, None] = {}
        self._gone: list[Any] = []
        """References to values that have died: others may have their ids by now."""
        self._tensors: Any = None
        self._allocator: Allocator | None = None
        """The one that was asked last."""

    def rest(self, shell: Any) -> None:
        """The cell has ended: keep what is known for the next one, and no memory worth naming."""
        if self._long:
            for i, name in enumerate(self._names):
                if type(name) is str and name in self._long:
                    self._light.pop(name, None)
                    self._ids[i] = 0  # looked at again
            self._long.clear()
        self._boxes.rest()
        self._walk, self._quiet = True, False
        self._fresh.update((name, name) for name in self._objects)
        self._objects.clear()
        if shell is not None:
            _resting[shell] = self

    def take(
        self, step: Step, namespace: Mapping[Any, Any], allocator: Allocator | None, saved: Collection[str] = ()
    ) -> Marks:
        """Marks before an attempt of a statement that may act. Names in `saved` are kept by a checkpoint: not marked.

        They hold until the next call.
        """
        marks = None
        if allocator is not None:
            marks = self._plain(step, namespace, allocator, saved)
        if marks is None:
            marks = self._little(step, namespace, saved)
        if marks is not None:
            return marks
        tensors.hold()
        try:
            return self._take(step, namespace, allocator, saved)
        finally:
            tensors.let_go()

    def _take(
        self, step: Step, namespace: Mapping[Any, Any], allocator: Allocator | None, saved: Collection[str]
    ) -> Marks:
        now = dict(namespace)  # at once: other threads may bind names
        names, values = list(now), list(now.values())
        ids, kinds = list(map(id, values)), list(map(id, map(type, values)))
        if ids != self._ids or kinds != self._kinds or names != self._names or saved != self._saved:
            try:
                self._look_again(names, values, ids, kinds, saved)
            except BaseException:  # an interrupt, or a hostile type: nothing is taken to be known
                self._names, self._ids, self._kinds = [], [], []
                self._clear()
                raise
        if self._gone:
            self._look_at_the_dead(now)
        self._boxes.take(now)
        marks = Marks(step, self._light, self._others, self._boxes.marks)
        marks.ranks = ranks.position()
        for name in self._iterators:
            value = now[name]
            marks.iterators[name] = (ITERATORS[type(value)](value), type(value))
        if self._unknown:
            marks.unknown = tuple(self._unknown)
        if self._draw:
            marks.draw = tuple([now[key] for key in self._draw])
        known = {id(now[key]) for key in (*self._watched.values(), *self._fresh.values())}
        depths = marks.depths = Depths(step, namespace, saved, known, allocator)
        leads, depths.leads = depths.leads, {}
        own = set(map(id, marks.draw))
        marks.draw += tuple([value for value in depths.draw if id(value) not in own])
        depths.draw = []
        if allocator is not None:
            quiet = _is_quiet(step, namespace)
            older = "" if not self._quiet else "all" if quiet else "versions" if _is_backward(step.node) else ""
            marks.tensors = self._watch(now, allocator, leads, depths.steps, older)
            self._walk = _may_set_parts(step.node)
            self._quiet = quiet
        return marks

    @staticmethod
    def _little(step: Step, namespace: Mapping[Any, Any], saved: Collection[str]) -> Marks | None:
        """The marks of a statement that comes to little; None of any other."""
        found = reach(step.code, namespace)
        if found is None:
            return None
        marks = Marks(step)
        marks.little, marks.draws, marks.draw = True, found.draws, found.generators
        marks.ranks = ranks.position()
        names = [name for name in found.boxes if name not in saved]
        if names:
            marks.others = {name: id(namespace[name]) for name in names}
            marks.boxes = {name: box_of(namespace[name]) for name in names}
        return marks

    def _plain(
        self, step: Step, namespace: Mapping[Any, Any], allocator: Allocator, saved: Collection[str]
    ) -> Marks | None:
        """The marks of a statement of which the library knows all that it can change; None of any other."""
        if saved:
            return None
        marks = None
        node: Any = step.node
        call = getattr(node, "value", None)
        function = call.func if type(call) is ast.Call else None
        if type(function) is ast.Name and type(namespace.get(function.id)) in _FUNCTIONS:  # or a builtin
            return None
        if type(node) is not ast.Expr:
            call = None
        if type(call) is ast.Call and type(call.func) is ast.Attribute and type(call.func.value) is ast.Name:
            value = namespace.get(call.func.value.id)
            if not call.args and not call.keywords:
                mark = allocator.before_call(value, call.func.attr)
                if mark is not None:
                    marks = Marks(step)
                    marks.draws = False
                    self._quiet = self._quiet and call.func.attr != "step"
        if marks is None:
            words = plain(node, namespace)
            if words is None or not (words.used and (words.words or words.called)):
                return None
            mark = allocator.before_computing(*words)
            if mark is None:
                return None
            marks = Marks(step)
            marks.draws = mark.draws
        marks.plain, marks.tensors = True, mark
        marks.ranks = ranks.position()
        return marks

    def _watch(
        self, now: Mapping[Any, Any], allocator: Allocator, more: Mapping[str, Any], steps: bool | None, older: str
    ) -> Any:
        if self._allocator is not allocator:
            self._fresh |= self._watched | {name: name for name in self._others}
            self._watched, self._tensors, self._allocator = {}, None, allocator
        for label, key in self._fresh.items():
            if allocator.follows(now[key]):
                self._watched[label] = key
            elif label is key and _offset(type(now[key])):
                self._objects.add(label)
        self._fresh.clear()
        boxes = self._boxes.marks
        lead = {label: now[key] for label, key in self._watched.items() if label not in boxes or not boxes[label].light}
        lead.update(more)
        self._tensors = allocator.watch(lead, self._tensors, self._walk, steps=steps, older=older) if lead else None
        return self._tensors

    def _look_again(
        self, names: list[Any], values: list[Any], ids: list[int], kinds: list[int], saved: Collection[str]
    ) -> None:
        """Look at what stands under the names that were bound anew."""
        known = len(self._names)
        if saved != self._saved or names[:known] != self._names or not known:
            self._clear()
            fresh: Iterable[int] = range(len(names))
        else:
            changed = {*compress(count(), map(ne, self._ids, ids)), *compress(count(), map(ne, self._kinds, kinds))}
            for i in changed:
                self._forget(names[i])
            fresh = (*sorted(changed), *range(known, len(names)))
        self._names, self._ids, self._kinds, self._saved = names, ids, kinds, saved
        for i in fresh:
            sort = _SORTS.get(kinds[i])
            if sort == _SKIP:
                continue
            key = names[i]
            if type(key) is not str:
                self._look_below_no_name(key, values[i], sort)
            elif key[:1] != "_" and key not in _NOT_THE_USERS and key not in saved:
                if sort == _LIGHT:
                    self._light[key] = value = values[i]
                    if (type(value) is str or type(value) is bytes) and len(value) > TEXT:
                        self._long.add(key)
                else:
                    self._look(key, values[i], sort)
            elif (sort is None and _sort(type(values[i])) == _DRAWS) or sort == _DRAWS:
                self._draw[key] = None

    def _forget(self, key: Any) -> None:
        if type(key) is not str:
            for table in (self._fresh, self._watched):
                table.pop(_label(key), None)
            self._draw.pop(key, None)
            return
        for table in (
            *(self._light, self._others, self._iterators, self._unknown),
            *(self._fresh, self._watched, self._draw),
        ):
            table.pop(key, None)
        self._long.discard(key)
        self._objects.discard(key)
        self._boxes.forget(key)

    def _look_at_the_dead(self, now: Mapping[Any, Any]) -> None:
        """Values whose place, and name, another of the same type has taken."""
        dead = self._gone[:]
        del self._gone[: len(dead)]
        gone = set(map(id, dead))
        for name in [name for name, known in self._others.items() if id(known) in gone]:
            self._forget(name)
            self._look(name, now[name], _SORTS.get(id(type(now[name]))))

    def _look(self, key: str, value: Any, sort: int | None) -> None:
        """Sort what stands under this name now."""
        if sort is None:
            sort = _sort(type(value))
            if sort == _SKIP:
                return
        self._others[key] = reference(value, self._gone.append)
        self._fresh[key] = key
        if sort == _CONTAINER:
            self._boxes.add(key, value)
        elif sort == _ITERATOR:
            self._iterators[key] = None
        elif sort == _UNKNOWN:
            self._unknown[key] = None
        elif sort == _DRAWS:
            self._draw[key] = None

    def _look_below_no_name(self, key: Any, value: Any, sort: int | None) -> None:
        sort = _sort(type(value)) if sort is None else sort
        if sort == _DRAWS:
            self._draw[key] = None
        if sort not in (_SKIP, _LIGHT):
            self._fresh[_label(key)] = key
