"""In which order storages are used, and by that when each will be used again.

A training loop or a model that runs again uses its parameters in the same order each time. What followed the last time
is what will follow now; the place is found by the last two storages, since one alone comes several times an iteration.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

__all__ = ["Order"]

LONGEST = 200_000
"""Uses that are kept; beyond it the older half is forgotten."""


class Order:
    """The uses so far, by storage key."""

    def __init__(self) -> None:
        self._uses: list[int] = []
        self._at: dict[int, list[int]] = {}
        self._pairs: dict[tuple[int, int], int] = {}
        self._last: int | None = None
        self._here: int | None = None
        """Where the same use stands in the iteration before."""

    @property
    def now(self) -> int:
        return len(self._uses)

    def used(self, key: int) -> None:
        """Storage `key` is being used."""
        last = self._last
        if key == last:
            return
        at = self._at.setdefault(key, [])
        pair = (last, key) if last is not None else (key, key)
        self._here = self._pairs.get(pair, at[-1] if at else None)
        self._pairs[pair] = len(self._uses)
        at.append(len(self._uses))
        self._uses.append(key)
        self._last = key
        if len(self._uses) > LONGEST:
            self._shorten()

    def distance(self, key: int) -> int | None:
        """Uses until `key` is expected again; None where nothing is known."""
        at = self._at.get(key)
        if at is None or self._here is None:
            return None
        later = bisect_right(at, self._here)
        return at[later] - self._here if later < len(at) else None

    def ahead(self, count: int) -> Iterator[int]:
        """The next `count` storages that are expected."""
        if self._here is not None:
            yield from self._uses[self._here + 1 : self._here + 1 + count]

    def forget(self, key: int) -> None:
        """The storage has died."""
        self._at.pop(key, None)

    def _shorten(self) -> None:
        cut = len(self._uses) // 2
        self._uses = self._uses[cut:]
        self._at = {k: kept for k, at in self._at.items() if (kept := [p - cut for p in at if p >= cut])}
        self._pairs = {pair: at - cut for pair, at in self._pairs.items() if at >= cut}
        self._here = None if self._here is None or self._here < cut else self._here - cut
