"""In which order storages are used, and by that when each will be used again.

A training loop or a model that runs again uses its storages in the same order each time. What followed the last time
is what will follow now. A storage has a name, a number. One that an op makes anew in each iteration, a gradient, takes
the name of the one that was made at this place the last time and has died: so its uses are known as well.

The place is found by what is expected next; where something else comes, by the last two names, since one alone comes
several times an iteration.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

__all__ = ["Order"]

LONGEST = 200_000
"""Uses that are kept; beyond it the older half is forgotten."""
NEAR = 8
"""Among so many expected uses the next one is looked for: between two iterations some may come or go."""


class Order:
    """The uses so far, by name."""

    def __init__(self) -> None:
        self.here: int | None = None
        """Where the last use stands in the iteration before."""
        self._uses: list[int] = []
        self._at: dict[int, list[int]] = {}
        self._pairs: dict[tuple[int, int], int] = {}
        self._made: dict[int, int] = {}
        """Bytes of what ops made, by name."""
        self._births: set[int] = set()
        """Moments at which something was made."""
        self._young: set[int] = set()
        """Names of what ops made at a place that was not there before: they do not tell where we are."""
        self._last: int | None = None
        self._names = 0

    @property
    def now(self) -> int:
        return len(self._uses)

    def new(self) -> int:
        """The name of a storage that was not made by an op that we saw."""
        self._names += 1
        return self._names

    def made(self, nbytes: int, alive: Callable[[int], bool]) -> int:
        """The name of a storage that an op has just made; it counts as a use. `alive`: whether a name is taken."""
        at = self._near(lambda name: self._made.get(name) == nbytes and not alive(name))
        if at is None:
            name = self.new()
            self._made[name] = nbytes
            self._young.add(name)
        else:
            name = self._uses[at]
            self._young.discard(name)
        self._births.add(self.now)
        self._add(name, at)
        return name

    def used(self, name: int) -> None:
        """A storage is being used."""
        if self._uses and self._uses[-1] == name:
            return
        at = self._near(lambda other: other == name)
        if at is not None:
            self._young.discard(name)
        elif name not in self._young and self._last not in (None, name):
            at = self._pairs.get((self._last, name))
            if at is None:
                self.here = None
        self._add(name, at)

    def _near(self, fits: Callable[[int], bool]) -> int | None:
        if self.here is None:
            return None
        for at in range(self.here + 1, min(self.here + 1 + NEAR, len(self._uses))):
            if fits(self._uses[at]):
                return at
        return None

    def _add(self, name: int, at: int | None) -> None:
        if at is not None:
            self.here = at
        now = len(self._uses)
        if name not in self._young:
            if self._last is not None and self._last != name:
                self._pairs[self._last, name] = now
            self._last = name
        self._at.setdefault(name, []).append(now)
        self._uses.append(name)
        if now >= LONGEST:
            self._shorten()

    def distance(self, name: int) -> int | None:
        """Uses until it is expected again; None where nothing is known."""
        at = self._at.get(name)
        if at is None or self.here is None:
            return None
        later = bisect_right(at, self.here)
        return at[later] - self.here if later < len(at) else None

    def ends(self, name: int) -> bool:
        """Whether it is made anew before it is used again, so that it has died by then."""
        distance = self.distance(name)
        return distance is not None and self.here is not None and self.here + distance in self._births

    def expected(self, distance: int) -> int | None:
        """The name that is expected after so many uses; None where nothing is known."""
        if self.here is None or self.here + distance >= len(self._uses):
            return None
        return self._uses[self.here + distance]

    def _shorten(self) -> None:
        cut = len(self._uses) // 2
        self._uses = self._uses[cut:]
        self._at = {k: kept for k, at in self._at.items() if (kept := [p - cut for p in at if p >= cut])}
        self._pairs = {pair: at - cut for pair, at in self._pairs.items() if at >= cut}
        self._made = {name: size for name, size in self._made.items() if name in self._at}
        self._births = {at - cut for at in self._births if at >= cut}
        self._young &= self._at.keys()
        self.here = None if self.here is None or self.here < cut else self.here - cut
