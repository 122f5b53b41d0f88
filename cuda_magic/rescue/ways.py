"""How the parts of a value are found, by its type: decided once for a type, for `walk`."""

from __future__ import annotations

import functools
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from types import (
    AsyncGeneratorType,
    BuiltinFunctionType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import TYPE_CHECKING, Any

from ..memory.parts import fields
from ..memory.torch.tensors import look
from .arrays import of_array, of_frame
from .boxes import DICTS, LIGHT, MOST
from .marks import ITERATORS
from .randomness import draws

if TYPE_CHECKING:
    from .walk import Walk

__all__ = ["STEPPERS", "WAYS", "is_tensor", "way"]

LONG = 100_000
"""Items of a container up to which each of them counts; beyond it the length, and some of them."""

_LIGHT = frozenset(map(id, LIGHT))
_FILES = ("io", "_io", "tempfile", "codecs", "ipykernel", "IPython")
"""Modules of files: docs/guard.md says that files are not seen."""
_DRAW = frozenset(("numpy", "torch", "random"))
_FOLLOWED = ("collections", "queue", "torch.optim", "torch.utils.data")
"""Modules whose objects keep what a loop steps on in attributes: schedulers, samplers, queues."""
STEPPERS = frozenset(
    (
        *("__main__", "_io", "_random", "_thread", "builtins", "collections", "contextlib", "copy", "datetime", "enum"),
        *("functools", "io", "itertools", "json", "math", "matplotlib", "numpy", "os", "pandas", "pathlib", "PIL"),
        *("random", "re", "sys", "threading", "time", "torch", "torchvision", "tqdm", "types", "typing"),
    )
)
"""Libraries that change an optimizer's state by its step alone, or replace all of it."""

_module, _dict, _mro = (vars(type)[name].__get__ for name in ("__module__", "__dict__", "__mro__"))

Way = Callable[["Walk", str, Any, type], Iterable[Any]]
"""Finds the parts of a value; what is compared by value goes to the walk's `numbers`."""


def _nothing(walk: Walk, name: str, value: Any, kind: type) -> Iterable[Any]:
    return ()


def _of_bytes(walk: Walk, name: str, value: Any, kind: type) -> Iterable[Any]:
    walk.numbers.append(zlib.crc32(value))
    return ()


def _of_items(walk: Walk, name: str, value: Any, kind: type) -> Iterable[Any]:
    size, numbers = len(value), walk.numbers
    numbers.append(size)
    if size <= MOST:
        return (*value, *dict.values(value)) if isinstance(value, dict) else list(value)
    for view in (value, dict.values(value)) if isinstance(value, dict) else (value,):
        if size > LONG:
            if type(value) is list or type(value) is tuple:
                numbers.append(tuple(map(id, value[:: size // MOST])))
            continue
        items = tuple(view)
        numbers.append(hash(tuple(map(id, items))))
        if _LIGHT.issuperset(map(id, set(map(type, items)))):
            numbers.append(hash(items))
    return ()


def _of_function(walk: Walk, name: str, value: Any, kind: type) -> Iterable[Any]:
    inside = []
    for cell in value.__closure__ or ():
        try:
            inside.append(cell.cell_contents)
        except ValueError:  # empty
            continue
    if value.__globals__ is not walk.own:  # a library's decorator leads to the notebook's function
        walk.meet_of(value.__module__)
        inside += value.__dict__.values()
        return [f for f in inside if type(f) is FunctionType and f.__globals__ is walk.own]
    walk.read_function(value.__code__)
    if not inside and not value.__defaults__ and not value.__kwdefaults__ and not value.__dict__:
        return ()
    return (*inside, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *value.__dict__.values())


def _of_builtin(walk: Walk, name: str, value: Any, kind: type) -> Iterable[Any]:
    bound = value.__self__
    if bound is None or type(bound) is ModuleType:
        walk.meet_of(value.__module__ or "builtins")
        return ()
    return (bound,)


def _of_library_module(walk: Walk, name: str, value: Any, kind: type) -> Iterable[Any]:
    walk.meet_of(vars(value).get("__name__"))
    return ()


def _of_class(walk: Walk, name: str, value: Any, kind: type) -> Iterable[Any]:
    if _module(value) != "__main__":
        walk.meet_of(_module(value))
        return ()
    mine = [(key, part) for key, part in list(_dict(value).items()) if type(part) is FunctionType or key[:2] != "__"]
    parts = [part for _, part in mine if type(part) is not MemberDescriptorType]
    for base in _mro(value)[1:]:
        if not hasattr(base, "named_parameters"):
            walk.meet_of(_module(base))
    return (*(key for key, _ in mine), *parts, *(base for base in _mro(value)[1:] if _module(base) == "__main__"))


def _of_object(walk: Walk, name: str, value: Any, kind: type) -> Iterable[Any]:
    """Of a class of the notebook's."""
    parts: list[Any] = [kind]
    walk.lead(name, value)
    own = fields(value)
    if type(own.get("_modules")) is dict and "training" in own:
        parts += _of_torch_module(walk, name, value, kind)
    for key, part in list(own.items()):
        if key not in _PARTS:
            parts += (key, part)
    for base in _mro(kind):
        for member in list(_dict(base).values()) if _module(base) == "__main__" else ():
            if type(member) is MemberDescriptorType:
                try:
                    parts.append(member.__get__(value, kind))
                except (AttributeError, TypeError):
                    continue
    for plain in (dict, list, tuple, set, deque, bytearray):
        if issubclass(kind, plain):
            if plain is bytearray:
                walk.numbers.append(zlib.crc32(value))
            elif plain is dict:
                parts += (*dict.keys(value), *dict.values(value))
            else:
                parts += plain.__iter__(value)
    return parts


def _of_generator(walk: Walk, name: str, value: Any, kind: type) -> Iterable[Any]:
    walk.draw.append(value)
    return (getattr(value.bit_generator, "seed_seq", None),) if hasattr(kind, "bit_generator") else ()


def _of_numpy(walk: Walk, name: str, value: Any, kind: type) -> Iterable[Any]:
    return of_array(value, kind, walk.numbers)


def _of_pandas(walk: Walk, name: str, value: Any, kind: type) -> Iterable[Any]:
    return of_frame(value)


def _of_unknown_iterator(walk: Walk, name: str, value: Any, kind: type) -> Iterable[Any]:
    walk.unknown.append(name)
    return ()


def _of_library(walk: Walk, name: str, value: Any, kind: type) -> Iterable[Any]:
    """Of a class of a library's: its modules, optimizers, schedulers and queues are followed."""
    walk.lead(name, value)
    mine = fields(value)
    if type(mine.get("_modules")) is dict and "training" in mine:
        return _of_torch_module(walk, name, value, kind)
    home = _module(kind)
    if home.startswith(_FOLLOWED):
        groups = mine.get("param_groups")
        if type(groups) is list and "state" in mine:  # an optimizer: the allocator marks its tensors
            return _of_optimizer(walk, groups, mine)
        return list(mine.values())
    return ()


def _of_tensor(walk: Walk, name: str, value: Any, kind: type) -> Iterable[Any]:
    walk.lead(name, value)
    return ()


def _of_another_library(walk: Walk, name: str, value: Any, kind: type) -> Iterable[Any]:
    walk.only_steps = False
    return _of_library(walk, name, value, kind)


def _of_optimizer(walk: Walk, groups: list[Any], mine: dict[str, Any]) -> Iterable[Any]:
    parts: list[Any] = []
    things = walk.things
    for group in groups:
        for key, part in list(group.items()):
            if key == "params":
                continue
            if id(type(part)) in _LIGHT or (type(part) is tuple and _LIGHT.issuperset(map(id, map(type, part)))):
                things.append(part)
            else:
                parts.append(part)
    hooks = [part for key, part in list(mine.items()) if part and "hooks" in key]
    walk.numbers.append(len(hooks))
    if hooks:
        walk.only_steps = False
    return parts + hooks


_PARTS = frozenset(("_parameters", "_buffers", "_modules"))
_libraries: set[int] = set()
"""Ids of libraries' classes of modules; `_types` keeps them."""


def _of_torch_module(walk: Walk, name: str, value: Any, kind: type) -> list[Any]:
    """The notebook's own modules below one of torch's, and the hooks of all; the allocator marks their tensors."""
    found = look(value)
    notebook = []
    if not _libraries.issuperset(map(id, map(type, found.modules))):
        for part in found.modules:
            if _module(type(part)) != "__main__":
                if id(type(part)) not in _libraries and _keep(type(part)):
                    _libraries.add(id(type(part)))
            elif part is not value:
                notebook.append(part)
    walk.numbers.append(found.training)
    for kind_of_hooks in found.hooks:
        if any(kind_of_hooks):
            notebook += filter(None, kind_of_hooks)
    return notebook


_MOST_TYPES = 1000
_types: list[type] = []
"""Libraries' types about which something is remembered; kept, so that no other type gets the id of one."""


def _keep(kind: type) -> bool:
    if len(_types) >= _MOST_TYPES:
        return False
    _types.append(kind)
    return True


def _part(*names: str) -> Way:
    """The way of a type whose parts are attributes."""
    return lambda walk, name, value, kind: [getattr(value, part) for part in names]


def _of_async_generator(walk: Walk, name: str, value: Any, kind: type) -> Iterable[Any]:
    walk.numbers.append(None if value.ag_frame is None else value.ag_frame.f_lasti)
    return ()


def _of_iterator(walk: Walk, name: str, value: Any, kind: type) -> Iterable[Any]:
    walk.numbers.append(ITERATORS[kind](value))
    return ()


WAYS: dict[int, Way] = {
    id(kind): way
    for kinds, way in (
        ((*DICTS, list, tuple, set, frozenset, deque), _of_items),
        ((bytearray, array), _of_bytes),
        ((FunctionType,), _of_function),
        ((BuiltinFunctionType,), _of_builtin),
        ((ModuleType,), _of_library_module),
        ((MethodType,), _part("__self__", "__func__")),
        ((functools.partial,), _part("func", "args", "keywords")),
        ((staticmethod, classmethod), _part("__func__")),
        ((functools.cached_property,), _part("func")),
        ((type(functools.lru_cache(len)),), _part("__wrapped__")),
        ((property,), _part("fget", "fset", "fdel")),
        ((AsyncGeneratorType,), _of_async_generator),
        ((SimpleNamespace,), lambda walk, name, value, kind: (*vars(value), *vars(value).values())),
        (tuple(ITERATORS), _of_iterator),
    )
    for kind in kinds
}
"""By the type's id: a metaclass of the user's may forbid to hash types."""


def way(kind: type) -> Way:
    """How the parts of values of this type are found."""
    if issubclass(kind, type):
        return _of_class
    home = _module(kind)
    if home == "__main__":
        return _of_object
    found = _way_of_library(kind, home if type(home) is str else "")
    if _keep(kind):
        WAYS[id(kind)] = found
    return found


def _way_of_library(kind: type, home: str) -> Way:
    library = home.split(".", 1)[0]
    if library in _DRAW and draws(kind):
        return _of_generator
    if library == "numpy":
        return _of_numpy
    if library == "pandas":
        return _of_pandas
    if hasattr(kind, "__next__"):
        return _nothing if library in _FILES else _of_unknown_iterator
    if (home, kind.__name__) in (("torch", "Tensor"), ("torch.nn.parameter", "Parameter")):
        return _of_tensor
    if library in STEPPERS or hasattr(kind, "named_parameters"):
        return _of_library
    return _of_another_library


def is_tensor(kind: type) -> bool:
    """Whether it is a type of torch's plain tensors, as far as one was met."""
    return WAYS.get(id(kind)) is _of_tensor
