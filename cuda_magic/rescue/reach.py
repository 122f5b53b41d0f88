"""What a statement can lead to, where that is little: then little has to be marked before it.

Most statements of a cell call no library that knows the user's objects. A statement that names only numbers, strings,
plain containers of them, plain functions of the notebook that do the same, builtins and numpy cannot come to a model,
an optimizer or any other object: not by what it names, and not by what those lead to. Nor can it by an object of the
notebook's own class whose attributes are as light and whose methods are all as plain. Whatever is not known to be so
means that anything may be reached.
"""

from __future__ import annotations

import builtins
import dis
from collections.abc import Collection, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from ..memory.parts import fields
from .boxes import HOLDS, LIGHT
from .doubts import ATTRIBUTES, MEMBERS
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

_DOUBTFUL = frozenset((*ATTRIBUTES, *MEMBERS, *(name for names in MEMBERS.values() for name in names))) | {
    "ctypeslib",
    "distutils",
    "f2py",
    "importlib",
    "load",
    "os",
    "testing",
}
"""Names of attributes that lead on, from whatever object. All that begin with an underscore may, and what is loaded."""

_LEAVES = frozenset(
    dis.opmap[name]
    for name in (
        *(
            "IMPORT_NAME",
            "IMPORT_STAR",
            "LOAD_BUILD_CLASS",
            "STORE_GLOBAL",
            "DELETE_GLOBAL",
            "STORE_ATTR",
            "DELETE_ATTR",
        ),
        *("GET_AWAITABLE", "GET_AITER", "LOAD_LOCALS", "LOAD_NAME"),
    )
    if name in dis.opmap
)
"""Steps of Python's that a function may not take."""
_LEAVES_AT_TOP = _LEAVES - {dis.opmap["LOAD_NAME"]}
_SETS = frozenset((dis.opmap["STORE_ATTR"], dis.opmap["DELETE_ATTR"]))
_LEAVES_IN_METHODS = _LEAVES - _SETS
"""A method may set attributes: of objects, and then of functions that are reached. Those are marked, too."""

_LIGHT = frozenset(map(id, LIGHT))
_HOLDS = frozenset(map(id, HOLDS))
_module, _mro, _dict = (vars(type)[name].__get__ for name in ("__module__", "__mro__", "__dict__"))
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
    if code is None or not _stays(code, _LEAVES_AT_TOP):
        return None
    boxes: list[str] = []
    generators: list[Any] = []
    drawing = sets = shaped = False
    functions: list[str] = []
    todo, seen = [code], set()
    while todo:
        for name in _names(todo.pop()):
            if name in seen:
                continue
            seen.add(name)
            if name in _DOUBTFUL or (name[:1] == "_" and name != "_"):  # it may be an attribute, whatever has this name
                return None
            value = namespace.get(name, _MISSING)
            kind = type(value)
            if id(kind) in _LIGHT:
                continue
            if value is _MISSING:
                value = vars(builtins).get(name, _MISSING)
                if value is not _MISSING and id(value) not in _KNOWN:
                    return None
            elif kind is FunctionType:
                if not _plain(value, namespace):
                    return None
                todo.append(value.__code__)
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
                todo += methods
                boxes.append(name)
                sets = sets or not all(_SETS.isdisjoint(method.co_code[::2]) for method in methods)
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


def _methods(kind: type, namespace: Mapping[str, Any]) -> list[CodeType] | None:
    """The code of all methods of a plain class of the notebook's; None where it, or one of its bases, has more.

    All of them: operators, loops and builtins call methods that are not named.
    """
    found: list[CodeType] = []
    for base in _mro(kind)[:-1]:
        if type(base) is not type or _module(base) != "__main__":
            return None
        for name, value in list(_dict(base).items()):
            if type(name) is not str or name in _HOOKS:
                return None
            if type(value) is FunctionType:
                if not _plain(value, namespace, _LEAVES_IN_METHODS):
                    return None
                found.append(value.__code__)
            elif id(type(value)) not in _LIGHT and name not in _SAYS_NOTHING:
                return None
    return found


def _plain(function: FunctionType, namespace: Mapping[str, Any], leaves: frozenset[int] = _LEAVES) -> bool:
    """Whether a function has nothing but its code: no other globals, closure, attributes or heavy defaults."""
    return (
        function.__globals__ is namespace
        and not function.__closure__
        and not function.__dict__
        and (not function.__defaults__ or _all_light(function.__defaults__))
        and (not function.__kwdefaults__ or _all_light(function.__kwdefaults__.values()))
        and _stays(function.__code__, leaves)
    )


def _stays(code: CodeType, leaves: frozenset[int]) -> bool:
    if not leaves.isdisjoint(code.co_code[::2]):
        return False
    return all(_stays(inner, _LEAVES) for inner in code.co_consts if type(inner) is CodeType)


def _names(code: CodeType) -> tuple[str, ...]:
    names = code.co_names
    for inner in code.co_consts:
        if type(inner) is CodeType:
            names += _names(inner)
    return names
