"""What a shell tells us of each cell: its raw text, whether it is stored, and where an await must go."""

from __future__ import annotations

from typing import Any

__all__ = ["Hooks"]


class Hooks:
    """The event callbacks and the input transformer of one shell; `remove` undoes `install`."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell

    def install(self) -> None: ...

    def remove(self) -> None: ...
