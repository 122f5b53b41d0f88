"""``--reserve SIZE``: memory set aside before a statement runs, given back when the cell has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import Refused
from ..render.units import bytes_text

if TYPE_CHECKING:
    from ..memory.allocator import Allocator, Reserve

__all__ = ["SetAside"]


class SetAside:
    """The reserve of one guarded cell.

    Parameters
    ----------
    nbytes
        How much.
    notes
        The report's notes, to which what it could not do, and what it served, is added.
    """

    def __init__(self, nbytes: int, notes: list[str]) -> None:
        self.nbytes, self.notes = nbytes, notes
        self.held: Reserve | None = None
        self._served = 0

    def before(self, allocator: Allocator | None) -> None:
        """Set it aside, where CUDA is started and it was not yet."""
        if self.held is not None and self.held.active:
            self._served = max(self._served, self.held.served())
            return
        if allocator is None or not allocator.started():
            return  # no magic starts CUDA: the statement that does so is not covered
        try:
            self.held = allocator.reserve(self.nbytes)
        except Refused as refused:
            self._say(f"--reserve {bytes_text(self.nbytes)}: {refused}; nothing was set aside")

    def after(self, move: bool) -> None:
        """Give it back, and note what it served."""
        held, self.held = self.held, None
        if held is None:
            self._say("--reserve: CUDA was not started when the statements began; nothing was set aside")
            return
        served = max(self._served, held.served())
        left = held.release(move)
        if not served:
            return
        where = f"{bytes_text(left)} of it stay in a private pool" if left else "moved to the ordinary heap"
        self._say(f"the reserve of {bytes_text(held.nbytes)} served {bytes_text(served)} ({where})")

    def _say(self, note: str) -> None:
        if not self.notes or not any(n.startswith(("--reserve", "the reserve")) for n in self.notes):
            self.notes.append(note)
