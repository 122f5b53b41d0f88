"""What an object holds, by the path that a user would write. No code of the user's runs.

Objects are looked through by their types, and attributes are read by the descriptors of built-in types, past
``__getattr__``, properties and metaclasses: an object with a hostile ``__class__``, ``__dict__`` or ``__eq__`` is only
passed by.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any

from ..kernel.holders import MACHINERY, frame_locals, frames

__all__ = ["Slots", "fields", "from_machinery", "parts", "type_name"]

_HEAP_TYPE = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: a class made by a class statement."""
_PARTS = ("_parameters", "_buffers", "_modules")
"""A module's own dicts: ``model.weight`` is what one writes, not ``model._parameters['weight']``."""
_PLAIN = frozenset({dict, list, tuple, set, frozenset, types.FrameType, types.TracebackType, types.MethodType})
"""Classes whose objects have neither a dict nor slots of their own."""
_OF_ERRORS = tuple(vars(BaseException)[name] for name in ("args", "__cause__", "__context__"))


_mro, _dict, _flags, _module, _name = (
    vars(type)[name].__get__ for name in ("__mro__", "__dict__", "__flags__", "__module__", "__name__")
)
"""These attributes of a class, past its metaclass."""


def type_name(value: Any) -> str:
    """The name of the value's type."""
    return str(_name(type(value)))


def from_machinery(value: Any) -> bool:
    """Whether the value's type is of the notebook's machinery. An error's is not: its frames are the user's."""
    module = _module(type(value))
    return type(module) is str and module.split(".", 1)[0] in MACHINERY and not issubclass(type(value), BaseException)


def fields(value: Any) -> dict[str, Any]:
    """The object's own ``__dict__``, empty where it has none."""
    for base in _mro(type(value)):
        found = _dict(base).get("__dict__")
        if type(found) is types.GetSetDescriptorType:
            try:
                own = found.__get__(value)
            except (AttributeError, TypeError):
                return {}
            return own if type(own) is dict else {}
    return {}


Slots = dict[int, tuple[type, list[tuple[str, Any]]]]
"""{id(class): (the class, its slots)}: what `parts` has found out of the classes that it met."""


def _slots(kind: type) -> list[tuple[str, Any]]:
    """(name, descriptor) of the slots of a class."""
    found = []
    for base in _mro(kind):
        if not _flags(base) & _HEAP_TYPE:
            continue  # a built-in type's members lead to everything: a function's globals
        for name, member in list(_dict(base).items()):
            if type(member) is types.MemberDescriptorType and name not in ("__dict__", "__weakref__"):
                found.append((name, member))
    return found


def _text(key: Any) -> str:
    return f"[{key!r}]" if type(key) in (int, str, bool) else "[...]"


def parts(value: Any, slots: Slots | None = None) -> Iterator[tuple[str, Any]]:
    """(step of the path, part) of what the object holds. `slots` spares what was found out before."""
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
    elif kind is partial:
        yield from ((f".{name}", getattr(value, name)) for name in ("func", "args", "keywords"))
    elif kind is types.FrameType:
        yield from ((f" ({name} of {value.f_code.co_name})", part) for name, part in frame_locals(value).items())
    elif kind is types.GeneratorType:
        yield "", value.gi_frame
    elif kind is types.TracebackType:
        yield from (("", frame) for frame in frames(value))
    elif issubclass(kind, BaseException):
        yield from (("", frame) for frame in frames(vars(BaseException)["__traceback__"].__get__(value)))
        yield from (("", member.__get__(value)) for member in _OF_ERRORS)
    if kind in _PLAIN:
        return
    for name, part in list(fields(value).items()):
        if name in _PARTS and type(part) is dict:
            yield from ((f".{inner}", one) for inner, one in list(part.items()))
        elif kind is not types.FunctionType or name != "__wrapped__":
            yield f".{name}", part
    known = slots.get(id(kind)) if slots is not None else None
    if known is None:
        known = (kind, _slots(kind))
        if slots is not None:
            slots[id(kind)] = known  # it keeps the class, so that its id stays its own
    for name, member in known[1]:
        try:
            yield f".{name}", member.__get__(value, kind)
        except (AttributeError, TypeError):
            continue
