"""What a statement can reach below the names, marked before it: nested containers, objects, closures, classes, arrays.

The names that its text reads are followed, through the notebook's own functions and classes too. Nothing is kept alive
but light values: all else is known by a weak reference, an id, a length or a checksum.
"""

from __future__ import annotations

import dis
import functools
import sys
import weakref
import zlib
from array import array
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from operator import is_, itemgetter
from types import (
    AsyncGeneratorType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import TYPE_CHECKING, Any

from ..memory.parts import fields
from ..memory.torch.tensors import modules
from .boxes import DICTS, LIGHT, MOST, TEXT, Reference, reference, same
from .doubts import ATTRIBUTES, GLOBALS
from .randomness import draws

if TYPE_CHECKING:
    from ..memory.allocator import Allocator

__all__ = ["GIVEN", "Depths"]

GIVEN = ("the function", "argument ")
"""Names, or how they begin, of what is guarded in a script."""
NODES = 5000
"""Values that are looked at for one statement."""
LONG = 100_000
"""Items of a container up to which each of them counts; beyond it the length, and some of them."""
WHOLE = 1 << 20
"""Bytes of an array up to which each of them counts; of a larger one both ends and about 4000 items between."""

_LIGHT = frozenset(map(id, LIGHT))
_DICTS = frozenset(map(id, DICTS))
_ROWS = frozenset(map(id, (list, tuple, set, frozenset, deque)))
_FILES = ("io", "_io", "tempfile", "codecs", "ipykernel", "IPython")
"""Modules of files: docs/guard.md says that files are not seen."""
_CACHED = type(functools.lru_cache(len))
_DRAW = frozenset(("numpy", "torch", "random"))
_FOLLOWED = ("collections", "queue", "torch.optim", "torch.utils.data")
"""Modules whose objects keep what a loop steps on in attributes: schedulers, samplers, queues."""

_module, _dict, _mro, _offset = (
    vars(type)[name].__get__ for name in ("__module__", "__dict__", "__mro__", "__dictoffset__")
)


class Depths:
    """Marks of what a statement's names lead to.

    Parameters
    ----------
    code
        The statement's; None of a guarded function: `namespace` has that one and its arguments as `GIVEN`.
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
        code: CodeType | None,
        namespace: Mapping[str, Any],
        saved: Collection[str],
        known: Collection[int],
        allocator: Allocator | None,
    ) -> None:
        walk = _Walk(namespace, allocator, known)
        walk.seen.update(id(namespace[name]) for name in saved if name in namespace)
        self.roots: list[tuple[str, Reference, list[Any], list[Any]]] = []
        if code is not None:
            walk.read(code)
        else:
            walk.names += [name for name in namespace if type(name) is str and name.startswith(GIVEN)]
        self.own = walk.own
        for name in walk.names:  # grows meanwhile
            value = namespace.get(name)
            if name not in saved and id(type(value)) not in _LIGHT and type(value) is not ModuleType:
                self.roots.append((name, reference(value), *walk.tokens(name, value)))
        self.private = {name: namespace[name] for name in walk.names if _private(name, namespace[name])}
        """Light values of names with an underscore, which are marked nowhere else."""
        self.saved = tuple(name for name in saved if name in namespace)
        self.unknown = walk.unknown
        self._codes = walk.codes if allocator is not None else []
        self.leads = dict(walk.leads)
        """What may lead to tensors, to be marked and dropped."""
        self.draw = [value for _, value in walk.draw]

    def changed(self, namespace: Mapping[str, Any]) -> list[str]:
        """Names whose objects hold something else now."""
        walk = _Walk(namespace)
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


def _private(name: str, value: Any) -> bool:
    return name[:1] == "_" and name[:2] != "__" and id(type(value)) in _LIGHT


class _Walk:
    def __init__(
        self, namespace: Mapping[str, Any], allocator: Allocator | None = None, known: Collection[int] = ()
    ) -> None:
        self.namespace, self.allocator, self.known = namespace, allocator, known
        self.own = getattr(namespace.get(GIVEN[0]), "__globals__", namespace)
        """The globals of the notebook's functions."""
        self.names: list[str] = []
        self.seen: set[int] = set()
        self.unknown: list[str] = []
        self.leads: list[tuple[str, Any]] = []
        self.draw: list[tuple[str, Any]] = []
        self.left = NODES
        self._read: set[str] = set()
        self.codes: list[CodeType] = []

    def read(self, code: CodeType) -> None:
        """The names in a piece of code join those that are followed."""
        names = list(_names_in(code))
        if "data" in names:
            self.codes.append(code)
        if any(name in GLOBALS or name in ATTRIBUTES for name in names):
            names += [name for name in list(self.namespace) if type(name) is str and name[:1] != "_"]
        for name in names:
            if name not in self._read:
                self._read.add(name)
                if name in self.namespace and name not in ("In", "Out"):
                    self.names.append(name)

    def tokens(self, name: str, value: Any) -> tuple[list[Any], list[Any]]:
        """What the value leads to: (compared by identity, compared by value)."""
        things: list[Any] = []
        numbers: list[Any] = []
        todo: deque[Any] = deque((value,))
        while todo and self.left > 0:
            self.left -= 1
            part = todo.popleft()
            kind = type(part)
            if id(kind) in _LIGHT:
                if (kind is str or kind is bytes) and len(part) > TEXT:
                    numbers.append(hash(part))
                else:
                    things.append(part)
                continue
            try:
                things.append(weakref.ref(part))  # the same one for the same object
            except TypeError:
                numbers.append(id(part))
            if id(part) not in self.seen:
                self.seen.add(id(part))
                todo.extend(self._parts(name, part, kind, numbers))
        return things, numbers

    def _parts(self, name: str, value: Any, kind: type, numbers: list[Any]) -> Iterable[Any]:
        if id(kind) in _DICTS or id(kind) in _ROWS:
            return _items(value, numbers)
        if kind is bytearray or kind is array:
            numbers.append(zlib.crc32(value))
            return ()
        if kind is FunctionType:
            return self._of_function(value)
        if kind is MethodType:
            return (value.__self__, value.__func__)
        if kind is functools.partial:
            return (value.func, value.args, value.keywords)
        if kind is staticmethod or kind is classmethod:
            return (value.__func__,)
        if kind is functools.cached_property:
            return (value.func,)
        if kind is _CACHED:
            return (value.__wrapped__,)
        if kind is AsyncGeneratorType:
            numbers.append(None if value.ag_frame is None else value.ag_frame.f_lasti)
            return ()
        if kind is property:
            return (value.fget, value.fset, value.fdel)
        if issubclass(kind, type):
            return self._of_class(value)
        home = _module(kind)
        home = home if type(home) is str else ""
        library = home.split(".", 1)[0]
        if home == "__main__":
            return self._of_object(name, value, kind, numbers)
        if kind is SimpleNamespace:
            return (*vars(value), *vars(value).values())
        if library in _DRAW and draws(kind):
            self.draw.append((name, value))
            return (getattr(value.bit_generator, "seed_seq", None),) if hasattr(kind, "bit_generator") else ()
        if library == "numpy":
            return _of_array(value, kind, numbers)
        if library == "pandas":
            return _of_frame(value)
        if id(kind) in _iterators():
            numbers.append(_iterators()[id(kind)](value))
            return ()
        if hasattr(kind, "__next__"):
            if library not in _FILES:
                self.unknown.append(name)
            return ()
        self._lead(name, value)
        mine = fields(value)
        if type(mine.get("_modules")) is dict and "training" in mine:
            return _of_module(value, numbers)
        if home.startswith(_FOLLOWED):
            groups = mine.get("param_groups")
            if type(groups) is list and "state" in mine:  # an optimizer: the allocator marks its tensors
                hooks = [part for key, part in list(mine.items()) if "hooks" in key]
                return [part for group in groups for key, part in dict(group).items() if key != "params"] + hooks
            return list(mine.values())
        return ()

    def _lead(self, name: str, value: Any) -> None:
        if self.allocator is not None and id(value) not in self.known and self.allocator.follows(value):
            self.leads.append((f"(in {name}, {len(self.leads)})", value))

    def _of_function(self, value: FunctionType) -> Iterable[Any]:
        inside = []
        for cell in value.__closure__ or ():
            try:
                inside.append(cell.cell_contents)
            except ValueError:  # empty
                continue
        if value.__globals__ is not self.own:  # a library's decorator leads to the notebook's function
            inside += value.__dict__.values()
            return [f for f in inside if type(f) is FunctionType and f.__globals__ is self.own]
        self.read(value.__code__)
        return (*inside, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *value.__dict__.values())

    def _of_class(self, value: type) -> Iterable[Any]:
        if _module(value) != "__main__":
            return ()
        mine = [
            (key, part) for key, part in list(_dict(value).items()) if type(part) is FunctionType or key[:2] != "__"
        ]
        parts = [part for _, part in mine if type(part) is not MemberDescriptorType]
        return (*(key for key, _ in mine), *parts, *(base for base in _mro(value)[1:] if _module(base) == "__main__"))

    def _of_object(self, name: str, value: Any, kind: type, numbers: list[Any]) -> Iterable[Any]:
        parts: list[Any] = [kind]
        self._lead(name, value)
        if type(fields(value).get("_modules")) is dict and "training" in fields(value):
            parts += _of_module(value, numbers)
        for key, part in list(fields(value).items()):
            if key not in ("_parameters", "_buffers", "_modules"):
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
                    numbers.append(zlib.crc32(value))
                elif plain is dict:
                    parts += (*dict.keys(value), *dict.values(value))
                else:
                    parts += plain.__iter__(value)
        return parts


@functools.cache
def _iterators() -> Mapping[int, Any]:
    from .marks import ITERATORS

    return {id(kind): where for kind, where in ITERATORS.items()}


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if type(inner) is CodeType:
            yield from _names_in(inner)


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


def _items(value: Any, numbers: list[Any]) -> Iterable[Any]:
    size = len(value)
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


def _of_array(value: Any, kind: type, numbers: list[Any]) -> Iterable[Any]:
    if kind.__name__ == "SeedSequence":
        numbers.append(value.n_children_spawned)
    elif hasattr(kind, "random_raw"):  # a bit generator
        numbers.append(repr(value.state))
    numpy = sys.modules.get("numpy")
    if numpy is None or not issubclass(kind, numpy.ndarray):
        return ()
    values = value.view(numpy.ndarray)
    numbers += (values.shape, values.strides, str(values.dtype))
    if values.dtype.hasobject:
        return values.ravel().tolist() if values.size <= MOST and values.dtype == object else ()
    if values.nbytes <= WHOLE:
        numbers.append(zlib.crc32(values.tobytes()))
    else:
        flat = (
            values.reshape(-1)
            if values.flags.c_contiguous
            else values.T.reshape(-1)
            if values.flags.f_contiguous
            else None
        )
        if flat is not None:
            for part in (flat[:MOST], flat[:: max(1, flat.size // 4000)], flat[-MOST:]):
                numbers.append(zlib.crc32(part.tobytes()))
    return ()


def _of_module(module: Any, numbers: list[Any]) -> list[Any]:
    """The notebook's own modules below one of torch's, and the hooks of all; the allocator marks their tensors."""
    found, own = modules(module)
    kinds = {id(kind): kind for kind in map(type, found)}
    notebook = []
    if "__main__" in map(_module, kinds.values()):
        notebook = [part for part in found[1:] if _module(type(part)) == "__main__"]
    try:
        training, *hooks = zip(*map(_KEPT, own), strict=True)
    except KeyError:  # a module of another release's, or one that was taken apart
        training, *hooks = zip(*[[mine.get(name) for name in _NAMES] for mine in own], strict=True)
    numbers.append(training)
    return notebook + list(filter(None, chain.from_iterable(hooks)))


_NAMES = ("training", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_KEPT = itemgetter(*_NAMES)


def _of_frame(value: Any) -> Iterable[Any]:
    """The arrays of a frame or a series of pandas'."""
    try:
        manager = value._mgr
        return (manager, *manager.axes, *manager.arrays)
    except (AttributeError, TypeError):
        return ()
