"""`cuda-magic mem`: one reading from a terminal."""

from __future__ import annotations

from ..machine import machine
from ..result import Result
from .table import MemoryTable

__all__ = ["mem", "once"]


def once(alert: int = 95) -> MemoryTable:
    """One reading of all devices, with this kernel's share."""
    from ..memory.shares import shares

    here = machine()
    reading = here.devices().read()
    return MemoryTable(reading, shares(reading, here.allocator()), alert)


def mem(words: list[str]) -> tuple[Result, int]:
    """(the reading, exit code): 0 with a reading, 2 where there is none."""
    from ..errors import UserError

    if words:
        raise UserError(f"no option {words[0]!r}; there is --json")
    table = once()
    return table, 0 if table.reading.status.ok else 2
