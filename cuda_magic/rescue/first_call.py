"""May a statement that ran out of memory run again unasked? Only where nothing else can have happened before.

That is shown, not guessed: the error came out of the first thing that the statement did, that was a call which makes a
new array and nothing else, and whatever the statement had done before was to read names, attributes and constants, and
to compute with numbers.
Nobody looks for what may have changed: such a list has no end.
"""

from __future__ import annotations

import ast
import builtins
import dis
from collections.abc import Mapping
from types import CodeType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from . import functional

if TYPE_CHECKING:
    from ..cells.rescuer import Step

__all__ = ["why_not"]

_SILENT = frozenset(
    # of Python 3.10 to 3.13: what reads, and what builds tuples and lists of it
    (
        *("RESUME", "NOP", "CACHE", "EXTENDED_ARG", "PUSH_NULL", "PRECALL", "KW_NAMES"),
        *("LOAD_CONST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD"),
        *("BUILD_TUPLE", "BUILD_LIST", "LIST_EXTEND", "BUILD_SLICE"),
    )
)
_CALL = frozenset({"CALL", "CALL_KW", "CALL_FUNCTION", "CALL_FUNCTION_KW", "CALL_METHOD", "PRECALL"})
_OPERATOR = ("BINARY_", "UNARY_", "COMPARE_OP")
_PLAIN = frozenset((int, float, complex, bool, str, bytes, type(None), type(Ellipsis)))
_NUMBERS = frozenset((int, float, complex, bool))
_READ = frozenset({"shape", "dtype", "device", "T", "mT", "H", "grad", "data", "real", "imag", "ndim", "size"})
"""Attributes of arrays that an argument may be."""
_REFUSED = frozenset({"out", "inplace", "generator"})
"""Arguments by which a call changes something."""
_DEEP = 4


class _Act(NamedTuple):
    """The first thing that a statement does beside reading."""

    call: bool
    operators: int
    """On numbers, before it."""
    allowed: bool
    said: str
    """What was called."""


class _Acts(Exception):
    """Raised out of the reading, where it meets the first act."""

    def __init__(self, act: _Act) -> None:
        self.act = act


class _Unknown(Exception):
    """It cannot be shown what happens here."""


def why_not(error: BaseException, step: Step, namespace: Mapping[str, Any]) -> str:
    """Why the statement may not run again unasked, as the end of a sentence; empty where it may."""
    if isinstance(step.node, (ast.For, ast.AsyncFor, ast.While)):
        return "its loop would start again from the top"
    code, entry = step.code, error.__traceback__
    while code is not None and entry is not None and entry.tb_frame.f_code is not code:
        entry = entry.tb_next
    if code is None or entry is None:
        return "what it did before the error would be done again"
    inside = _users_own(entry.tb_next)
    if inside:
        return f"{inside} would run again"
    failed = _failed(code, entry.tb_lasti)
    if step.awaits:
        return "what other tasks did meanwhile would be done again"
    act = _first(step.node, namespace)
    if act is None or (act.call, act.operators) != failed:
        return "what it did before the call that failed would be done again"
    if not act.allowed:
        return f"what {act.said} did before the error would be done again"
    around = functional.in_force()
    return f"{around} would be called again" if around else ""


def _users_own(entry: TracebackType | None) -> str:
    """The first frame below the statement that is of nobody known."""
    while entry is not None:
        frame = entry.tb_frame
        if not functional.of_library(frame.f_globals):
            name = frame.f_code.co_name
            home = str(frame.f_globals.get("__name__", "")).partition(".")[0]
            return "a magic" if home == "IPython" else f"{name}()" if name.isidentifier() else "the code that it calls"
        entry = entry.tb_next
    return ""


def _failed(code: CodeType, at: int) -> tuple[bool, int] | None:
    """Whether it is a call that failed at `at`, and how many operators ran before; None where more ran, or no such."""
    # in 3.11 and later `at` may be in the cache behind a call
    ran = [one.opname for one in dis.get_instructions(code) if one.offset <= at]
    last, before = ran[-1], [name for name in ran[:-1] if name not in _SILENT]
    if not all(name.startswith(_OPERATOR) for name in before) or not (last in _CALL or last.startswith(_OPERATOR)):
        return None
    return last in _CALL, len(before)


def _first(node: ast.AST | None, namespace: Mapping[str, Any]) -> _Act | None:
    """The first act of a statement; None where that cannot be told."""
    if not isinstance(node, (ast.Expr, ast.Assign)):
        return None
    try:
        _Reader(namespace).read(node.value)
    except _Acts as met:
        return met.act
    except _Unknown:
        pass
    return None


