"""What a statement can reach below the names, marked before it: nested containers, objects, closures, classes, arrays.

The names that its text reads are followed, through the notebook's own functions and classes too. Nothing is kept alive
but light values: all else is known by a weak reference, an id, a length or a checksum.
"""

from __future__ import annotations

import dis
import weakref
from collections.abc import Collection, Mapping
from operator import is_
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from .arrays import is_large, only_read
from .boxes import LIGHT, Reference, reference, same
from .walk import GIVEN, Walk

if TYPE_CHECKING:
    from ..cells.rescuer import Step
    from ..memory.allocator import Allocator

__all__ = ["GIVEN", "Depths"]

_LIGHT = frozenset(map(id, LIGHT))


class Depths:
    """Marks of what a statement's names lead to.

    Parameters
    ----------
    step
        The statement. Without code it is a guarded function: `namespace` has that one and its arguments as `GIVEN`.
    namespace
        The cell's.
    saved
        Names that a checkpoint keeps.
    known
        Ids of what is marked already: it is not among `leads`.
    allocator
        Knows which values lead to tensors.
    """

    def __init__(
        self,
        step: Step,
        namespace: Mapping[str, Any],
        saved: Collection[str],
        known: Collection[int],
        allocator: Allocator | None,
    ) -> None:
        code = step.code
        walk = Walk(namespace, allocator, known)
        if saved:
            walk.seen.update(id(namespace[name]) for name in saved if name in namespace)
        self.roots: list[tuple[str, Reference, list[Any], list[Any]]] = []
        self.private: dict[str, Any] = {}
        """Light values of names with an underscore, which are marked nowhere else."""
        if code is not None:
            walk.read(code)
        else:
            walk.names += [name for name in namespace if type(name) is str and name.startswith(GIVEN)]
        self.own = walk.own
        arrays: list[tuple[str, Any]] = []
        for name in walk.names:  # grows meanwhile
            value = namespace.get(name)
            if id(type(value)) in _LIGHT:
                if name[:1] == "_" and name[:2] != "__":
                    self.private[name] = value
            elif name not in saved:
                if type(value) is ModuleType:
                    walk.meet(value)
                elif is_large(value) and code is not None:
                    arrays.append((name, value))
                elif not walk.leads_nowhere(name, value):
                    self.roots.append((name, reference(value), *walk.tokens(name, value)))
        if arrays:
            read = only_read(step.node, namespace, ())
            self.roots += [(n, reference(v), *walk.tokens(n, v)) for n, v in arrays if n not in read or walk.again(n)]
        self.saved = tuple(name for name in saved if name in namespace)
        self.unknown = walk.unknown
        self._codes = walk.codes if allocator is not None else []
        self.leads = dict(walk.leads)
        """What may lead to tensors, to be marked and dropped."""
        self.draw = walk.draw
        self.steps: bool | None = walk.steps()
        """Whether the statement changes an optimizer's state by its step alone; None: it names none."""

    def changed(self, namespace: Mapping[str, Any]) -> list[str]:
        """Names whose objects hold something else now."""
        walk = Walk(namespace)
        walk.own = self.own
        walk.seen.update(id(namespace[name]) for name in self.saved if name in namespace)
        found = []
        for name, known, things, numbers in self.roots:
            value = known() if type(known) is weakref.ReferenceType else namespace.get(name)
            if value is None or not same(known, value):
                continue  # bound anew: told by others
            now, counted = walk.tokens(name, value)
            if len(now) != len(things) or not all(map(is_, now, things)) or counted != numbers:
                found.append(name)
        return found

    def rebound(self, namespace: Mapping[str, Any]) -> list[str]:
        """Names with an underscore that stand for another light value now."""
        return [name for name, value in self.private.items() if namespace.get(name, self) is not value]

    def past_the_counter(self) -> bool:
        """Whether the code may change a tensor by ``.data``, which counts no change."""
        return any(_sets_data(code) for code in self._codes)


def _sets_data(code: CodeType) -> bool:
    before = ""
    for step in dis.get_instructions(code):
        name = str(step.argval)
        if step.opname == "STORE_ATTR" and name == "data":
            return True
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            if before == "data" and name[-1:] == "_" and name[-2:] != "__":
                return True
            before = name
        elif step.opname not in ("CACHE", "EXTENDED_ARG", "NOP"):
            before = ""
    return any(_sets_data(inner) for inner in code.co_consts if type(inner) is CodeType)
