"""What a statement can lead to, where that is little: then little has to be marked before it.

Most statements of a cell call no library that knows the user's objects. A statement that names only numbers, strings,
plain containers of them, plain functions of the notebook that do the same, builtins and numpy cannot come to a model,
an optimizer or any other object: not by what it names, and not by what those lead to. Nor can it by an object of the
notebook's own class whose attributes are as light and whose methods are all as plain. Whatever is not known to be so
means that anything may be reached.
"""

from __future__ import annotations

import builtins
from collections.abc import Collection, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from ..memory.parts import fields
from .boxes import HOLDS, LIGHT
from .codes import Code, names_at_top, of_code
from .randomness import draws

__all__ = ["Reach", "reach"]

_BUILTINS = (
    *(
        "abs",
        "all",
        "any",
        "ascii",
        "bin",
        "bool",
        "bytearray",
        "bytes",
        "callable",
        "chr",
        "complex",
        "dict",
        "divmod",
    ),
    *("enumerate", "filter", "float", "format", "frozenset", "hash", "hex", "id", "int", "isinstance", "issubclass"),
    *("iter", "len", "list", "map", "max", "min", "next", "object", "oct", "open", "ord", "pow", "print", "range"),
    *("repr", "reversed", "round", "set", "slice", "sorted", "str", "sum", "tuple", "zip"),
)
_KNOWN = {id(vars(builtins)[name]): vars(builtins)[name] for name in _BUILTINS} | {
    id(value): value
    for value in vars(builtins).values()
    if isinstance(value, type) and issubclass(value, BaseException)
}
"""Builtins that come to no object but those that they are given, by id."""

_MODULES = frozenset(("math", "numpy", "numpy.random", "random", "time"))
"""Modules whose members come to no object but those that they are given, and to their own random state."""

_LIGHT = frozenset(map(id, LIGHT))
_HOLDS = frozenset(map(id, HOLDS))
_module, _mro, _dict = (vars(type)[name].__get__ for name in ("__module__", "__mro__", "__dict__"))
_builtins = vars(builtins)
_MISSING = object()
_HOOKS = frozenset(("__getattr__", "__getattribute__", "__setattr__", "__delattr__", "__del__", "__slots__"))
"""Of a class: its attributes may be elsewhere than in its objects, or it acts at a time of its own."""
_SAYS_NOTHING = frozenset(("__annotations__", "__dict__", "__static_attributes__", "__weakref__"))
"""Of a class: code that names no underscore comes to none of them."""
_MOST = 200
"""Items of a container that are looked at: longer ones may hold anything."""


class Reach(NamedTuple):
    """All that a statement can come to and change."""

    boxes: tuple[str, ...]
    """Names of containers and of objects of the notebook's classes: their items and attributes are light."""
    generators: tuple[Any, ...]
    """Random generators of numpy's."""
    draws: bool
    """Whether it may draw random numbers."""


def reach(code: CodeType | None, namespace: Mapping[str, Any]) -> Reach | None:
    """What the code of a statement can lead to in this namespace; None where it may be anything."""
    names = None if code is None else names_at_top(code)
    if names is None:  # one that leads on may be an attribute, whatever has this name
        return None
    boxes: list[str] = []
    generators: list[Any] = []
    drawing = sets = shaped = False
    functions: list[str] = []
    todo: list[tuple[str, ...]] = [names]
    seen: set[str] = set()
    while todo:
        for name in todo.pop():
            if name in seen:
                continue
            seen.add(name)
            value = namespace.get(name, _MISSING)
            kind = type(value)
            if id(kind) in _LIGHT:
                continue
            if value is _MISSING:
                value = _builtins.get(name, _MISSING)
                if value is not _MISSING and id(value) not in _KNOWN:
                    return None
            elif kind is FunctionType:
                its = _plain(value, namespace)
                if its is None or its.sets:
                    return None
                todo.append(its.names)
                functions.append(name)
            elif id(kind) in _HOLDS:
                if not _all_light(value if not isinstance(value, dict) else (*value, *dict.values(value))):
                    return None
                boxes.append(name)
            elif kind is tuple:
                if not _all_light(value):
                    return None
            elif kind is ModuleType:
                if vars(value).get("__name__") not in _MODULES:
                    return None
                drawing = shaped = True
            elif kind is BuiltinFunctionType or kind is type:
                if id(value) not in _KNOWN:
                    return None
            elif _of_numpy(kind):
                shaped = True
                if draws(kind):
                    generators.append(value)
                    drawing = True
                elif kind.__name__ == "ndarray" and value.dtype.hasobject:
                    return None
            elif type(kind) is type and _module(kind) == "__main__":
                methods = _methods(kind, namespace) if _all_light(fields(value).values()) else None
                if methods is None:
                    return None
                todo += [method.names for method in methods]
                boxes.append(name)
                sets = sets or any(method.sets for method in methods)
            else:
                return None
    if sets:
        if shaped:  # an array's shape, a member of a module
            return None
        boxes += functions
    return Reach(tuple(boxes), tuple(generators), drawing)


def _all_light(items: Collection[Any]) -> bool:
    return len(items) <= _MOST and _LIGHT.issuperset(map(id, map(type, items)))


def _of_numpy(kind: type) -> bool:
    """Whether it is a type of numpy's whose objects hold nothing of the user's: arrays, numbers, random generators."""
    module = _module(kind)
    if type(module) is not str or module.split(".", 1)[0] != "numpy":
        return False
    return kind.__name__ == "ndarray" or bool(draws(kind)) or (module == "numpy" and hasattr(kind, "dtype"))


def _methods(kind: type, namespace: Mapping[str, Any]) -> list[Code] | None:
    """The code of all methods of a plain class of the notebook's; None where it, or one of its bases, has more.

    All of them: operators, loops and builtins call methods that are not named. A method may set attributes: of objects,
    and then of functions that are reached. Those are marked, too.
    """
    found: list[Code] = []
    for base in _mro(kind)[:-1]:
        if type(base) is not type or _module(base) != "__main__":
            return None
        for name, value in list(_dict(base).items()):
            if type(name) is not str or name in _HOOKS:
                return None
            if type(value) is FunctionType:
                its = _plain(value, namespace)
                if its is None:
                    return None
                found.append(its)
            elif id(type(value)) not in _LIGHT and name not in _SAYS_NOTHING:
                return None
    return found


def _plain(function: FunctionType, namespace: Mapping[str, Any]) -> Code | None:
    """The code of a function that has nothing else: no other globals, closure, attributes or heavy defaults."""
    if (
        function.__globals__ is not namespace
        or function.__closure__
        or function.__dict__
        or (function.__defaults__ and not _all_light(function.__defaults__))
        or (function.__kwdefaults__ and not _all_light(function.__kwdefaults__.values()))
    ):
        return None
    found = of_code(function.__code__)
    return None if found.leaves or found.leads_on else found
