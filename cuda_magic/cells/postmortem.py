"""What ``%debug`` finds after a rescue that failed: the frames of the failed attempt, which were let go, made anew.

Before the frames go, their variables are noted without holding memory: small plain values themselves, all else by weak
references. If no rescue succeeds, frames with the same names, files and lines stand in the error's traceback, and each
variable is what it was, or, where it died with the attempt, a note of what it was.
"""

from __future__ import annotations

import ast
import gc
import inspect
import itertools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from types import CodeType, FrameType, MethodType, TracebackType
from typing import Any

from .names import is_plain

__all__ = ["Gone", "Noted"]

DEPTH = 3
"""Containers within containers that are looked into."""
WIDTH = 100
"""Items of a container that is looked into."""
_SMALL = 1 << 12  # bytes of an object that cannot refer to another
_ATOMS = ("dtype", "device", "layout", "memory_format")
_ARRAYS = ("torch", "numpy", "cupy", "cuda_magic")
_module, _name = (vars(type)[name].__get__ for name in ("__module__", "__name__"))
"""These attributes of a class, past its metaclass."""
_OPTIMIZED = inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS


class Gone:
    """Stands for a value that died with the failed attempt."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __repr__(self) -> str:
        return f"<{self.what}, let go to make room>"


def _what(value: Any) -> str:
    kind = type(value)
    words = [str(_name(kind))]
    home = _module(kind)
    if type(home) is str and home.split(".", 1)[0] in _ARRAYS:
        for name in ("shape", "dtype"):
            part = getattr(value, name, None)
            words += [str(tuple(part) if name == "shape" else part)] if part is not None else []
        size = getattr(value, "nbytes", None)
        words += [f"of {size:,} bytes"] if type(size) is int else []
    return " ".join(words)


def _is_atom(value: Any, kind: type) -> bool:
    """Whether it is small and refers to nothing. A view of an array is small, not tracked, and refers to the array."""
    if gc.is_tracked(value) or not (_module(kind) == "builtins" or str(_name(kind)) in _ATOMS):
        return False
    return sys.getsizeof(value) <= _SMALL


def _note(value: Any, depth: int = 0) -> Callable[[], Any]:
    """What gives the value again, or a `Gone`, and keeps nothing alive that may hold memory."""
    kind = type(value)
    if is_plain(value):
        return lambda: value
    if kind is dict and depth < DEPTH and len(value) <= WIDTH:
        pairs = [(_note(key, DEPTH), _note(part, depth + 1)) for key, part in list(value.items())]
        return lambda: {_key(key()): part() for key, part in pairs}
    if kind in (list, tuple, set, frozenset) and depth < DEPTH and len(value) <= WIDTH:
        items = [_note(item, depth + 1) for item in list(value)]
        make = tuple if kind is tuple else list if kind is list else kind
        return lambda: make([_key(item()) if make is kind and kind in (set, frozenset) else item() for item in items])
    if kind is MethodType:  # a weak reference to it would die at once
        function, owner = _note(value.__func__, DEPTH), _note(value.__self__, DEPTH)
        return lambda: owner() if type(owner()) is Gone else MethodType(function(), owner())
    if _is_atom(value, kind):
        return lambda: value
    try:
        what = _what(value)
    except Exception:  # noqa: BLE001 - an array that cannot say what it is
        what = str(_name(kind))
    try:
        weak = weakref.ref(value)
    except TypeError:
        return lambda: Gone(what)

    def again() -> Any:
        found = weak()
        return Gone(what) if found is None else found

    return again


def _key(value: Any) -> Any:
    """`value` where it can be a key, else a note that can."""
    try:
        hash(value)
    except Exception:  # noqa: BLE001 - of the user's
        return Gone(str(_name(type(value))))
    return value


class _Variables(MutableMapping[str, Any]):
    """The variables of a frame that was let go. What lives on elsewhere is given, and not kept alive from here."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._notes: dict[str, Callable[[], Any]] = {}
        for name, value in list(names.items()):
            try:
                self._notes[name] = _note(value)
            except Exception:  # noqa: BLE001 - of the user's
                continue

    def __getitem__(self, name: str) -> Any:
        return self._notes[name]()

    def __setitem__(self, name: str, value: Any) -> None:
        self._notes[name] = lambda: value

    def __delitem__(self, name: str) -> None:
        del self._notes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._notes)

    def __len__(self) -> int:
        return len(self._notes)

    def __repr__(self) -> str:
        return repr(dict(self))


