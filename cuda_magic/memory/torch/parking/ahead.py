"""What is brought back before an op names it, and the bytes that stay free for what ops take."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from .order import Order
from .parked import Entry

__all__ = ["AHEAD", "Ahead", "Room"]

AHEAD = 64
"""Uses that are looked ahead."""


class Room:
    """Bytes of one device, counted here between two questions to it.

    Parameters
    ----------
    figures
        See `pager.Figures`.
    spare
        Bytes that stay free at first. They grow with what ops were seen to ask for, and with what was free in pieces.
    """

    def __init__(self, figures: Any, spare: int) -> None:
        self._figures = figures
        self._least = spare
        self.free = 0
        self.anew()

    def anew(self) -> None:
        """Forget what was asked for: another statement begins."""
        self.refresh()
        self.spare = min(self._least, self.limit // 16)
        self._asked = -1, 0

    def refresh(self) -> None:
        """Read anew what this process may take."""
        self.limit: int = self._figures.limit()

    def left(self) -> int:
        """What live tensors may still take, asked for now."""
        self.free = int(self.limit - self._figures.used())
        return self.free

    def has(self, nbytes: int) -> int:
        """What is free beside the spare bytes, asked for where our own count does not reach `nbytes`."""
        free = self.free if self.free - self.spare >= nbytes else self.left()
        return int(free - self.spare)

    def asked(self, nbytes: int, moment: int) -> None:
        """An op found no room. Where it is not the first one, as much as both asked for stays free from now on.

        Twice that up to a sixteenth of all, once up to a quarter. Where so much was free and of no use, it lies in
        pieces, and stays free beside.
        """
        if moment == self._asked[0]:
            return  # the same op again
        again = min(nbytes, self._asked[1])
        self._asked = moment, nbytes
        whole = again + self.left() if again and self.left() >= nbytes else again
        self.spare = max(self.spare, min(2 * again, self.limit // 16), min(whole, self.limit // 4))

    def in_pieces(self) -> None:
        """What is free now was of no use."""
        self.spare = max(self.spare, min(self.left(), self.limit // 16))


class Ahead:
    """Which parked storages come next.

    Parameters
    ----------
    order
        Of the uses.
    bearer
        The entry that bears a name.
    """

    def __init__(self, order: Order, bearer: Callable[[int | None], Entry | None]) -> None:
        self._order, self._bearer = order, bearer
        self.window = 0
        """Bytes that may be here and not used yet."""
        self._early: dict[int, int] = {}
        """Bytes of what was brought back ahead and not named yet, by key."""
        self._looked = 0
        """Up to this moment of the iteration before nothing that is expected is missing."""

    def missing(self, most: int) -> Iterator[tuple[int, Entry]]:
        """(uses until then, entry) of what is to come back now, until somebody stops. One alone may have `most`."""
        here = self._order.here
        if here is None:
            return
        if not here < self._looked <= here + AHEAD + 1:
            self._looked = here + 1
        while self._looked <= here + AHEAD:
            name = self._order.expected(self._looked - here)
            if name is None:
                return
            entry = self._bearer(name)
            if entry is not None and entry.away:
                if sum(self._early.values()) + entry.nbytes > max(self.window, min(2 * entry.nbytes, most)):
                    return
                yield self._looked - here, entry
            self._looked += 1

    def came(self, entry: Entry) -> None:
        """It was brought back ahead."""
        self._early[entry.key] = entry.nbytes

    def named(self, entry: Entry) -> None:
        """An op names it."""
        self._early.pop(entry.key, None)

    def left(self, entry: Entry) -> None:
        """It was sent away."""
        self._early.pop(entry.key, None)
        again = self._order.distance(entry.name)
        if again is not None and self._order.here is not None:
            self._looked = min(self._looked, self._order.here + again)

    def only(self, known: Collection[int]) -> None:
        """Storages with other keys have died."""
        self._early = {key: nbytes for key, nbytes in self._early.items() if key in known}
