"""This kernel's own objects by bytes: which variable, by which path, holds each storage. No code of the user's runs.

The search serves ``%gpu_mem --who`` and the guard's report (rescue/owners.py).
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..kernel import holders as kernel
from .parts import fields, from_machinery, parts, type_name

if TYPE_CHECKING:
    from .allocator import Allocator

__all__ = ["Held", "Root", "Search", "tracebacks", "user_variables", "variables"]

BUDGET = 200_000
"""Objects looked at by one search: 2 s on a slow, busy core, and only where there are that many."""
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
    """``variable``, ``output``, ``traceback`` or ``unreached`` (no variable leads to it)."""
    largest: str = ""
    """Path of its largest tensor."""


@dataclass(frozen=True)
class Root:
    """Something to look through: `name` is how the user reaches it."""

    kind: str
    name: str
    value: Any


class Search:
    """One look at what holds this kernel's memory: each storage counts once, for the first root that reaches it.

    The tensors are kept alive by the search: let go of it when done.

    Parameters
    ----------
    allocator
        Tells which tensors there are.
    namespace
        The user's own: never looked through as a whole.
    device
        The process's index of the only device that counts; None: all.
    """

    def __init__(self, allocator: Allocator, namespace: Mapping[str, Any], device: int | None = None) -> None:
        self.tensors: list[Any] = []
        self.of: dict[int, tuple[int, int, int]] = {}
        """{id(tensor): (device, storage, bytes)}; true while `tensors` keeps them alive."""
        for tensor, where, key, nbytes in allocator.owners():
            if device is None or where == device:
                self.tensors.append(tensor)
                self.of[id(tensor)] = (where, key, nbytes)
        self._counted: set[tuple[int, int]] = set()
        self._seen = {id(self.tensors), id(self.of), id(namespace)}
        self._left = BUDGET

    def _first(self, tensor: Any) -> tuple[int, int] | None:
        """(device, bytes) where its storage was not counted yet."""
        device, key, nbytes = self.of[id(tensor)]
        if (device, key) in self._counted:
            return None
        self._counted.add((device, key))
        return device, nbytes

    def held(self, roots: Iterable[Root], by_module: bool = False) -> list[Held]:
        """A row for each root and device; with `by_module` a variable's submodules have rows of their own."""
        rows: dict[tuple[str, str, int], list[Any]] = {}
        for root in roots if self.tensors else ():
            todo: deque[tuple[str, str, Any]] = deque([(root.name, root.name, root.value)])
            while todo and self._left > 0:
                name, path, value = todo.popleft()
                if issubclass(type(value), _LEAVES) or id(value) in self._seen:
                    continue
                self._seen.add(id(value))
                self._left -= 1
                if id(value) in self.of:
                    found = self._first(value)
                    if found is not None:
                        device, nbytes = found
                        row = rows.setdefault((root.kind, name, device), [0, 0, 0, ""])
                        row[0] += nbytes
                        row[1] += 1
                        if nbytes > row[2]:
                            row[2:] = [nbytes, path]
                    grad = getattr(value, "grad", None) if getattr(value, "is_leaf", False) else None
                    if id(grad) in self.of:
                        todo.appendleft((name, f"{path}.grad", grad))
                elif not from_machinery(value):
                    split = by_module and root.kind == "variable" and path == root.name
                    modules = fields(value).get("_modules") if split else None
                    for step, part in parts(value):
                        if not issubclass(type(part), _LEAVES):
                            own = type(modules) is dict and step[1:] in modules
                            todo.append((path + step if own else name, path + step, part))
        return [
            Held(name, total, device, count, kind, path if path != name else "")
            for (kind, name, device), (total, count, _, path) in rows.items()
        ]

    def unreached(self) -> list[Any]:
        """A tensor for each storage that no root has led to, now counted too."""
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
    search = Search(allocator, namespace)
    roots = user_variables(namespace, shell)
    roots += [Root("output", name, value) for name, value in kernel.outputs(shell, namespace).items()]
    roots += tracebacks(shell)
    roots += user_variables(namespace, shell, hidden=True)
    found = search.held(roots, by_module=True)
    rest: dict[int, list[Any]] = {}
    for tensor in search.unreached():
        rest.setdefault(search.of[id(tensor)][0], []).append(tensor)
    for device, tensors in rest.items():
        sizes = [search.of[id(tensor)][2] for tensor in tensors]
        largest = type_name(tensors[sizes.index(max(sizes))])
        found.append(Held("reached by no variable", sum(sizes), device, len(sizes), "unreached", largest))
    return sorted(found, key=lambda h: (-h.nbytes, h.name))