class _Place:
    """Where a frame stood, and its variables."""

    def __init__(self, tb: TracebackType, own: dict[str, Any]) -> None:
        frame: FrameType = tb.tb_frame
        self.code, self.line = frame.f_code, tb.tb_lineno
        self.names = frame.f_globals
        self.variables: Any = frame.f_locals
        if self.variables is not own and not _lives_on(frame):
            self.variables = _Variables(self.variables)
        positions = getattr(self.code, "co_positions", None)  # Python 3.11
        self.span = next(itertools.islice(positions(), tb.tb_lasti // 2, None), None) if positions else None

    def traceback(self, below: TracebackType | None) -> TracebackType:
        made = _stopping(self.code, self.line, self.span)
        return TracebackType(below, *_stopped(made, self.names, self.variables), self.line)


def _stopped(made: CodeType, names: dict[str, Any], variables: Any) -> tuple[FrameType, int]:
    """(the frame in which `made` failed, at which instruction).

    From Python 3.11 on a frame keeps its callers' frames with their variables: here and above none may lead back to it.
    """
    try:
        exec(made, names, variables)
    except ZeroDivisionError as error:
        return error.__traceback__.tb_next.tb_frame, error.__traceback__.tb_next.tb_lasti  # type: ignore[union-attr]
    raise AssertionError("unreachable")


def _lives_on(frame: FrameType) -> bool:
    """Whether the frame's variables are those of an imported module."""
    if frame.f_locals is not frame.f_globals:
        return False
    module = sys.modules.get(str(frame.f_globals.get("__name__")))
    return getattr(module, "__dict__", None) is frame.f_globals


def _stopping(code: CodeType, line: int, span: Any) -> CodeType:
    """Code that fails where `code` did, with variables that `exec` gives it."""
    tree = ast.parse("def f(): 0 / 0")
    function: Any = tree.body[0]
    first = min(code.co_firstlineno, line)
    last, start, end = line, 0, 0
    if span is not None and None not in span and span[0] == line:
        _, last, start, end = span
    for node, row, final, left, right in (
        (function, first, last, 0, end),
        *((node, line, last, start, end) for node in ast.walk(function.body[0])),
    ):
        node.lineno, node.end_lineno, node.col_offset, node.end_col_offset = row, final, left, right
    whole = compile(tree, code.co_filename, "exec")
    made = next(part for part in whole.co_consts if isinstance(part, CodeType))
    names = {"co_name": code.co_name}
    if sys.version_info >= (3, 11):
        names["co_qualname"] = code.co_qualname
    return made.replace(co_flags=made.co_flags & ~_OPTIMIZED, **names)  # type: ignore[arg-type]


class Noted:
    """The frames of an error and of those that it is raised from, before they are let go.

    Parameters
    ----------
    errors
        (error, the part of its traceback that is to be made again).
    own
        The notebook's variables.
    """

    def __init__(self, errors: Iterable[tuple[BaseException, TracebackType | None]], own: dict[str, Any]) -> None:
        self._errors = [(error, list(_places(tb, own))) for error, tb in errors]

    def put_back(self) -> None:
        """Give each error a traceback again; once."""
        tb = error = None
        while self._errors:
            error, places = self._errors.pop()
            while places:
                tb = places.pop().traceback(tb)
            error.__traceback__ = tb
            tb = error = None  # see `_stopped`


def _places(tb: TracebackType | None, own: dict[str, Any]) -> Iterator[_Place]:
    while tb is not None:
        yield _Place(tb, own)
        tb = tb.tb_next
