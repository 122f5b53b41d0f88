"""Another card as the place where contents wait. Only where the user named it: it gets a context of this process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ....errors import Refused
from ....render.units import bytes_text
from .lane import quiet

__all__ = ["Neighbour", "place"]

KEPT = 20
"""The card keeps this part (1/KEPT) of what it had free."""


class _Buffer:
    """Memory on the card, of its stream `home`: while that is current, torch's own copies order it among the others."""

    __slots__ = ("data", "events", "home")

    def __init__(self, data: Any, home: Any) -> None:
        self.data, self.events, self.home = data, (), home


class Neighbour:
    """Memory of cuda device `index`, by torch's own allocator."""

    def __init__(self, torch: Any, index: int) -> None:
        self._torch, self.index = torch, index

    def room(self) -> int:
        """Bytes that may be parked there now."""
        cuda = self._torch.cuda
        free = int(cuda.mem_get_info(self.index)[0])
        cached = int(cuda.memory_reserved(self.index)) - int(cuda.memory_allocated(self.index))
        return free - free // KEPT + cached

    def take(self, nbytes: int) -> _Buffer:
        """A buffer of `nbytes`.

        Raises
        ------
        Refused
            If the card has not so much.
        """
        room = self.room()
        if room < nbytes:
            raise Refused(f"cuda:{self.index} can take {bytes_text(room)}, {bytes_text(nbytes)} is needed")
        home = self._torch.cuda.default_stream(self.index)
        try:
            with quiet(self._torch), self._torch.cuda.stream(home):
                data = self._torch.empty(nbytes, dtype=self._torch.uint8, device=f"cuda:{self.index}")
            return _Buffer(data, home)
        except self._torch.cuda.OutOfMemoryError:
            raise Refused(f"cuda:{self.index} has no {bytes_text(nbytes)} in one piece") from None

    def give(self, buffer: _Buffer, events: Iterable[Any] = ()) -> None:
        """Take `buffer` back: the card's memory is given out again in the order of its stream, after the copies."""
        buffer.data = None


def place(torch: Any, name: str, full: int) -> Neighbour:
    """The place of that name for what leaves device `full`.

    Raises
    ------
    Refused
        If there is no such card, or it is the full one.
    """
    index = int(name.partition(":")[2])
    count = torch.cuda.device_count()
    if index >= count:
        cards = "1 card, cuda:0" if count == 1 else f"{count} cards, cuda:0 to cuda:{count - 1}"
        raise Refused(f"--park: there is no {name}: this kernel sees {cards}")
    if index == full:
        raise Refused(f"--park: {name} is the card that is full")
    return Neighbour(torch, index)
