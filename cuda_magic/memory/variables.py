"""This kernel's own objects by bytes: which variable, by which path, holds each storage. No code of the user's runs.

The search serves ``%gpu_mem --who`` and the guard's report (rescue/owners.py).
"""

from __future__ import annotations

import time
import types
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from gc import is_tracked
from typing import TYPE_CHECKING, Any

from ..kernel import holders as kernel
from .parts import Slots, fields, from_machinery, parts, type_name
from .saved import graphs

if TYPE_CHECKING:
    from .allocator import Allocator

__all__ = ["Held", "Met", "Root", "Search", "tracebacks", "user_variables", "variables"]

SECONDS = 0.3
"""How long one search looks: 100,000 objects and more, of which a notebook's variables lead to a tenth as a rule."""
LEAST = 0.05
"""Seconds that a search has for what holds nothing itself, and a later part of it in any case."""
TURN = 5000
"""Objects of one root before it is the others' turn: a data set of millions must not hide the model behind it."""
PARTS = 1000
"""Parts of one object that are looked at before the other objects' turn."""
_LEAVES = (int, float, complex, str, bytes, bytearray, type, types.ModuleType, types.CodeType, type(None))
_SKIP = frozenset({"In", "Out", "get_ipython", "exit", "quit", "_oh", "_ih", "_dh"})
_SHOWN = ("_", "__", "___")


@dataclass(frozen=True)
class Held:
    """Bytes that one name holds on one card. `cuda` is this process's index of it."""

    name: str
    """``x``, ``model.encoder``, ``Out[7]``, ``traceback of In[5]``."""
    nbytes: int
    cuda: int
    tensors: int
    kind: str = "variable"
    """``variable``, ``output``, ``traceback``, ``autograd`` (saved for a backward pass) or ``unreached`` (no variable
    leads to it)."""
    largest: str = ""
    """Path of its largest tensor."""


@dataclass(frozen=True)
class Root:
    """Something to look through: `name` is how the user reaches it."""

    kind: str
    name: str
    value: Any


@dataclass(frozen=True)
class Met:
    """An object that the library knows (`kind` is ``graph`` or ``module``), and the way to it."""

    kind: str
    root: Root
    path: str
    value: Any


_At = tuple[str, str, Any]
"""An object to look at: the row that it counts for, the way to it, itself."""


_Rows = dict[tuple[str, str, int], list[Any]]
"""{(kind, name, device): [bytes, tensors, bytes of the largest, the way to it]}."""


