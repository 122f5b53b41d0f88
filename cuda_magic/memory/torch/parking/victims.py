"""Who leaves next: the storage that is used last of all again, or the longest unused where nothing is known.

Judging all of them takes about a microsecond each, so a judgement is kept for a while. Those that were copied out in
advance leave first: nobody waits for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence

from .order import Order
from .parked import Entry, Store

__all__ = ["Victims"]

FRESH, PER = 8, 16
"""Uses after which a judgement is made anew: so many at least, and one for each so many storages."""
UNKNOWN = 4
"""One of which nothing is known is taken to be used again after a quarter of the time that it was not."""
SETTLED = 32
"""What is used no more before it dies is left alone for so many uses: it may be dead by then."""


class Victims:
    """The followed storages of one device, in the order in which they leave."""

    def __init__(self, store: Store, order: Order, device: tuple[str, int | None]) -> None:
        self._store, self._order, self._device = store, order, device
        self._ready: deque[tuple[int, Entry]] = deque()
        """(moment of its last use, entry): may leave for nothing, or soon."""
        self._next: list[tuple[int, int, Entry]] = []
        """(distance, key, entry), the farthest last."""
        self._judged = self._until = 0

    @property
    def ready(self) -> int:
        """Bytes that may leave for nothing, or soon."""
        self._ready = deque(r for r in self._ready if self._still(*r))
        return sum(entry.nbytes for _, entry in self._ready)

    def _still(self, used: int, entry: Entry) -> bool:
        return entry.clean and not entry.away and entry.used == used

    def _may(self, entry: Entry, held: Collection[int]) -> bool:
        return not (entry.away or entry.busy or entry.pinned or entry.key in held or entry.device != self._device)

    def prepared(self, entry: Entry) -> None:
        """It was copied out in advance."""
        self._ready.append((entry.used, entry))

    def again(self, entries: Sequence[Entry]) -> None:
        """These are still the farthest, in this order."""
        self._next += [(0, entry.key, entry) for entry in reversed(entries)]

    def first(self, beyond: int, held: Collection[int]) -> Entry | None:
        """Who leaves now, not among the keys `held`. With `beyond`: only one that is used later than that."""
        while self._ready:
            used, entry = self._ready.popleft()
            if self._still(used, entry) and self._may(entry, held) and self._far(entry, beyond):
                return entry
        return next(self.farthest(held, beyond), None)

    def _far(self, entry: Entry, beyond: int) -> bool:
        if not beyond:
            return True
        distance = self._distance(entry)
        return (self._order.now - entry.used) // UNKNOWN >= beyond if distance is None else distance >= beyond

    def _distance(self, entry: Entry) -> int | None:
        if self._order.now - entry.used < SETTLED and self._order.ends(entry.name):
            return 0
        return self._order.distance(entry.name)

    def farthest(self, held: Collection[int], beyond: int = 0) -> Iterator[Entry]:
        """One after the other, each once in a judgement."""
        judged = False
        while True:
            if not judged and (not self._next or self._order.now >= self._until):
                self._judge(held)
                judged = True
            if not self._next:
                return
            entry = self._next[-1][2]
            may = self._may(entry, held) and entry.used <= self._judged
            if may and not self._far(entry, beyond):
                return  # the others are nearer
            self._next.pop()
            if may:
                yield entry

    def _judge(self, held: Collection[int]) -> None:
        self._store.sweep()
        now = self._judged = self._order.now
        self._until = now + max(FRESH, len(self._store.followed) // PER)
        ready = {entry.key for used, entry in self._ready if self._still(used, entry)}
        found = []
        for entry in self._store.followed.values():
            if entry.key in ready or not self._may(entry, held):
                continue
            distance = self._distance(entry)
            found.append((now - entry.used if distance is None else distance, entry.key, entry))
        found.sort(key=lambda f: f[:2])
        self._next = found
