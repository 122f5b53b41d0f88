"""`cuda-magic mem`: one reading from a terminal."""

from __future__ import annotations

from ..machine import machine
from ..result import Result
from .table import MemoryTable

__all__ = ["mem", "once"]


def once(alert: int = 95) -> MemoryTable:
    """One reading of all devices, with this kernel's share."""
    from ..memory.split import split

    here = machine()
    reading = here.devices().read()
    return MemoryTable(reading, split(reading, here.allocator()), alert)


def mem(words: list[str]) -> tuple[Result, int]:
    """(the reading, or who holds it, and the exit code): 0 with a reading, 2 where there is none."""
    from ..errors import UserError, nearest

    for word in words:
        if word != "--who":
            raise UserError(f"no option {word!r}; there are --json and --who.{nearest(word, ['--json', '--who'])}")
    if words:
        from ..memory.who import who

        answer = who()
        return answer, 0 if answer.reading.status.ok else 2
    table = once()
    return table, 0 if table.reading.status.ok else 2
