"""A verdict that matters reaches the eye: in the middle of a cell, in a loop or in a script a result is dropped unseen,
and then it says in a line what it would have shown.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

__all__ = ["watch"]

_cells: weakref.WeakKeyDictionary[Any, _Cell] = weakref.WeakKeyDictionary()


def watch(shell: Any, result: Any) -> Any:
    """`result`, which says its `verdict_line` to stderr if it ends before this cell does and nobody looked at it.

    What is kept under a name, or shown, says nothing.
    """
    line = getattr(result, "verdict_line", None)
    text = line() if line is not None else ""
    if not text:
        return result
    cell = _cells.get(shell)
    if cell is None:
        cell = _cells[shell] = _Cell(shell)
    said = [text]
    vars(result)["_unseen"] = said
    weakref.finalize(result, cell.say, said).atexit = False
    cell.armed.append(said)
    return result


class _Cell:
    """What the results of one cell of one shell would say if they were dropped now, and what was said: a loop says it
    once."""

    def __init__(self, shell: Any) -> None:
        self.shell = weakref.ref(shell)
        self.armed: list[list[str]] = []
        """Each is emptied when its result is shown."""
        self.told: set[str] = set()
        shell.events.register("pre_execute", self.forget)
        shell.events.register("post_execute", self.end)

    def say(self, said: list[str]) -> None:
        if said and said[0] not in self.told:
            self.told.add(said[0])
            sys.stderr.write(f"{said[0]}\n")

    def forget(self) -> None:
        """What is still there was kept."""
        for said in self.armed:
            said.clear()
        self.armed.clear()
        self.told.clear()

    def end(self) -> None:
        self.forget()
        shell = self.shell()
        if shell is not None:
            _cells.pop(shell, None)
            shell.events.unregister("pre_execute", self.forget)
            shell.events.unregister("post_execute", self.end)