class Search:
    """One look at what holds this kernel's memory: each storage counts once, for the first root that reaches it.

    The tensors are kept alive by the search: let go of it when done. A root that leads to very much waits until the
    others were looked through; all together end after `seconds`, which `cut` says.

    Parameters
    ----------
    allocator
        Tells which tensors there are.
    namespace
        The user's own: never looked through as a whole.
    device
        The process's index of the only device that counts; None: all.
    seconds
        How long `held` may look, all its calls together.
    enough
        Bytes that there are in all: once so many are found, graphs and modules are looked for a little longer.
    """

    def __init__(
        self,
        allocator: Allocator,
        namespace: Mapping[str, Any],
        device: int | None = None,
        seconds: float = SECONDS,
        enough: int | None = None,
    ) -> None:
        self.tensors: list[Any] = []
        self.of: dict[int, tuple[int, int, int]] = {}
        """{id(tensor): (device, storage, bytes)}; true while `tensors` keeps them alive."""
        self.cut = False
        """Whether the time was over before everything was looked at."""
        self.met: list[Met] = []
        """What the library's `kind_of` names, in the order in which it was met."""
        self.by_storage: dict[tuple[int, int], tuple[str, str, str, int]] = {}
        """{(device, storage): (kind of the root, name of the row, path, bytes)} of what a root has led to."""
        self.allocator, self.device = allocator, device
        self._slots: Slots = {}
        self._strange: dict[int, type] = {}
        """Classes of which the library knows nothing, by their ids."""
        self._counted: set[tuple[int, int]] = set()
        self._seen = {id(self.tensors), id(self.of), id(namespace)}
        self._left = seconds
        self._missing = enough

    def _add(self, among: Iterable[Any] | None) -> None:
        for tensor, where, key, nbytes in self.allocator.owners(among):
            if (self.device is None or where == self.device) and id(tensor) not in self.of:
                self.tensors.append(tensor)
                self.of[id(tensor)] = (where, key, nbytes)

    def _first(self, tensor: Any) -> tuple[int, int] | None:
        """(device, bytes) where its storage was not counted yet."""
        device, key, nbytes = self.of[id(tensor)]
        if (device, key) in self._counted:
            return None
        self._counted.add((device, key))
        return device, nbytes

    def held(self, roots: Iterable[Root], by_module: bool = False) -> list[Held]:
        """A row for each root and device; with `by_module` a variable's submodules have rows of their own."""
        rows: _Rows = {}
        ends, found = time.perf_counter() + self._left, False
        waiting: deque[Iterator[None]] = deque(self._look(root, by_module, rows) for root in roots)
        while waiting:
            one = waiting.popleft()
            for steps, _ in enumerate(one, 1):
                if self._missing is not None and self._missing <= 0:
                    ends, self._missing, found = min(ends, time.perf_counter() + LEAST), None, True
                if not steps % 64 and time.perf_counter() > ends:
                    self.cut = not found
                    waiting.clear()
                    break
                if steps >= TURN and waiting:
                    waiting.append(one)
                    break
        self._left = max(LEAST, ends - time.perf_counter())
        return [
            Held(name, total, device, count, kind, path if path != name else "")
            for (kind, name, device), (total, count, _, path) in rows.items()
        ]

    def _look(self, root: Root, by_module: bool, rows: _Rows) -> Iterator[None]:
        """Look through one root; a step is one object, or a thousand parts of one."""
        if id(root.value) in self._seen or issubclass(type(root.value), _LEAVES):
            return
        self._seen.add(id(root.value))
        todo: deque[_At] = deque([(root.name, root.name, root.value)])
        later: deque[tuple[_At, Iterator[tuple[str, Any]]]] = deque()
        while todo or later:
            if todo:
                name, path, value = todo.popleft()
                yield
                inside = self._take(root, (name, path, value), rows, todo)
                if inside is None:
                    continue
            else:
                (name, path, value), inside = later.popleft()
                yield
            split = by_module and root.kind == "variable" and path == root.name
            modules = fields(value).get("_modules") if split else None
            for number, (step, part) in enumerate(inside, 1):
                # what the collector does not track leads to nothing, but a frame that runs
                followed = is_tracked(part) or type(part) is types.FrameType
                if followed and id(part) not in self._seen and not issubclass(type(part), _LEAVES):
                    self._seen.add(id(part))
                    own = type(modules) is dict and step[1:] in modules
                    todo.append((path + step if own else name, path + step, part))
                if number == PARTS:
                    later.append(((name, path, value), inside))
                    break

    def _take(self, root: Root, at: _At, rows: _Rows, todo: deque[_At]) -> Iterator[tuple[str, Any]] | None:
        """Count the value where it is a tensor; what it holds where it is none."""
        name, path, value = at
        kind = "" if id(type(value)) in self._strange else self.allocator.kind_of(value)
        if not kind:
            self._strange[id(type(value))] = type(value)
        if kind in ("graph", "module"):
            self.met.append(Met(kind, root, path, value))
        if kind not in ("graph", "tensor"):
            return None if from_machinery(value) else parts(value, self._slots)
        known = len(self.tensors)
        self._add((value,))  # itself, and its gradient
        if id(value) in self.of:
            self._count(root, name, path, value, rows)
        for one in self.tensors[known:]:
            if one is not value:
                self._count(root, name, f"{path}.grad", one, rows)
        return None if id(value) in self.of else parts(value, self._slots)

    def _count(self, root: Root, name: str, path: str, tensor: Any, rows: _Rows) -> None:
        self._seen.add(id(tensor))
        found = self._first(tensor)
        if found is not None:
            device, nbytes = found
            if self._missing is not None:
                self._missing -= nbytes
            self.by_storage[self.of[id(tensor)][:2]] = (root.kind, name, path, nbytes)
            row = rows.setdefault((root.kind, name, device), [0, 0, 0, ""])
            row[0] += nbytes
            row[1] += 1
            if nbytes > row[2]:
                row[2:] = [nbytes, path]

    def count(self, storage: tuple[int, int]) -> None:
        """It is accounted for: no root has to lead to it."""
        self._counted.add(storage)

    def without(self, found: list[Held], moved: Collection[tuple[int, int]]) -> list[Held]:
        """The rows of `held` without these storages, which count elsewhere."""
        rows = {(held.kind, held.name, held.cuda): held for held in found}
        changed = {(*self.by_storage[one][:2], one[0]) for one in moved}
        for at in changed:
            kind, name, device = at
            left = [
                (nbytes, path)
                for storage, (*row, path, nbytes) in self.by_storage.items()
                if row == [kind, name] and storage[0] == device and storage not in moved
            ]
            del rows[at]
            if left:
                path = max(left)[1]
                total = sum(nbytes for nbytes, _ in left)
                rows[at] = Held(name, total, device, len(left), kind, path if path != name else "")
        return list(rows.values())

    def unreached(self) -> list[Any]:
        """A tensor for each storage that no root has led to, now counted too. One walk of the heap."""
        self._add(None)
        return [tensor for tensor in self.tensors if self._first(tensor)]


