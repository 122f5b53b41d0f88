"""The host pool: where tensors' contents wait. Kept and used again, capped by what the host has, given back on demand.

`HostPool.take` gives a `Buffer`; before the first copy into it the copying stream waits for `Buffer.events`.
`HostPool.give` takes it back with the event of the last copy that used it. Neither waits for the card.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from typing import Any

from ....errors import Refused
from ....render.units import bytes_text
from ... import host
from .pinned_memory import HUGE, Hole, Slab
from .storage_copies import tight

__all__ = ["Buffer", "HostPool", "NoHostMemory", "existing", "shared"]

ROUND = 4096
"""Bytes to which a buffer is rounded up."""
FIRST, LARGEST = 64 << 20, 1 << 30
"""Bytes of the first slab, and beyond which slabs stop growing; a larger request gets a slab of its own size."""
LEFT = 1 << 30
"""Bytes that the host keeps, at least."""
SHARE = 10
"""The host keeps this part (1/SHARE) of what it had free, too."""


class NoHostMemory(Refused):
    """The host has no room for what was to be parked there. Nothing has changed."""


class Buffer:
    """A piece of the pool. `data` is a tensor of exactly the bytes asked for.

    `events` are those of copies that used this memory before: a copy into it waits for them, on its own stream.
    `home` is the stream of the device that the memory lies on, which the host has none of.
    """

    __slots__ = ("__weakref__", "data", "events", "offset", "size", "slab")
    home = None

    def __init__(self, slab: Slab, offset: int, size: int, nbytes: int, events: tuple[Any, ...]) -> None:
        self.slab, self.offset, self.size, self.events = slab, offset, size, events
        self.data = slab.data[offset : offset + nbytes]


class HostPool:
    """Buffers on the host.

    Parameters
    ----------
    torch
        The imported torch.
    pin
        Whether to pin; None: where CUDA has started.
    limit
        Most bytes to hold; None: what the host can give, less what it keeps for itself.

    Notes
    -----
    An interrupt inside `take` may lose a piece for the moment; `release` gives everything back that no buffer uses.
    """

    def __init__(self, torch: Any, pin: bool | None = None, limit: int | None = None) -> None:
        self._torch, self._pin, self._limit = torch, pin, limit
        self._lock = threading.RLock()
        self._slabs: list[Slab] = []
        self._given: deque[Buffer] = deque()
        self._ready: dict[int, deque[Buffer]] = {}
        """What was given back, by size: a training step asks for the same sizes again."""

    # -- sizes, in bytes
    @property
    def held(self) -> int:
        """Host memory that the pool holds, used or not."""
        return sum(slab.size for slab in self._slabs)

    @property
    def free(self) -> int:
        """Of it, unused now."""
        with self._lock:
            self._settle()
            return sum(hole.size for slab in self._slabs for hole in slab.holes)

    def room(self) -> int:
        """How much more can be parked: what is free here, and what the host can still give."""
        return self.free + self._growth()

    def _growth(self) -> int:
        if self._limit is not None:
            return max(0, self._limit - self.held)
        available = host.available()
        if available is None:
            return max(0, LARGEST - self.held)  # nobody tells: stay modest
        return max(0, available - max(LEFT, available // SHARE))

    # -- taking and giving
    def take(self, nbytes: int) -> Buffer:
        """A buffer of `nbytes`.

        Raises
        ------
        NoHostMemory
            If the host cannot give so much.
        """
        size = max(ROUND, -(-nbytes // ROUND) * ROUND)
        with self._lock:
            again = self._ready_for(size)
            if again is not None:
                return Buffer(again.slab, again.offset, size, nbytes, again.events)
            self._settle()
            slab, at = self._best(size) or (self._grow(size), 0)
            hole = slab.holes[at]
            rest = [Hole(hole.offset + size, hole.size - size, hole.events)] if hole.size > size else []
            slab.holes[at : at + 1] = rest
            return Buffer(slab, hole.offset, size, nbytes, hole.events)

    def give(self, buffer: Buffer, events: Iterable[Any] = ()) -> None:
        """Take `buffer` back; `events` of the copies that used it last. Safe in a finalizer: nothing is locked."""
        buffer.events = tuple(e for e in (*buffer.events, *events) if e is not None)
        self._given.append(buffer)

    def reserve(self, nbytes: int) -> None:
        """Make sure that `nbytes` are there, in as few pieces as possible, before anything is moved.

        Raises
        ------
        NoHostMemory
            If the host cannot give so much.
        """
        with self._lock:
            missing = nbytes - self.free
            if missing > 0:
                self._grow(missing)

    def release(self) -> int:
        """Give back all memory that no buffer uses; how many bytes."""
        with self._lock:
            before = self.held
            self._settle()
            slabs = [weakref.ref(slab) for slab in self._slabs]
            self._slabs.clear()  # those that no buffer refers to end here
            self._slabs += [slab for seen in slabs if (slab := seen()) is not None]
            given = before - self.held
        empty = getattr(self._torch._C, "_host_emptyCache", None)
        if given and empty is not None and self._torch.cuda.is_initialized():
            empty()  # what torch's own pinned memory kept
        return given

    def excessive(self) -> bool:
        """Whether so much is held that others on this host may miss it: over a quarter of what it can still give."""
        available = host.available() if self.held else None
        return available is not None and self.held > available // 4

    # -- inside
    def _best(self, size: int) -> tuple[Slab, int] | None:
        fits = [
            (hole.size, number, at)
            for number, slab in enumerate(self._slabs)
            for at, hole in enumerate(slab.holes)
            if hole.size >= size
        ]
        if not fits:
            return None
        _, number, at = min(fits)
        return self._slabs[number], at

    def _grow(self, size: int) -> Slab:
        growth = self._growth()
        least = -(-size // HUGE) * HUGE
        if least > growth:
            free = bytes_text(self.free + growth)
            raise NoHostMemory(f"the host can give {free}, {bytes_text(size)} more is needed")
        wanted = max(least, min(LARGEST, max(FIRST, self.held)))
        pin = self._torch.cuda.is_initialized() if self._pin is None else self._pin
        try:
            slab = Slab(self._torch, min(wanted, growth // HUGE * HUGE), pin)
        except (OSError, MemoryError, RuntimeError, ValueError, OverflowError) as error:
            reason = str(error).split("\n", 1)[0]
            raise NoHostMemory(f"the host gave no {bytes_text(least)} ({type(error).__name__}: {reason})") from None
        slab.makeshift = pin and slab.kind == "pageable" and tight(self._torch)
        self._slabs.append(slab)
        return slab

    def _ready_for(self, size: int) -> Buffer | None:
        """What was given back and has this size, the longest ago first: its copies are done most likely."""
        while self._given:
            buffer = self._given.popleft()
            self._ready.setdefault(buffer.size, deque()).append(buffer)
        pile = self._ready.get(size)
        while pile:
            buffer = pile.popleft()
            if not buffer.slab.makeshift:
                return buffer
            self._given.append(buffer)
        return None

    def _settle(self) -> None:
        """What was given back becomes holes again; neighbours become one."""
        while self._ready:
            self._given.extend(self._ready.popitem()[1])
        while self._given:
            buffer = self._given.popleft()
            _insert(buffer.slab.holes, Hole(buffer.offset, buffer.size, buffer.events))
        # pinned memory takes the place of what was taken in need
        self._slabs = [slab for slab in self._slabs if not (slab.makeshift and slab.unused)]


def _insert(holes: list[Hole], new: Hole) -> None:
    at = bisect_left(holes, new.offset, key=lambda hole: hole.offset)
    first, last = at, at
    if at > 0 and holes[at - 1].offset + holes[at - 1].size == new.offset:
        first -= 1
    if at < len(holes) and new.offset + new.size == holes[at].offset:
        last += 1
    parts = [*holes[first:at], new, *holes[at:last]]
    events = tuple({id(e): e for part in parts for e in part.events if not _done(e)}.values())
    holes[first:last] = [Hole(parts[0].offset, sum(part.size for part in parts), events)]


def _done(event: Any) -> bool:
    try:
        return bool(event.query())
    except RuntimeError:  # a lost context, or a capture: then it is waited for
        return False


_shared: list[HostPool] = []


def shared(torch: Any) -> HostPool:
    """The pool of this process, in which everything waits."""
    if not _shared:
        _shared.append(HostPool(torch))
    return _shared[0]


def existing() -> list[HostPool]:
    """The shared pool, if anything was ever parked."""
    return list(_shared)
