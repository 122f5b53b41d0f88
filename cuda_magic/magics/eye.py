"""A verdict that matters reaches the eye: in the middle of a cell, in a loop or in a script a result is dropped unseen,
and then it says in a line what it would have shown.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

__all__ = ["watch"]

_armed: list[list[str]] = []
"""What each result of this cell would say if it were dropped now; emptied when it is shown."""
_told: set[str] = set()
"""What was said in this cell: a loop says it once."""


def watch(shell: Any, result: Any) -> Any:
    """`result`, which says its `verdict_line` to stderr if it ends before this cell does and nobody looked at it.

    What is kept under a name, or shown, says nothing.
    """
    line = getattr(result, "verdict_line", None)
    text = line() if line is not None else ""
    if not text:
        return result
    said = [text]
    vars(result)["_unseen"] = said
    weakref.finalize(result, _say, said).atexit = False
    if not _armed:
        shell.events.register("post_execute", _Disarm(shell))
    _armed.append(said)
    return result


def _say(said: list[str]) -> None:
    if said and said[0] not in _told:
        _told.add(said[0])
        sys.stderr.write(f"{said[0]}\n")


class _Disarm:
    """At the end of a cell: what is still there was kept."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.__name__ = "cuda_magic_verdicts"

    def __call__(self) -> None:
        for said in _armed:
            said.clear()
        _armed.clear()
        _told.clear()
        self.shell.events.unregister("post_execute", self)
