"""What arrays and frames hold, marked before a statement that may write to them: a checksum of their bytes.

An array that the statement's own text only reads is not marked: operators, items and methods that make new arrays write
to none, and what copies it hands on a copy. Everything else may write to it, as may what it is given to.
"""

from __future__ import annotations

import ast
import sys
import zlib
from collections.abc import Collection, Iterable, Mapping
from types import ModuleType
from typing import Any

from .boxes import LIGHT, MOST

__all__ = ["is_large", "of_array", "of_frame", "only_read"]

WHOLE = 1 << 20
"""Bytes of an array up to which each of them counts; of a larger one both ends and about 4000 items between."""


def of_array(value: Any, kind: type, numbers: list[Any]) -> Iterable[Any]:
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


def of_frame(value: Any) -> Iterable[Any]:
    """The arrays of a frame or a series of pandas'."""
    try:
        manager = value._mgr
        return (manager, *manager.axes, *manager.arrays)
    except (AttributeError, TypeError):
        return ()


def is_large(value: Any) -> bool:
    """Whether it is an array of so many bytes that it pays to ask whether it is only read."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray and value.nbytes > _SMALL


_SMALL = 1 << 12
_READ = frozenset(
    (
        *("all", "any", "argmax", "argmin", "argsort", "astype", "copy", "cumsum", "dot", "item", "max", "mean", "min"),
        *("nonzero", "prod", "round", "std", "sum", "tobytes", "tolist", "trace", "var"),
    )
)
"""Methods of an array that write to none and give no view of it, with one argument at most: a later one is ``out``."""
_TOLD = frozenset(("dtype", "itemsize", "nbytes", "ndim", "shape", "size"))
_VIEWS = frozenset(("T", "imag", "real"))
_COPIES = {
    **dict.fromkeys(
        (
            *(
                "abs",
                "argmax",
                "argsort",
                "array",
                "concatenate",
                "cos",
                "exp",
                "hstack",
                "isnan",
                "log",
                "max",
                "mean",
            ),
            *("median", "min", "ones_like", "prod", "sin", "sqrt", "stack", "std", "sum", "tanh", "var", "vstack"),
            "zeros_like",
        ),
        1,
    ),
    "clip": 3,
    "dot": 2,
    "matmul": 2,
    "percentile": 2,
    "where": 3,
}
"""numpy's functions that make new arrays, and how many arguments that are no ``out`` they take by place."""
_BUILTINS = frozenset(("abs", "bool", "float", "int", "len", "print", "round", "str", "sum"))
_MOST = 100
_module = vars(type)["__module__"].__get__
_LIGHT = frozenset(map(id, LIGHT))


class _Unknown(Exception):
    """The statement may do anything."""


def only_read(node: ast.AST | None, namespace: Mapping[str, Any], elsewhere: Collection[str]) -> frozenset[str]:
    """Names of arrays that the text of a statement reads, and that it can neither write to nor hand on.

    Parameters
    ----------
    node
        The statement.
    namespace
        The cell's.
    elsewhere
        Names that its functions read: what those do with them is not looked at.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None or type(node) not in {ast.Assign, ast.Expr}:
        return frozenset()
    targets: list[Any] = getattr(node, "targets", [])
    for target in targets:
        for part in target.elts if type(target) in {ast.Tuple, ast.List} else (target,):
            if type(part) is not ast.Name:  # an item, which may be the array's
                return frozenset()
    reading = _Reading(namespace, numpy)
    try:
        reading.value(node.value)  # type: ignore[union-attr]
    except _Unknown:
        return frozenset()
    return frozenset(reading.arrays.difference(reading.given, elsewhere))


class _Reading:
    """What the text of one statement does with arrays."""

    def __init__(self, namespace: Mapping[str, Any], numpy: Any) -> None:
        self.namespace, self.numpy, self.torch = namespace, numpy, sys.modules.get("torch")
        self.arrays: set[str] = set()
        self.given: set[str] = set()
        """Names of arrays that get to where they may be written to."""
        self.left = _MOST

    def value(self, part: Any) -> tuple[bool, set[str]]:
        """(whether a value is known to be an array, a tensor or a light one, arrays whose memory it may be)."""
        self.left -= 1
        if not self.left:
            raise _Unknown
        kind = type(part)
        if kind is ast.Constant:
            return True, set()
        if kind is ast.Name:
            return self._name(part.id)
        if kind is ast.BinOp:
            return self._new((part.left, part.right))
        if kind is ast.UnaryOp:
            return self._new((part.operand,))
        if kind is ast.Compare:
            return self._new((part.left, *part.comparators))
        if kind is ast.Subscript:
            return self._all((part.value, part.slice))
        if kind in {ast.Tuple, ast.List}:
            return False, self._all(part.elts)[1]
        if kind is ast.Slice:
            return self._all([inner for inner in (part.lower, part.upper, part.step) if inner is not None])
        if kind is ast.Attribute and part.attr in _VIEWS | _TOLD:
            return self.value(part.value)
        if kind is ast.Call:
            return self._call(part)
        raise _Unknown

    def _name(self, name: str) -> tuple[bool, set[str]]:
        value = self.namespace.get(name, self)
        if type(value) is self.numpy.ndarray and not value.dtype.hasobject:
            self.arrays.add(name)
            return True, {name}
        known = id(type(value)) in _LIGHT or (self.torch is not None and type(value) is self.torch.Tensor)
        return known or _module(type(value)) == "numpy", set()

    def _all(self, parts: Iterable[Any]) -> tuple[bool, set[str]]:
        known, memory = True, set[str]()
        for part in parts:
            one, its = self.value(part)
            known = known and one
            memory |= its
        return known, memory

    def _new(self, parts: Iterable[Any]) -> tuple[bool, set[str]]:
        """Of an operator: a new value where all that it is applied to is known."""
        known, memory = self._all(parts)
        if not known:
            self.given |= memory
        return known, set()

    def _call(self, call: ast.Call) -> tuple[bool, set[str]]:
        function = call.func
        given: list[Any] = [*call.args, *[keyword.value for keyword in call.keywords]]
        plain = not any(keyword.arg in {None, "copy", "out"} for keyword in call.keywords)
        most, mine = 0, set[str]()
        if type(function) is ast.Name:
            if function.id not in self.namespace:
                if function.id not in _BUILTINS:
                    raise _Unknown
                most = 1
            elif not self._is_torchs(self.namespace[function.id]):
                raise _Unknown
        elif type(function) is ast.Attribute:
            home = self.namespace.get(function.value.id) if type(function.value) is ast.Name else None
            if home is self.numpy:
                most = _COPIES.get(function.attr, 0)
                if not most:
                    raise _Unknown
            elif home is not None and home is self.torch:
                most = 1 if function.attr == "tensor" else 0
            elif type(home) is ModuleType:
                raise _Unknown
            else:
                own, mine = self.value(function.value)
                most = 1 if function.attr in _READ else 0
                if not own or function.attr[-1:] == "_":
                    raise _Unknown
        else:
            raise _Unknown
        items: list[Any] = [
            inner for part in given for inner in (part.elts if type(part) in {ast.Tuple, ast.List} else (part,))
        ]
        known, memory = self._all(items)
        if most and plain and known and len(call.args) <= most:
            return True, set()
        self.given |= memory | mine
        return False, set()

    def _is_torchs(self, value: Any) -> bool:
        """Whether it is one of torch's own modules, which keep no arrays."""
        return self.torch is not None and str(_module(type(value))).startswith("torch.nn.modules.")
