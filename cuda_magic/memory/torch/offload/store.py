"""Storages whose contents wait elsewhere: which, where, and back again.

A storage is known by a weak reference to it, never by an address alone: an address is given out again as soon as its
storage dies, and would then stand for other contents. Parking empties the storage (``resize_(0)``): every tensor, view
and parameter on it stays what it is, and has no memory until the storage is brought back.

At each step the contents are valid in one place. SIGINT is held back while a step is half done.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from .storage_copies import CudaLane, Lane, quiet

__all__ = ["Entry", "Place", "Store", "held_interrupts", "store"]


class Place(Protocol):
    """Where contents wait: the host pool.  `take` raises where it has no room."""

    def take(self, nbytes: int) -> Any:
        """A buffer: ``data`` is a tensor of so many bytes, ``events`` are to be waited for before the first copy."""
        ...

    def give(self, buffer: Any, events: Iterable[Any] = ()) -> None: ...


@contextmanager
def held_interrupts() -> Iterator[None]:
    """SIGINT is noted and delivered afterwards (on the main thread; others never get one)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[Any, ...]] = []
    before = signal.signal(signal.SIGINT, lambda *arguments: came.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came and callable(before):
            before(*came[0])


class Entry:
    """One storage that is parked. `left` is the event of the copy out."""

    __slots__ = ("_free", "away", "buffer", "device", "key", "left", "nbytes", "weak")

    def __init__(self, torch: Any, storage: Any) -> None:
        self.key: int = storage._cdata
        self.weak = storage._weak_ref()  # pins the address: nobody else gets it while this entry lives
        self._free = torch.UntypedStorage._free_weak_ref
        self.device: tuple[str, int | None] = (storage.device.type, storage.device.index)
        self.nbytes: int = storage.nbytes()
        self.away = False
        self.buffer: Any = None
        self.left: Any = None

    def __del__(self) -> None:
        free = getattr(self, "_free", None)
        if free is not None:
            free(self.weak)

    def __repr__(self) -> str:
        return f"Entry({self.nbytes} bytes, {'away' if self.away else 'here'})"


class Store:
    """Everything that this process has parked.

    Parameters
    ----------
    torch
        The imported torch.
    place
        Gives the place where contents wait; None: the shared host pool.
    lane
        Makes the lane of a device; None: CUDA streams.
    """

    def __init__(
        self, torch: Any, place: Callable[[], Place] | None = None, lane: Callable[[Any], Lane] | None = None
    ) -> None:
        self.torch = torch
        self._place, self._lane = place or self._shared_pool, lane or self._cuda
        self._lanes: dict[tuple[str, int | None], Lane] = {}
        self.lock = threading.RLock()
        self.away: dict[int, Entry] = {}
        """Parked now, by storage key."""
        self.out_bytes = self.in_bytes = 0
        """Copied so far."""
        self.errors = 0
        """Out-of-memory errors that parking met so far and went on from."""

    def _shared_pool(self) -> Place:
        from .host_pool import shared

        return shared(self.torch)

    def _cuda(self, device: Any) -> Lane:
        return CudaLane(self.torch, device[1])

    def lane(self, device: tuple[str, int | None]) -> Lane:
        """The lane of a device."""
        lane = self._lanes.get(device)
        if lane is None:
            lane = self._lanes[device] = self._lane(device)
        return lane

    def storage(self, entry: Entry) -> Any:
        """The storage itself; None where it has died."""
        return self.torch.UntypedStorage._new_with_weak_ptr(entry.weak)

    @property
    def nbytes(self) -> int:
        """Parked now."""
        return sum(entry.nbytes for entry in list(self.away.values()))

    # -- out
    def park(self, storages: Iterable[Any]) -> int:
        """Empty these storages, their contents kept in the place; gives the bytes that are free now.

        What is parked already, or empty, is passed over. The order is kept, so the first ones leave first.

        Raises
        ------
        NoHostMemory, RuntimeError
            From the place or the copy. What left before stays parked, everything else is untouched.
        """
        freed = 0
        with held_interrupts(), self.lock, quiet(self.torch):
            for storage in storages:
                if storage._cdata not in self.away and storage.nbytes():
                    freed += self._leave(Entry(self.torch, storage), storage)
        return freed

    def _leave(self, entry: Entry, storage: Any) -> int:
        entry.buffer = self._place().take(entry.nbytes)
        lane = self.lane(entry.device)
        try:
            entry.left = lane.out(storage, entry.buffer, entry.nbytes)
        except BaseException:
            lane.settle()  # part of it may be under way
            self._drop_copy(entry, None)
            raise
        self.out_bytes += entry.nbytes
        lane.vacate(entry.left)
        entry.away = True
        self.away[entry.key] = entry
        storage.resize_(0)
        return entry.nbytes

    # -- back
    def bring_back(self, entries: Iterable[Entry] | None = None) -> int:
        """Bring parked storages back (all of them by default); gives the bytes copied. May be called again.

        The copies are waited for, since nobody knows on which stream they will be used.

        Raises
        ------
        torch.OutOfMemoryError
            Where there is no room. What came back is back, the rest is parked as before.
        """
        copied = 0
        with held_interrupts(), self.lock, quiet(self.torch):
            for entry in list(self.away.values()) if entries is None else entries:
                if entry.away:
                    copied += self._come(entry)
            for lane in self._lanes.values():
                lane.settle()
        return copied

    def _come(self, entry: Entry) -> int:
        storage = self.storage(entry)
        if storage is None or storage.nbytes():  # died, or given memory by its owner
            self._forget(entry)
            return 0
        lane = self.lane(entry.device)
        came = lane.back(storage, entry.buffer, entry.nbytes, entry.left)
        entry.away = False
        self.in_bytes += entry.nbytes
        del self.away[entry.key]
        self._drop_copy(entry, came)
        if came is not None:
            lane.wait(came)
        return entry.nbytes

    # -- copies that are of no more use
    def _drop_copy(self, entry: Entry, came: Any) -> None:
        buffer, entry.buffer = entry.buffer, None
        if buffer is not None:
            self._place().give(buffer, (entry.left, came))
            entry.left = None

    def _forget(self, entry: Entry) -> None:
        """Its copy is given back."""
        self.away.pop(entry.key, None)
        entry.away = False
        self._drop_copy(entry, None)

    def sweep(self) -> int:
        """Forget storages that have died; how many."""
        expired = self.torch.UntypedStorage._expired
        with self.lock:
            dead = [e for e in self.away.values() if expired(e.weak)]
            for entry in dead:
                self._forget(entry)
        return len(dead)


_stores: list[Store] = []


def store(torch: Any) -> Store:
    """The one store of this process: whatever parks, parks here, and the mode looks here."""
    if not _stores:
        _stores.append(Store(torch))
    return _stores[0]
