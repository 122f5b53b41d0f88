"""The tensors that the values of a namespace lead to: found fast before each statement, and by name after a failure.

Followed are tensors, modules and optimizers, in containers to a depth of two and in the attributes of an object that
stands under a name itself.
"""

from __future__ import annotations

import weakref
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from operator import attrgetter, itemgetter, methodcaller
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

from ..parts import fields

__all__ = ["DEPTH", "Found", "Path", "collect", "follows", "modules", "named", "of_groups", "of_module", "of_state"]
__all__ += ["text"]

DEPTH = 2
MOST = 1000
"""Items of one container that are followed."""

_LEADS_NOWHERE = frozenset(
    map(
        id,
        (int, float, complex, bool, str, bytes, type(None), range, FunctionType, BuiltinFunctionType, ModuleType, type),
    )
)
"""By their ids: a metaclass of the user's may forbid to hash types."""
_DICTS = frozenset(map(id, (dict, OrderedDict, defaultdict, Counter)))

_offset = vars(type)["__dictoffset__"].__get__

Path = Any
"""A name, or (path, step): made text only when somebody reads it."""


class Found:
    """What was found. Holds it: to be dropped before the statement runs."""

    __slots__ = ("modules", "optimizers", "paths", "tensors")

    def __init__(self) -> None:
        self.tensors: list[Any] = []
        self.paths: list[Path] = []
        """Of `tensors`."""
        self.modules: list[tuple[Path, Any]] = []
        self.optimizers: list[tuple[Path, Any]] = []


def follows(torch: Any, value: Any) -> bool:
    """Whether `collect` may find something in a value that stands under a name."""
    kind = type(value)
    if id(kind) in _LEADS_NOWHERE:
        return False
    if id(kind) in _DICTS or kind is list or kind is tuple:
        return True
    of = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)
    if issubclass(kind, of):
        return True
    # most objects of libraries, arrays among them, have no attributes of their own
    return _offset(kind) != 0 and any(issubclass(type(part), of) for part in list(fields(value).values()))


def collect(torch: Any, path: Path, value: Any, depth: int, found: Found) -> None:
    """Add to `found` what `value` leads to."""
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        found.tensors.append(value)
        found.paths.append(path)
    elif issubclass(kind, torch.nn.Module):
        found.modules.append((path, value))
    elif issubclass(kind, torch.optim.Optimizer):
        found.optimizers.append((path, value))
    elif depth:
        for step, part in _parts(value, kind, depth):
            if id(type(part)) not in _LEADS_NOWHERE:
                collect(torch, (path, step if type(step) in _STEPS else ...), part, depth - 1, found)


_STEPS = (int, str, bool, tuple)
"""Types of the steps that are kept; another key of a dict may hold device memory itself."""


def _parts(value: Any, kind: type, depth: int) -> Iterable[tuple[Any, Any]]:
    if kind is list or kind is tuple:
        return enumerate(value[:MOST])
    if id(kind) in _DICTS:
        return list(value.items())[:MOST]
    if depth < DEPTH:
        return ()
    return [((name,), part) for name, part in list(fields(value).items()) if type(name) is str]


def text(path: Path) -> str:
    """The path as a user would write it."""
    if type(path) is not tuple:
        return str(path)
    before, step = path
    if step is ...:
        return f"{text(before)}[...]"
    return f"{text(before)}.{step[0]}" if type(step) is tuple else f"{text(before)}[{step!r}]"


_own, _modules, _parameters, _buffers = (
    attrgetter("__dict__"),
    *(itemgetter(name) for name in ("_modules", "_parameters", "_buffers")),
)


def of_module(module: Any) -> tuple[list[Any], list[Any]]:
    """Parameters and buffers, None and repeated ones among them."""
    owns = modules(module)[1]
    return _chain(_values(map(_parameters, owns))), _chain(_values(map(_buffers, owns)))


class _Tree(NamedTuple):
    """The modules at and below one module, at one moment. None of them is kept alive."""

    refs: list[Any]
    sizes: list[int]
    """How many modules each of them leads to."""
    below: list[int]
    """Ids of those."""


_trees: dict[int, _Tree] = {}
"""What was found last, by the id of the module at the top."""
_MOST_TREES = 20


def modules(module: Any) -> tuple[list[Any], list[dict[str, Any]]]:
    """(the module and all below it, each once and level by level; the ``__dict__`` of each).

    Where all modules of the last time still lead to the very same ones nothing is searched, and there is no step of
    Python's for each.
    """
    last = _trees.get(id(module))
    if last is not None:
        known = [ref() for ref in last.refs]
        if known[0] is module and id(None) not in map(id, known):
            # all of them are alive, so that no other object can have the id of one
            owns = list(map(_own, known))
            if _leads(owns) == last[1:]:
                return known, owns
    owns, found = [], []
    level, seen = [module], {id(None), id(module)}
    while level:
        mine = list(map(_own, level))
        owns += mine
        found += level
        below = {id(one): one for one in _chain(_values(map(_modules, mine))) if id(one) not in seen}
        seen.update(below)
        level = list(below.values())
    if len(_trees) >= _MOST_TREES:
        _trees.clear()
    _trees[id(module)] = _Tree(list(map(weakref.ref, found)), *_leads(owns))
    return found, owns


def _leads(owns: list[dict[str, Any]]) -> tuple[list[int], list[int]]:
    below = list(map(_modules, owns))
    return list(map(len, below)), list(map(id, _chain(_values(below))))


_values = partial(map, methodcaller("values"))


def _chain(parts: Iterable[Iterable[Any]]) -> list[Any]:
    return list(chain.from_iterable(parts))


def of_groups(optimizer: Any) -> list[Any]:
    """The parameters that an optimizer changes."""
    return [tensor for group in optimizer.param_groups for tensor in group["params"]]


def of_state(optimizer: Any) -> list[Any]:
    """What an optimizer's state holds, numbers and None among it."""
    return _chain(_values(list(optimizer.state.values())))


def named(torch: Any, path: Path, value: Any) -> Iterator[tuple[str, str, Any]]:
    """(label, kind, tensor) of what `value` leads to."""
    found = Found()
    collect(torch, path, value, DEPTH, found)
    for where, tensor in zip(found.paths, found.tensors, strict=True):
        yield text(where), "tensor", tensor
    for where, module in found.modules:
        for part, tensor in module.named_parameters():
            yield f"{text(where)}.{part}", "parameter", tensor
        for part, tensor in module.named_buffers():
            yield f"{text(where)}.{part}", "buffer", tensor
    for where, optimizer in found.optimizers:
        for tensor in of_groups(optimizer):
            yield f"a parameter of {text(where)}", "parameter", tensor
        for tensor in of_state(optimizer):
            if issubclass(type(tensor), torch.Tensor):
                yield f"the state of {text(where)}", "state", tensor