class _Reader:
    """Reads an expression in the order in which Python evaluates it, and does nothing of it."""

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        self.namespace = namespace
        self.operators = 0
        """On numbers, so far; what the compiler computes is none."""

    def read(self, node: ast.AST) -> Any:
        """What stands there, where it is only read.

        Raises
        ------
        _Acts
            At the first act.
        _Unknown
            Where it is neither.
        """
        if isinstance(node, ast.Constant):
            return node.value
        if _number(node):
            return 0  # the compiler has computed it
        if isinstance(node, ast.Name):
            found = self.namespace.get(node.id, self)
            return getattr(builtins, node.id, None) if found is self else found
        if isinstance(node, ast.Attribute):
            return _attribute(self.read(node.value), node.attr)
        if isinstance(node, ast.Tuple):
            return tuple([self.read(one) for one in node.elts])
        if isinstance(node, ast.List):
            return [self.read(one) for one in node.elts]
        if isinstance(node, ast.Slice):
            parts = (node.lower, node.upper, node.step)
            return slice(*[None if one is None else self.read(one) for one in parts])
        if isinstance(node, ast.Call):
            raise _Acts(self._call(node))
        operands = self._operands(node)
        if all(type(one) in _NUMBERS for one in operands):
            self.operators += 1
            return 0  # what it is does not matter here
        first, last = operands[0], operands[-1]
        index = isinstance(node, ast.Subscript)
        if index and type(last) is int and (type(first) is tuple or functional.is_size(first)):
            self.operators += 1
            return first[last]
        arrays = [functional.array(one) for one in operands if type(one) not in _NUMBERS]
        same = bool(arrays[0]) and (index or len(set(arrays)) == 1)
        raise _Acts(_Act(False, self.operators, same and all(map(_plain, operands)), "the operator"))

    def _operands(self, node: ast.AST) -> list[Any]:
        if isinstance(node, ast.BinOp):
            return [self.read(node.left), self.read(node.right)]
        if isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not):
            return [self.read(node.operand)]
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and not isinstance(node.ops[0], _TRUTHS):
            return [self.read(node.left), self.read(node.comparators[0])]
        if isinstance(node, ast.Subscript):
            return [self.read(node.value), self.read(node.slice)]
        raise _Unknown

    def _call(self, node: ast.Call) -> _Act:
        name, owner, function = "", None, None
        if isinstance(node.func, ast.Attribute):
            name, owner = node.func.attr, self.read(node.func.value)
            function = vars(owner).get(name) if type(owner) is ModuleType else None
        else:
            function = self.read(node.func)
        values = [self.read(one) for one in node.args]
        values += [self.read(one.value) for one in node.keywords]
        words = {one.arg for one in node.keywords}
        known = functional.is_function(function) if function is not None else functional.is_method(owner, name)
        allowed = known and not words & (_REFUSED | {None}) and all(map(_plain, values))
        return _Act(True, self.operators, allowed, f"{ast.unparse(node.func)}()")


_TRUTHS = (ast.In, ast.NotIn, ast.Is, ast.IsNot)


def _number(node: ast.AST) -> bool:
    """Whether it is made of numbers alone, such as ``4 << 30``."""
    if isinstance(node, ast.Constant):
        return type(node.value) in _NUMBERS
    if isinstance(node, ast.BinOp):
        return _number(node.left) and _number(node.right)
    return isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not) and _number(node.operand)


def _attribute(owner: Any, name: str) -> Any:
    if type(owner) is ModuleType:
        if name in vars(owner):
            return vars(owner)[name]
    elif name in _READ and functional.array(owner) and name not in getattr(owner, "__dict__", ()):
        return getattr(owner, name)
    raise _Unknown


def _plain(value: Any, deep: int = 0) -> bool:
    """Whether a library that is given this value can run nothing of the user's."""
    kind = type(value)
    if kind in _PLAIN or functional.array(value) or functional.constant(value):
        return True
    if (kind is tuple or kind is list) and deep < _DEEP:
        return all(_plain(one, deep + 1) for one in value)
    if kind is slice:
        return all(type(one) in _PLAIN for one in (value.start, value.stop, value.step))
    return _numpy(value)


def _numpy(value: Any) -> bool:
    """numpy's own arrays and numbers that hold no objects."""
    kind = type(value)
    if vars(type)["__module__"].__get__(kind) != "numpy":
        return False
    return hasattr(kind, "dtype") and not value.dtype.hasobject
