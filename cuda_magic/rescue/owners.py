"""Who holds which bytes of a device: variables by name and path, shown values, earlier tracebacks, and the rest.

Every storage counts once, for the first root that reaches it.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from ..kernel import holders as kernel

if TYPE_CHECKING:
    from ..memory.allocator import Allocator

__all__ = ["Holder", "Root", "holders", "of_namespace", "owner_types"]

BUDGET = 200_000
"""Objects looked at for one answer: 0.2 s on one core."""
_IPYTHON = ("In", "Out", "get_ipython", "exit", "quit", "open", "display")
"""Names that IPython puts into the namespace; some lead to everything."""
_LEAVES = (int, float, complex, bool, str, bytes, type(None), type, ModuleType, BuiltinFunctionType, CodeType, range)


@dataclass(frozen=True)
class Holder:
    """Bytes of one device that one thing holds.

    `kind` is ``variable``, ``output``, ``traceback``, ``unreached``, ``below-python``, ``private-pool``, ``cached``,
    ``process``, ``context``, ``driver``.
    """

    kind: str
    name: str
    nbytes: int | None
    device: int | None = None
    detail: str = ""


@dataclass(frozen=True)
class Root:
    """Something to look through: `name` is how the user reaches it."""

    kind: str
    name: str
    value: Any


def of_namespace(namespace: Mapping[str, Any]) -> list[Root]:
    """The user's variables, without IPython's own."""
    return [
        Root("variable", name, value)
        for name, value in namespace.items()
        if not name.startswith("_") and name not in _IPYTHON and not isinstance(value, _LEAVES)
    ]


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """(path, part) of what an object holds, as far as a user would write it."""
    kind = type(value)
    if issubclass(kind, dict):
        for key, part in list(value.items()):
            yield f"[{key!r}]" if isinstance(key, (str, int)) else "[...]", part
            if not isinstance(key, _LEAVES):
                yield "[...]", key
    elif issubclass(kind, (list, tuple, deque)):
        for i, part in enumerate(list(value)):
            yield f"[{i}]", part
    elif issubclass(kind, (set, frozenset)):
        for part in list(value):
            yield "{...}", part
    elif kind is FunctionType:
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            try:
                yield f" (closure {name})", cell.cell_contents
            except ValueError:
                continue
        yield " (default)", value.__defaults__ or ()
    elif kind is MethodType:
        yield ".__self__", value.__self__
    elif kind is partial:
        yield ".args", value.args
        yield ".keywords", value.keywords
    elif issubclass(kind, BaseException):
        yield ".args", value.args
        for frame in kernel.frames(value.__traceback__):
            yield "", frame
        yield "", value.__cause__
        yield "", value.__context__
    elif kind is TracebackType:
        for frame in kernel.frames(value):
            yield "", frame
    elif kind is FrameType:
        for name, part in kernel.frame_locals(value).items():
            yield f" (local {name} of {value.f_code.co_name})", part
    elif hasattr(kind, "gi_frame") and value.gi_frame is not None:
        yield "", value.gi_frame
    fields = getattr(value, "__dict__", None)
    if type(fields) is dict and kind is not FunctionType:
        for name, part in list(fields.items()):
            if name in ("_parameters", "_buffers", "_modules") and type(part) is dict:
                for inner, tensor in list(part.items()):
                    yield f".{inner}", tensor
            else:
                yield f".{name}", part
    for name in getattr(kind, "__slots__", ()) if isinstance(getattr(kind, "__slots__", ()), (tuple, list)) else ():
        part = getattr(value, name, None)
        if part is not None:
            yield f".{name}", part


class _Table:
    """What the allocator says of each tensor."""

    def __init__(self, allocator: Allocator, device: int | None) -> None:
        self.of: dict[int, tuple[int, int, int]] = {}
        self.alive: list[Any] = []  # ids stay true only while the tensors live
        for tensor, where, key, nbytes in allocator.owners():
            if device is None or where == device:
                self.of[id(tensor)] = (where, key, nbytes)
                self.alive.append(tensor)


def holders(allocator: Allocator, roots: Iterable[Root], device: int | None = None) -> list[Holder]:
    """One row for each root that holds memory of `device` (None: all), largest first, then what no root reaches."""
    table = _Table(allocator, device)
    counted: set[tuple[int, int]] = set()
    seen: set[int] = {id(table), id(table.of), id(table.alive)}
    budget = BUDGET
    rows: dict[tuple[str, str, int], tuple[int, int, str]] = {}
    for root in roots:
        largest = 0
        pending: deque[tuple[str, Any]] = deque([("", root.value)])
        while pending and budget:
            path, value = pending.popleft()
            if id(value) in seen or isinstance(value, _LEAVES):
                continue
            seen.add(id(value))
            budget -= 1
            mine = table.of.get(id(value))
            if mine is not None:
                where, key, nbytes = mine
                if (where, key) not in counted:
                    counted.add((where, key))
                    slot = (root.kind, root.name, where)
                    total, count, old = rows.get(slot, (0, 0, ""))
                    detail = path if nbytes > largest else old
                    largest = max(largest, nbytes)
                    rows[slot] = (total + nbytes, count + 1, detail)
                if getattr(value, "is_leaf", False):
                    pending.append((f"{path}.grad", getattr(value, "grad", None)))
                continue
            try:
                pending.extend((path + step, part) for step, part in _parts(value))
            except Exception:  # noqa: BLE001 - a property of the user's; the rest still counts
                continue
    found = [
        Holder(kind, name, total, where, _detail(name, path, count))
        for (kind, name, where), (total, count, path) in rows.items()
    ]
    found += _unreached(table, counted)
    return sorted(found, key=lambda h: -(h.nbytes or 0))


def _detail(name: str, path: str, count: int) -> str:
    if path.startswith(" ("):
        return path[2:-1] if count == 1 else f"{count} tensors, the largest {path[2:-1]}"
    if count == 1:
        return f"{name}{path}" if path else ""
    return f"{count} tensors, the largest {name}{path}"


def _unreached(table: _Table, counted: set[tuple[int, int]]) -> list[Holder]:
    left = []
    for tensor in table.alive:
        where, key, _ = table.of[id(tensor)]
        if (where, key) not in counted:
            counted.add((where, key))
            left.append(tensor)
    names = _holding_types(left, table)
    sums: dict[tuple[str, int], int] = {}
    for tensor in left:
        where, _, nbytes = table.of[id(tensor)]
        slot = (names.get(id(tensor), "unknown"), where)
        sums[slot] = sums.get(slot, 0) + nbytes
    return [
        Holder("unreached", name, nbytes, where, "reached by no variable: a reference cycle, or held by a library")
        for (name, where), nbytes in sums.items()
    ]


def _holding_types(tensors: list[Any], table: _Table) -> dict[int, str]:
    """{id(tensor): name of the type that holds it}, of an instance if an instance's fields do.

    Each ``gc.get_referrers`` walks the whole heap, so all tensors are asked for at once: two walks, not one a tensor.
    """
    wanted = {id(tensor) for tensor in tensors}
    names: dict[int, str] = {}
    fields: dict[int, tuple[dict[Any, Any], list[int]]] = {}
    for holder in gc.get_referrers(*tensors):
        if holder is table.alive or holder is tensors or isinstance(holder, (FrameType, ModuleType)):
            continue
        held = [id(part) for part in gc.get_referents(holder) if id(part) in wanted]
        if type(holder) is dict:
            fields[id(holder)] = (holder, held)
        for one in held:
            names.setdefault(one, type(holder).__name__)
    for outer in gc.get_referrers(*(holder for holder, _ in fields.values())) if fields else ():
        owned = fields.get(id(getattr(outer, "__dict__", None)))
        for one in owned[1] if owned else ():
            names[one] = type(outer).__name__
    return names


def owner_types(allocator: Allocator, device: int) -> dict[tuple[int, int], tuple[str, int]]:
    """{(device, storage): (type that holds it, bytes)}: compared before and after a collection it names the cycles."""
    table = _Table(allocator, device)
    names = _holding_types(table.alive, table)
    found = {}
    for tensor in table.alive:
        where, key, nbytes = table.of[id(tensor)]
        found[(where, key)] = (names.get(id(tensor), "unknown"), nbytes)
    return found
