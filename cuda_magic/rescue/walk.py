"""Follows what the names of a statement lead to, for `depths`: in microseconds, since it is done before each.

Nothing is kept alive but light values: all else is known by a weak reference, an id, a length or a checksum.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any
from weakref import ref

from .boxes import LIGHT, TEXT
from .codes import Code, doubtful, leaves_at_top, names_in, of_code
from .ways import STEPPERS, WAYS, is_tensor, way

if TYPE_CHECKING:
    from ..memory.allocator import Allocator

__all__ = ["GIVEN", "Walk"]

GIVEN = ("the function", "argument ")
"""Names, or how they begin, of what is guarded in a script."""
NODES = 5000
"""Values that are looked at for one statement."""
_LIGHT = frozenset(map(id, LIGHT))
_OF_STATE = frozenset(("state", "setattr", "getattr", "state_dict", "attrgetter", "__dict__", "vars"))
"""Names by which code may come to an optimizer's state itself."""


class Walk:
    """One look at what some names lead to."""

    def __init__(
        self, namespace: Mapping[str, Any], allocator: Allocator | None = None, known: Collection[int] = ()
    ) -> None:
        self.namespace, self.allocator, self.known = namespace, allocator, known
        self.own = namespace
        """The globals of the notebook's functions."""
        if GIVEN[0] in namespace:
            self.own = getattr(namespace[GIVEN[0]], "__globals__", namespace)
        self.names: list[str] = []
        self.seen: set[int] = set()
        self.unknown: list[str] = []
        self.leads: list[tuple[str, Any]] = []
        self.draw: list[Any] = []
        self.left = NODES
        self.things: list[Any] = []
        """Of the value that is followed now: what is compared by identity."""
        self.numbers: list[Any] = []
        """What is compared by value."""
        self._read: set[str] = set()
        self._by_functions: set[str] = set()
        self.codes: list[CodeType] = []
        self.only_steps = True
        """Whether nothing that was met changes an optimizer's state but by its step."""

    def read(self, code: CodeType) -> None:
        """The names in the code of a statement join those that are followed."""
        names = names_in(code)
        if self.allocator is not None and leaves_at_top(code):
            self.only_steps = False
        self._follow(code, names, "data" in names, doubtful(names))

    def read_function(self, code: CodeType) -> None:
        known: Code = of_code(code)
        if known.leaves:
            self.only_steps = False
        self._by_functions.update(known.names)
        self._follow(code, known.names, known.data, known.doubtful)

    def _follow(self, code: CodeType, names: Collection[str], data: bool, doubt: bool) -> None:
        if data:
            self.codes.append(code)
        if not _OF_STATE.isdisjoint(names):
            self.only_steps = False
        if doubt:
            self.only_steps = False
            self._by_functions.update(name for name in list(self.namespace) if type(name) is str)
            names = [*names, *[name for name in list(self.namespace) if type(name) is str and name[:1] != "_"]]
        read, namespace = self._read, self.namespace
        for name in names:
            if name not in read:
                read.add(name)
                if name in namespace and name not in {"In", "Out"}:
                    self.names.append(name)

    def tokens(self, name: str, value: Any) -> tuple[list[Any], list[Any]]:
        """What the value leads to: (compared by identity, compared by value)."""
        things: list[Any] = []
        numbers: list[Any] = []
        self.things, self.numbers = things, numbers
        seen, todo, at = self.seen, [value], 0
        while at < len(todo) and self.left > 0:
            self.left -= 1
            part = todo[at]
            at += 1
            kind = type(part)
            if id(kind) in _LIGHT:
                if (kind is str or kind is bytes) and len(part) > TEXT:
                    numbers.append(hash(part))
                else:
                    things.append(part)
                continue
            here = id(part)
            try:
                things.append(ref(part))  # the same one for the same object
            except TypeError:
                numbers.append(here)
            if here not in seen:
                seen.add(here)
                found = WAYS.get(id(kind)) or way(kind)
                todo += found(self, name, part, kind)
        if self.left <= 0:
            self.only_steps = False
        return things, numbers

    def again(self, name: str) -> bool:
        """Whether a function reads this name, or a value that was followed before is the same."""
        return name in self._by_functions or id(self.namespace[name]) in self.seen

    def steps(self) -> bool | None:
        """Whether an optimizer's state changes by its step alone; None where none is named, nor what may have hooks."""
        if not self.only_steps:
            return False
        return True if "step" in self._read or "backward" in self._read else None

    def meet(self, module: ModuleType) -> None:
        """A module that stands under a name."""
        self.meet_of(vars(module).get("__name__"))

    def meet_of(self, home: Any) -> None:
        """What is of a module of this name."""
        if type(home) is not str or home.split(".", 1)[0] not in STEPPERS:
            self.only_steps = False

    def leads_nowhere(self, name: str, value: Any) -> bool:
        """Whether a value has no parts that could be marked here."""
        if is_tensor(type(value)):
            self.lead(name, value)
            return True
        return False

    def lead(self, name: str, value: Any) -> None:
        """A value that may lead to tensors which are marked nowhere else."""
        if self.allocator is not None and id(value) not in self.known and self.allocator.follows(value):
            self.leads.append((f"(in {name}, {len(self.leads)})", value))
