"""This kernel's own objects by bytes: which variable, by which path, holds each storage. No code of the user's runs.

Objects are looked through by their types, and attributes are read past ``__getattr__`` and properties, so an object
with a hostile ``__getattr__``, ``__eq__`` or ``__class__`` is only passed by.
"""

from __future__ import annotations

import sys
import types
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .allocator import Allocator

__all__ = ["Held", "variables"]

BUDGET = 100_000
"""Objects looked at: about 0.2 s."""
_LEAVES = (int, float, complex, str, bytes, bytearray, type, types.ModuleType, types.CodeType, type(None))
_SKIP = frozenset({"In", "Out", "_oh", "_ih", "_dh", "get_ipython", "exit", "quit"})
_FUNCTION = 0x1 | 0x2
"""CO_OPTIMIZED | CO_NEWLOCALS: the frame of a function and not of a module."""
_MACHINERY = ("IPython", "ipykernel", "cuda_magic", "traitlets", "asyncio")
_HEAP_TYPE = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: a class made by a class statement."""
_PARTS = ("_parameters", "_buffers", "_modules")
"""A module's own dicts: ``model.weight`` is what one writes, not ``model._parameters['weight']``."""


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


def _fields(value: Any) -> dict[str, Any]:
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        found = {}
    return found if type(found) is dict else {}


def _slots(value: Any) -> Iterator[tuple[str, Any]]:
    for base in type.__getattribute__(type(value), "__mro__"):
        if not type.__getattribute__(base, "__flags__") & _HEAP_TYPE:
            continue  # a built-in type's members lead to everything: a function's globals
        for name, member in list(vars(base).items()):
            if type(member) is types.MemberDescriptorType and name not in ("__dict__", "__weakref__"):
                try:
                    yield name, member.__get__(value, type(value))
                except (AttributeError, TypeError):
                    continue


def _text(key: Any) -> str:
    return f"[{key!r}]" if type(key) in (int, str, bool) else "[...]"


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """(step of the path, part)."""
    kind = type(value)
    if issubclass(kind, dict):
        for key, part in list(dict.items(value)):
            yield _text(key), part
            yield " (key)", key
    elif issubclass(kind, list):
        yield from ((f"[{i}]", part) for i, part in enumerate(list(list.__iter__(value))))
    elif issubclass(kind, tuple):
        yield from ((f"[{i}]", part) for i, part in enumerate(tuple.__iter__(value)))
    elif issubclass(kind, deque):
        yield from ((f"[{i}]", part) for i, part in enumerate(list(deque.__iter__(value))))
    elif issubclass(kind, set):
        yield from (("{...}", part) for part in list(set.__iter__(value)))
    elif issubclass(kind, frozenset):
        yield from (("{...}", part) for part in list(frozenset.__iter__(value)))
    elif kind is types.FunctionType:
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            try:
                yield f" (closure: {name})", cell.cell_contents
            except ValueError:
                continue
        yield " (default)", value.__defaults__
    elif kind is types.MethodType:
        yield ".__self__", value.__self__
        yield "", value.__func__
    elif kind is types.FrameType:
        yield from _frame(value)
    elif kind is types.GeneratorType and value.gi_frame is not None:
        yield "", value.gi_frame
    elif kind is types.TracebackType:
        while value is not None:
            yield "", value.tb_frame
            value = value.tb_next
    elif issubclass(kind, BaseException):
        for name in ("args", "__traceback__", "__cause__", "__context__"):
            yield "", BaseException.__getattribute__(value, name)
    for name, part in list(_fields(value).items()):
        if name in _PARTS and type(part) is dict:
            yield from ((f".{inner}", one) for inner, one in list(part.items()))
        elif kind is not types.FunctionType or name != "__wrapped__":
            yield f".{name}", part
    yield from ((f".{name}", part) for name, part in _slots(value))


