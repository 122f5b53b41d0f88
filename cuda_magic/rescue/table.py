"""The columns of the table of errors: what a kind is, and one way to recognise it."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Kind", "Row"]


@dataclass(frozen=True)
class Kind:
    """What may be done about an error. `repeat`: ``ladder``, ``ambiguous`` (only where little is free) or ``never``."""

    id: str
    sentence: str
    repeat: str = "never"
    memory: bool = True
    """Whether the guard has something to report; False: not a matter of memory."""


@dataclass(frozen=True)
class Row:
    """One way to recognise a kind. All that is given must fit: a class's name, its module, the text, a code."""

    kind: str
    text: str = ""
    """Regular expression searched for in the message."""
    classes: tuple[str, ...] = ()
    """Names of a class in the error's ancestry; the module's first part after a colon: ``OutOfMemoryError:torch``."""
    codes: tuple[int, ...] = ()
    """``error_code``, ``code`` or ``status`` of the error."""
    library: str = "torch"
    since: str = ""
    source: str = ""
    native: bool = False
    """Never of ValueError, AssertionError and their like themselves: a message about a value is Python code's own."""
    named: str = ""
    """Regular expression searched for in the names of the error's classes."""

    @property
    def pattern(self) -> re.Pattern[str] | None:
        return re.compile(self.text) if self.text else None