def user_variables(namespace: Mapping[str, Any], shell: Any, hidden: bool = False) -> list[Root]:
    """The user's variables without IPython's own; with `hidden` those whose names start with ``_``, and only those."""
    own = getattr(shell, "user_ns_hidden", {})
    return [
        Root("variable", name, value)
        for name, value in list(namespace.items())
        if type(name) is str
        and name.startswith("_") is hidden
        and name not in _SKIP
        and name not in _SHOWN
        and own.get(name, _SKIP) is not value
    ]


def tracebacks(shell: Any) -> list[Root]:
    """The kept exceptions of earlier cells."""
    found = []
    for error in kernel.earlier_errors(shell):
        number = kernel.origin(error, shell)
        cell = f"In[{number}]" if number is not None else "an earlier cell"
        found.append(Root("traceback", f"traceback of {cell}", error))
    return found


def variables(allocator: Allocator, namespace: Mapping[str, Any], shell: Any = None) -> list[Held]:
    """What holds this kernel's memory on its cards, largest first; each storage counts once, for its first name."""
    search = Search(allocator, namespace, seconds=2 * SECONDS)
    roots = user_variables(namespace, shell)
    roots += [Root("output", name, value) for name, value in kernel.outputs(shell, namespace).items()]
    roots += tracebacks(shell)
    roots += user_variables(namespace, shell, hidden=True)
    found = search.held(roots, by_module=True)
    kept = graphs(search)
    found = search.without(found, kept.moved)
    for place in kept.places:
        name = f"saved for backward by {place.name}"
        through = f"through {', '.join(place.through[:2])}"
        found.append(Held(name, place.nbytes, place.device, len(place.sizes), "autograd", through))
    rest: dict[int, list[Any]] = {}
    for tensor in search.unreached():
        rest.setdefault(search.of[id(tensor)][0], []).append(tensor)
    for device, tensors in rest.items():
        sizes = [search.of[id(tensor)][2] for tensor in tensors]
        largest = type_name(tensors[sizes.index(max(sizes))])
        found.append(Held("reached by no variable", sum(sizes), device, len(sizes), "unreached", largest))
    return sorted(found, key=lambda h: (-h.nbytes, h.name))
