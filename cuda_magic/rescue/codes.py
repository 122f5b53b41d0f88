"""What a piece of code names and which of Python's steps it takes: read once for a function, in microseconds."""

from __future__ import annotations

import dis
from types import CodeType
from typing import NamedTuple

from .doubts import ATTRIBUTES, GLOBALS, MEMBERS

__all__ = ["Code", "doubtful", "leaves_at_top", "names_at_top", "names_in", "of_code"]

_LEADS_ON = frozenset((*ATTRIBUTES, *MEMBERS, *(name for names in MEMBERS.values() for name in names))) | {
    "ctypeslib",
    "distutils",
    "f2py",
    "importlib",
    "load",
    "os",
    "testing",
}
"""Names of attributes that lead on, from whatever object. All that begin with an underscore may, and what is loaded."""

_SETS = frozenset((dis.opmap["STORE_ATTR"], dis.opmap["DELETE_ATTR"]))
_LEAVES = frozenset(
    dis.opmap[name]
    for name in (
        *("IMPORT_NAME", "IMPORT_STAR", "LOAD_BUILD_CLASS", "STORE_GLOBAL", "DELETE_GLOBAL"),
        *("GET_AWAITABLE", "GET_AITER", "LOAD_LOCALS"),
    )
    if name in dis.opmap
)
"""Steps of Python's by which code may come to anything."""
_LEAVES_OR_SETS = _LEAVES | _SETS
_NAME = frozenset((dis.opmap["LOAD_NAME"],))
_ANY_VARIABLE = frozenset((*GLOBALS, *ATTRIBUTES))


class Code(NamedTuple):
    """What one function's code, and all that is defined inside it, names."""

    code: CodeType
    names: tuple[str, ...]
    leaves: bool
    """It may take a step that leads to anything, or what is defined inside it sets attributes."""
    sets: bool
    """It sets attributes itself."""
    leads_on: bool
    """It names what may lead on from whatever object."""
    doubtful: bool
    """It names what may read any variable."""
    data: bool
    """It names ``data``."""


_known: dict[int, Code] = {}
_MOST = 1000


def of_code(code: CodeType) -> Code:
    """What the code of a function names: it is remembered."""
    found = _known.get(id(code))
    if found is not None and found.code is code:
        return found
    steps = code.co_code[::2]
    names = names_in(code)
    if len(_known) >= _MOST:
        _known.clear()
    _known[id(code)] = found = Code(
        code,
        names,
        not _LEAVES.isdisjoint(steps) or not _NAME.isdisjoint(steps) or inner_leaves(code),
        not _SETS.isdisjoint(steps),
        leads_on(names),
        doubtful(names),
        "data" in names,
    )
    return found


def names_in(code: CodeType) -> tuple[str, ...]:
    """The names in a piece of code and in all that is defined inside it; some are attributes."""
    names = code.co_names
    for inner in code.co_consts:
        if type(inner) is CodeType:
            names += names_in(inner)
    return names


def leaves_at_top(code: CodeType) -> bool:
    """Whether a statement's code may take a step that leads to anything, or that sets attributes."""
    return not _LEAVES_OR_SETS.isdisjoint(code.co_code[::2]) or inner_leaves(code)


def names_at_top(code: CodeType) -> tuple[str, ...] | None:
    """The names in a statement's code; None where it may take such a step, or one of them may lead on."""
    if not _LEAVES_OR_SETS.isdisjoint(code.co_code[::2]):
        return None
    names = code.co_names
    for inner in code.co_consts:
        if type(inner) is CodeType:
            its = of_code(inner)
            if its.leaves or its.sets:
                return None
            names += its.names
    if not _LEADS_ON.isdisjoint(names):
        return None
    for name in names:
        if name[0] == "_" and name != "_":
            return None
    return names


def inner_leaves(code: CodeType) -> bool:
    """Whether what is defined inside may take such a step."""
    for inner in code.co_consts:
        if type(inner) is CodeType:
            its = of_code(inner)
            if its.leaves or its.sets:
                return True
    return False


def leads_on(names: tuple[str, ...]) -> bool:
    """Whether one of them, an attribute of whatever object, may lead on."""
    return not _LEADS_ON.isdisjoint(names) or any(name[0] == "_" and name != "_" for name in names)


def doubtful(names: tuple[str, ...]) -> bool:
    """Whether one of them may read any variable."""
    return not _ANY_VARIABLE.isdisjoint(names)