def _frame(frame: types.FrameType) -> Iterator[tuple[str, Any]]:
    module = frame.f_globals.get("__name__", "")
    if frame.f_code.co_flags & _FUNCTION != _FUNCTION or str(module).split(".")[0] in _MACHINERY:
        return
    names = frame.f_locals
    copied = dict(names)
    if sys.version_info < (3, 13):
        names.clear()  # a snapshot that would keep them alive: the frame's own variables stay
    for name, part in copied.items():
        yield f" ({name} of {frame.f_code.co_name})", part


def _roots(namespace: dict[str, Any], shell: Any) -> Iterator[tuple[str, str, Any]]:
    """(kind, name, value), in the order in which a storage is counted for them."""
    hidden = getattr(shell, "user_ns_hidden", {})
    for name, value in list(namespace.items()):
        if not name.startswith("_") and name not in _SKIP and hidden.get(name, _SKIP) is not value:
            yield "variable", name, value
    out = namespace.get("Out")
    if type(out) is dict:
        for number, value in list(out.items()):
            yield "output", f"Out[{number}]", value
    for name in ("_", "__", "___"):
        yield "output", name, namespace.get(name)
    errors = [getattr(sys, "last_exc", None), getattr(sys, "last_value", None)]
    last = getattr(shell, "last_execution_result", None)
    errors += [getattr(last, "error_in_exec", None)]
    for error in errors:
        if isinstance(error, BaseException):
            yield "traceback", _origin(error, shell), error
    for name, value in list(namespace.items()):
        if name.startswith("_") and name not in ("_", "__", "___"):
            yield "variable", name, value


def _origin(error: BaseException, shell: Any) -> str:
    names = getattr(getattr(shell, "compile", None), "_filename_map", {})
    found = None
    trace = error.__traceback__
    while trace is not None:
        found = names.get(trace.tb_frame.f_code.co_filename, found)
        trace = trace.tb_next
    return f"traceback of In[{found}]" if found is not None else "traceback of an earlier cell"


def variables(allocator: Allocator, namespace: dict[str, Any], shell: Any = None) -> list[Held]:
    """What holds this kernel's memory on its cards, largest first; each storage counts once, for its first name."""
    where: dict[int, tuple[int, int, int]] = {}
    alive = []
    for tensor, device, key, nbytes in allocator.owners():
        where[id(tensor)] = (device, key, nbytes)
        alive.append(tensor)
    if not alive:
        return []
    counted: set[tuple[int, int]] = set()
    seen = {id(where), id(alive), id(namespace), id(allocator)}
    rows: dict[tuple[str, str, int], list[Any]] = {}
    left = BUDGET

    def add(kind: str, name: str, path: str, found: tuple[int, int, int]) -> None:
        device, key, nbytes = found
        if (device, key) not in counted:
            counted.add((device, key))
            row = rows.setdefault((kind, name, device), [0, 0, 0, ""])
            row[0] += nbytes
            row[1] += 1
            if nbytes > row[2]:
                row[2:] = [nbytes, path]

    for kind, name, root in _roots(namespace, shell):
        todo: deque[tuple[str, str, Any]] = deque([(name, name, root)])
        while todo and left > 0:
            group, path, value = todo.popleft()
            if issubclass(type(value), _LEAVES) or id(value) in seen:
                continue
            seen.add(id(value))
            left -= 1
            found = where.get(id(value))
            if found is None and str(type.__getattribute__(type(value), "__module__")).split(".")[0] in _MACHINERY:
                continue  # the shell and its parts lead to everything
            if found is not None:
                add(kind, group, path, found)
                grad = getattr(value, "grad", None) if getattr(value, "is_leaf", False) else None
                if id(grad) in where:
                    add(kind, group, f"{path}.grad", where[id(grad)])
                continue
            modules = _fields(value).get("_modules") if kind == "variable" and path == name else None
            for step, part in _parts(value):
                inner = path + step
                todo.append((inner if type(modules) is dict and step[1:] in modules else group, inner, part))
    for tensor in alive:
        add("unreached", "reached by no variable", type(tensor).__name__, where[id(tensor)])
    made = [
        Held(name, total, device, count, kind, path if path != name else "")
        for (kind, name, device), (total, count, _, path) in rows.items()
    ]
    return sorted(made, key=lambda h: (-h.nbytes, h.name))
