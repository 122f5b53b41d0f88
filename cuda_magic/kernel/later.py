"""Something to try again after each cell until it is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["after_each_cell", "forget"]

_waiting: list[tuple[Any, Callable[[], None]]] = []


def after_each_cell(shell: Any, done: Callable[[], bool]) -> None:
    """Call `done` after each cell of `shell`, until it says True. A second call replaces the first."""

    def ask() -> None:
        try:
            finished = done()
        except Exception:  # noqa: BLE001 - it is tried again; an error here would stand below a cell of the user's
            return
        if finished:
            forget()

    forget()
    _waiting.append((shell, ask))
    shell.events.register("post_execute", ask)


def forget() -> None:
    """No longer try."""
    while _waiting:
        shell, ask = _waiting.pop()
        shell.events.unregister("post_execute", ask)
