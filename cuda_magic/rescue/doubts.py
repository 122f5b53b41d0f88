"""What a piece of code names, and what in it makes any guess at what it can reach worthless: a table of doubts."""

from __future__ import annotations

import dis
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from ..kernel.holders import MACHINERY

__all__ = ["ATTRIBUTES", "GLOBALS", "MEMBERS", "Words", "machinery", "words"]

GLOBALS: dict[str, str] = {
    # names of the namespace or of builtins, by what they can do (Python's library reference, built-in functions)
    "globals": "globals() gives every variable",
    "locals": "locals() gives every variable",
    "vars": "vars() gives every variable",
    "eval": "eval() may name any variable",
    "exec": "exec() may name any variable",
    "__import__": "__import__() can give the notebook's own module",
    "__builtins__": "__builtins__ has eval and exec",
    "breakpoint": "a debugger may name any variable",
    "get_ipython": "a magic, or IPython itself, may name any variable",
}
"""Names whose use puts everything in doubt."""

ATTRIBUTES: dict[str, str] = {
    # attributes that lead from an object to the namespace (Python's data model, "The standard type hierarchy")
    "__globals__": "a function's __globals__ are all variables",
    "__builtins__": "__builtins__ has eval and exec",
    "__subclasses__": "classes found by __subclasses__ are not followed",
    "f_globals": "a frame's globals are all variables",
    "f_locals": "a frame's locals may be all variables",
    "f_back": "a frame leads to its callers",
    "gi_frame": "a generator's frame has the variables",
    "cr_frame": "a coroutine's frame has the variables",
    "ag_frame": "a generator's frame has the variables",
    "tb_frame": "a traceback's frame has the variables",
    "user_ns": "IPython's user_ns is all variables",
    "user_global_ns": "IPython's user_ns is all variables",
    "run_line_magic": "a magic may name any variable",
    "run_cell_magic": "a magic may name any variable",
    "run_cell": "it runs a cell, which may name any variable",
}
"""Attributes, of whatever object, whose use puts everything in doubt."""

MEMBERS: dict[str, frozenset[str]] = {
    # module: its members that lead to the namespace or to any object; empty: all of them
    "__main__": frozenset(),
    "builtins": frozenset(),
    "code": frozenset(),
    "ctypes": frozenset(),
    "gc": frozenset({"get_objects", "get_referrers", "get_referents", "garbage", "callbacks"}),
    "inspect": frozenset({"currentframe", "stack", "trace", "getclosurevars", "getmembers", "getouterframes"}),
    "IPython": frozenset(),
    "pdb": frozenset(),
    "runpy": frozenset(),
    "sys": frozenset({"modules", "_getframe", "_current_frames", "last_traceback", "last_value", "exc_info"}),
    "timeit": frozenset(),
    "pandas": frozenset({"eval"}),
}
"""Members of modules whose use puts everything in doubt."""

_ATTRIBUTE_OPS = frozenset({"LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM", "LOAD_SUPER_ATTR"})
_SILENT = frozenset({"CACHE", "EXTENDED_ARG", "NOP"})
_AWAITS = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_WORD = re.compile(r"[^\W\d]\w*")
_LONG = 100_000
"""Characters of one string that are looked through for names."""


@dataclass(frozen=True)
class Words:
    """What one code object, with all that is defined inside it, names."""

    names: frozenset[str]
    """Names read from the namespace, and words of its strings: ``df.query('x > @y')`` names y."""
    doubt: str = ""


def words(code: CodeType, namespace: Mapping[str, Any]) -> Words:
    """The names in `code`, and the first doubt; module members are known by what `namespace` binds to their name."""
    found: set[str] = set()
    doubt = ""
    for one in _with_inner(code):
        if one.co_flags & _AWAITS and one.co_name == "<module>":
            doubt = doubt or "other tasks run while it awaits"
        names, said = _names(one, namespace)
        strings: set[str] = set()
        for text in _texts(one.co_consts):
            strings.update(_WORD.findall(text[:_LONG]))
            if len(text) > _LONG:
                doubt = doubt or "a long string may name any variable"
        if "__main__" in strings and "__name__" not in names:
            doubt = doubt or "a string names the module __main__"
        found |= names | strings
        doubt = doubt or said
    return Words(frozenset(found), doubt)


def _names(code: CodeType, namespace: Mapping[str, Any]) -> tuple[set[str], str]:
    """Names that one code object reads, and the first doubt."""
    names: set[str] = set()
    doubt = ""
    module: ModuleType | None = None  # what the step before has put on the stack, if it is a module
    for step in dis.get_instructions(code):
        if step.opname in _SILENT or step.opname.startswith("STORE_"):
            continue
        at, module = module, None
        if step.opcode not in dis.hasname or step.opname.startswith("DELETE_"):
            continue
        name = str(step.argval)
        if step.opname in _ATTRIBUTE_OPS:
            doubt = doubt or ATTRIBUTES.get(name, "") or (_member(at, name) if at else "")
            value = vars(at).get(name) if at else None
            module = at if step.opname == "IMPORT_FROM" else value if type(value) is ModuleType else None
        elif step.opname == "IMPORT_NAME":
            module = ModuleType(name)
            doubt = doubt or _member(module, "")
        else:
            names.add(name)
            value = namespace.get(name)
            module = value if type(value) is ModuleType else None
            doubt = doubt or GLOBALS.get(name, "") or _value(value)
    return names, doubt


def _value(value: Any) -> str:
    """Why using this value by its name puts everything in doubt."""
    kind = type(value)
    if kind is ModuleType:
        return _member(value, "")
    if machinery(kind) and not _home(kind).startswith("cuda_magic") and not issubclass(kind, BaseException):
        return "an object of IPython's may lead to any variable"
    if kind in (BuiltinFunctionType, FunctionType):
        home = sys.modules.get(str(value.__module__))
        name = str(value.__name__)
        if home is None or vars(home).get(name) is not value:
            return ""
        if home.__name__ in ("__main__", "builtins"):
            return GLOBALS.get(name, "") if home.__name__ == "builtins" else ""
        return _member(home, name)
    return ""


def machinery(kind: type) -> bool:
    """Whether a type is of the notebook's machinery, from which everything can be reached: not a practice tensor."""
    home = _home(kind)
    return home.split(".", 1)[0] in MACHINERY and home != "cuda_magic.testing.tensor"


def _home(kind: type) -> str:
    module = vars(type)["__module__"].__get__(kind)
    return module if type(module) is str else ""


def _member(module: ModuleType, name: str) -> str:
    """Why using this member of a module puts everything in doubt; with an empty name the module as such."""
    full = vars(module).get("__name__", "")
    members = MEMBERS.get(full) if type(full) is str else None
    if members is None or (members and name not in members):
        return ""
    return f"{full}.{name} may lead to any variable" if name else f"the module {full} may lead to any variable"


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def _texts(constants: tuple[Any, ...]) -> Iterator[str]:
    for constant in constants:
        if type(constant) is str:
            yield constant
        elif type(constant) in (tuple, frozenset):
            yield from _texts(tuple(constant))
