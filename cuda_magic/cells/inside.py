"""Errors inside of a magic that would show them itself and go on: for the rescuer they are raised.

``%run script.py`` and ``%%capture`` show the error of the code that they run and end as if nothing had been, and so
does ``%time`` before IPython 9. Nobody outside could tell that the statement ran out of memory.
"""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import IPython

__all__ = ["Inside"]

_SWALLOW: tuple[tuple[str, str], ...] = (
    # (name, kind): IPython/core/magics/execution.py, Magics `run`, `capture`, `time`
    ("run", "line"),
    ("capture", "cell"),
    *((("time", "line"), ("time", "cell")) if IPython.version_info[0] < 9 else ()),
)
_HELP = ("pinfo", "pinfo2")
"""They show what stands in the place of a magic."""


def _named(code: CodeType) -> Iterator[tuple[str, str]]:
    """The magics of the table that a statement calls, or the text that it gives to another."""
    texts = [constant for constant in code.co_consts if type(constant) is str]
    if not any(text in _HELP for text in texts):
        for name, kind in _SWALLOW:
            if any(text == name or f"%{name}" in text for text in texts):
                yield name, kind


class Inside:
    """In force around one attempt of a statement that calls a magic.

    Parameters
    ----------
    shell
        IPython's shell.
    code
        The statement.
    wanted
        Whether the rescuer wants to know of an error.
    """

    def __init__(self, shell: Any, code: CodeType, wanted: Callable[[BaseException], bool]) -> None:
        self.shell, self.code, self.wanted = shell, code, wanted
        self.took = False
        """Whether an error was raised that the magic would have shown."""
        self._depth = 0
        self._held: BaseException | None = None
        self._undo: list[Callable[[], None]] = []
        self._names: frozenset[str] = frozenset()
        self._spaces: list[dict[str, Any]] = []
        """Variables of scripts that failed."""
        self._interactive: bool | None = None

    def __enter__(self) -> None:
        self._interactive = _matplotlib().is_interactive() if _matplotlib() else None
        self._names = frozenset(self.shell.user_ns)
        for name, kind in _named(self.code):
            magic, table = self.shell.find_magic(name, kind), self.shell.magics_manager.magics[kind]
            if magic is not None and table.get(name) is magic:
                self._replace(table, name, self._around(magic), magic)
        if self._undo:
            own = vars(self.shell)
            self._replace(own, "showtraceback", self._show, own.get("showtraceback"))
            self._replace(own, "run_cell", self._run_cell, own.get("run_cell"))

    def __exit__(self, *error: object) -> None:
        while self._undo:
            self._undo.pop()()
        self._held = None
        if self.took and self._interactive is not None:
            _matplotlib().interactive(self._interactive)  # IPython 7's %run leaves it off when its script raises

    def _replace(self, table: dict[str, Any], name: str, new: Any, old: Any) -> None:
        def undo() -> None:
            if table.get(name) != new:
                return  # the cell has put something of its own there
            if old is None:
                del table[name]
            else:
                table[name] = old

        table[name] = new
        self._undo.append(undo)

    def put_back(self, names: dict[str, Any]) -> None:
        """Take away what the failed attempt bound by its magic, for a repeat: it holds memory.

        A script that failed leaves its variables in IPython's cache, which ``%run`` empties when it runs it again.
        """
        for name in [n for n in names if n not in self._names and not n.startswith("_")]:
            del names[name]
        for module in getattr(self.shell, "_main_mod_cache", {}).values():
            if any(vars(module) is space for space in self._spaces):
                vars(module).clear()
        self._spaces.clear()

    def _around(self, magic: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(magic)
        def called(*args: Any, **options: Any) -> Any:
            __tracebackhide__ = True
            self._depth += 1
            try:
                return magic(*args, **options)
            finally:
                self._depth -= 1

        return called

    def _run_cell(self, *args: Any, **options: Any) -> Any:
        """The shell's ``run_cell``, which would swallow what is raised where its error is shown."""
        __tracebackhide__ = True
        result = type(self.shell).run_cell(self.shell, *args, **options)
        held, self._held = self._held, None
        if held is None:
            return result
        del result
        try:
            self._raise(held)
        finally:
            del held

    def _show(self, *args: Any, **options: Any) -> None:
        """The shell's ``showtraceback``."""
        given = args[0] if args else options.get("exc_tuple")
        error = given[1] if given else sys.exc_info()[1]
        if not self._depth or error is None or not self.wanted(error):
            type(self.shell).showtraceback(self.shell, *args, **options)
            return
        self._spaces += [
            frame.f_globals
            for frame, _ in traceback.walk_tb(error.__traceback__)
            if frame.f_locals is frame.f_globals and frame.f_globals is not self.shell.user_ns
        ]
        if not _nested():
            self._raise(error)
        self._held = error

    def _raise(self, error: BaseException) -> None:
        """Below the frame of this function the traceback is the one that the magic would have shown."""
        self.took = True
        raise error


def _matplotlib() -> Any:
    return sys.modules.get("matplotlib")


def _nested() -> bool:
    """Whether a nested cell runs, between the magic and the one who shows the error."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename == __file__:
            return frame.f_code.co_name == "_run_cell"
        frame = frame.f_back  # type: ignore[assignment]
    return False
