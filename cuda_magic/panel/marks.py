"""What happened, for the time line: cells with what they took, out-of-memory errors, rescues."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

__all__ = ["Marks"]

KEPT = 400
"""Marks of a run; older ones go."""


class Marks:
    """Marks as the page gets them: ``{i: number, k: cell|oom|rescue, a: begin, b: end, n: cell, d: MiB, x: words}``.

    The shell's events come on the main thread and take notes only; the panel's thread reads and sends.
    """

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []
        self.version = 0
        """Grows with each change."""
        self.ended = False
        """Whether a cell has ended since the last reading: one is due, so that its end is seen."""
        self._count = 0
        self._changed: dict[int, int] = {}
        self._cell: dict[str, Any] | None = None
        self._began: int | None = None
        self._report: Any = None

    def _add(self, **made: Any) -> dict[str, Any]:
        self._count += 1
        mark = {"i": self._count, **made}
        self.all.append(mark)
        del self.all[:-KEPT]
        self._touch(mark)
        return mark

    def _touch(self, mark: dict[str, Any]) -> None:
        self.version += 1
        self._changed[mark["i"]] = self.version

    def begin(self, number: int, held: int | None) -> None:
        """Cell `number` starts, while this kernel's tensors take `held` MiB."""
        self._began = held
        self._report = _report()
        self._cell = self._add(k="cell", n=number, a=round(time.time(), 2))

    def end(self, failed: BaseException | None) -> None:
        """The cell has ended; a reading is due that tells what it took."""
        now = round(time.time(), 2)
        if self._cell is not None:
            self._cell["b"] = now
            if failed is not None:
                self._cell["x"] = type(failed).__name__
            self._touch(self._cell)
        report = _report()
        if report is not None and report is not self._report:
            way = ", ".join(one.id for one in report.room) or report.status
            if report.room or report.status == "rescued":
                self._add(k="rescue", a=now, n=self._cell and self._cell["n"], x=f"room was made: {way}")
        self.ended = True

    def read(self, held: int | None) -> None:
        """A reading has been made: a cell that ended has its difference."""
        if not self.ended:
            return
        self.ended = False
        cell, self._cell = self._cell, None
        if cell is not None and held is not None:
            cell["d"] = held - (self._began or 0)
            self._touch(cell)

    def oom(self, cuda: list[int]) -> None:
        """The allocator counted out-of-memory errors on these devices since the last reading."""
        for one in cuda:
            self._add(k="oom", a=round(time.time(), 2), c=one, n=self._cell and self._cell["n"])

    def after(self, version: int) -> list[dict[str, Any]]:
        """The marks that have changed since `version`."""
        return [dict(mark) for mark in self.all if self._changed.get(mark["i"], 0) > version]


def _report() -> Any:
    """The guard's last report, if the guard was ever used."""
    guard = sys.modules.get("cuda_magic.magics.cuda_guard")
    last: Callable[..., Any] | list[Any] = getattr(guard, "_last", [])
    return last[0] if isinstance(last, list) and last else None
