"""The tensors that the values of a namespace lead to: found fast before each statement, and by name after a failure.

Followed are tensors, modules and optimizers, in containers to a depth of two and in the attributes of an object that
stands under a name itself.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from operator import itemgetter
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

from ..parts import fields

__all__ = ["DEPTH", "Found", "Path", "collect", "follows", "look", "named", "of_groups", "of_module", "of_state"]
__all__ += ["hold", "inside", "let_go", "modules", "text"]

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


def of_module(module: Any) -> tuple[list[Any], list[Any]]:
    """Parameters and buffers, None and repeated ones among them."""
    found = look(module)
    return inside(found.parameters), inside(found.buffers)


class Look(NamedTuple):
    """A module and all below it, each once and level by level, as they are now. Holds them: to be dropped soon."""

    modules: list[Any]
    owns: list[dict[str, Any]]
    """The ``__dict__`` of each."""
    parameters: tuple[dict[str, Any], ...]
    buffers: tuple[dict[str, Any], ...]
    training: tuple[bool, ...]
    hooks: tuple[tuple[Any, ...], ...]
    """Of each kind of hooks, each module's."""


_NAMES = ("_modules", "_parameters", "_buffers", "training")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_kept = itemgetter(*_NAMES, *_HOOKS)


def _columns(owns: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    try:
        return list(zip(*map(_kept, owns), strict=True))
    except KeyError:  # a module of another release's, or one that was taken apart
        names = (*_NAMES[:3], "training", *_HOOKS)
        return list(
            zip(*[[own.get(name, {} if name in _NAMES[:3] else None) for name in names] for own in owns], strict=True)
        )


class _Tree:
    """The modules at and below one module, at one moment. None of them is kept alive."""

    __slots__ = ("below", "gone", "refs", "sizes")

    def __init__(self, found: list[Any], owns: list[dict[str, Any]]) -> None:
        self.gone: list[Any] = []
        """References to those that have died: another object may have the id of one."""
        self.refs = list(map(weakref.ref, found, repeat(self.gone.append)))
        below = [own.get("_modules", {}) for own in owns]
        self.sizes, self.below = list(map(len, below)), list(map(id, inside(below)))
        """How many modules each of them leads to, and the ids of those."""


_trees: dict[int, _Tree] = {}
"""What was found last, by the id of the module at the top."""
_MOST_TREES = 20

_looked: dict[int, Look] = {}
_holding = 0
"""The thread for which each tree is looked at once; 0: none."""


def hold() -> None:
    """Until `let_go`, each tree is looked at once by this thread: nothing changes it meanwhile."""
    global _holding
    _looked.clear()
    _holding = threading.get_ident()


def let_go() -> None:
    """Drop what was looked at since `hold`."""
    global _holding
    _holding = 0
    _looked.clear()


def modules(module: Any) -> list[Any]:
    """The module and all below it."""
    return look(module).modules


def look(module: Any) -> Look:
    """A module and all below it.

    Where all modules of the last time still lead to the very same ones nothing is searched.
    """
    if _holding != threading.get_ident():
        return _look(module)
    found = _looked.get(id(module))
    if found is None or found.modules[0] is not module:
        found = _looked[id(module)] = _look(module)
    return found


def _look(module: Any) -> Look:
    last = _trees.get(id(module))
    if last is not None:
        known = [ref() for ref in last.refs]
        if not last.gone and known[0] is module:
            owns = [one.__dict__ for one in known]
            below, parameters, buffers, training, *hooks = _columns(owns)
            if list(map(id, inside(below))) == last.below and list(map(len, below)) == last.sizes:
                return Look(known, owns, parameters, buffers, training, tuple(hooks))
    owns, found = [], []
    level, seen = [module], {id(None), id(module)}
    while level:
        mine = [one.__dict__ for one in level]
        owns += mine
        found += level
        parts = {id(one): one for one in inside([own.get("_modules", {}) for own in mine]) if id(one) not in seen}
        seen.update(parts)
        level = list(parts.values())
    if len(_trees) >= _MOST_TREES:
        _trees.clear()
    _trees[id(module)] = _Tree(found, owns)
    _, parameters, buffers, training, *hooks = _columns(owns)
    return Look(found, owns, parameters, buffers, training, tuple(hooks))


def inside(dicts: Iterable[Any]) -> list[Any]:
    """The values of some dicts, most of which are empty as a rule."""
    return list(chain.from_iterable(map(dict.values, filter(None, dicts))))


def of_groups(optimizer: Any) -> list[Any]:
    """The parameters that an optimizer changes."""
    return list(chain.from_iterable([group["params"] for group in optimizer.param_groups]))


def of_state(optimizer: Any) -> list[Any]:
    """What an optimizer's state holds, numbers and None among it."""
    return inside(list(optimizer.state.values()))


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
