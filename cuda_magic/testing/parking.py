"""The practice card's other place: contents of idle tensors wait on a host that is always large enough."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..memory.allocator import Storage
from .tensor import PracticeStorage

if TYPE_CHECKING:
    from .allocator import PracticeAllocator

__all__ = ["Parking"]

HOST = 64 << 30
"""Bytes that the practice host can take."""


class Parking:
    """What waits. A storage that is read or written while it waits comes back first."""

    def __init__(self, allocator: PracticeAllocator) -> None:
        self.allocator = allocator
        self._away: dict[int, weakref.ref[PracticeStorage]] = {}
        self._depth = 0

    def unused(self, device: int, idle: Callable[[Any], bool]) -> list[tuple[Storage, Any]]:
        """Storages of idle tensors, largest first."""
        tensors = {key: tensor for tensor, _, key, _ in self.allocator.owners() if idle(tensor)}
        found = [(s, tensors[s.key]) for s in self.allocator.storages(device) if s.key in tensors and not s.reason]
        return sorted(found, key=lambda pair: -pair[0].nbytes)

    def room(self) -> int:
        """Bytes that the host can take."""
        return HOST - self.nbytes

    @property
    def nbytes(self) -> int:
        """Waiting now."""
        return sum(storage.nbytes for storage in self._storages())

    def _storages(self) -> list[PracticeStorage]:
        found = [storage for seen in list(self._away.values()) if (storage := seen()) is not None]
        return [storage for storage in found if storage.waits is not None]

    def park(self, storages: Iterable[Storage]) -> int:
        """Take the memory of these, their contents kept; the bytes."""
        freed = 0
        for one in storages:
            storage: PracticeStorage = one.handle
            contents = self.allocator.cards[storage.device].contents
            at = storage.address
            storage.waits = [(first - at, end - at, value) for first, end, value in contents.read(at, storage.nbytes)]
            self.allocator.take_back(storage)
            self._away[storage.key] = weakref.ref(storage)
            freed += storage.nbytes
        return freed

    def bring_back(self, storage: PracticeStorage) -> None:
        """Memory and contents again.

        Raises
        ------
        OutOfMemoryError
            Where there is no room; it waits as before.
        """
        if storage.waits is None:
            return
        self.allocator.fetch(storage)
        contents = self.allocator.cards[storage.device].contents
        for first, end, value in storage.waits:
            contents.write(storage.address + first, end - first, value)
        storage.waits = None
        self._away.pop(storage.key, None)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Behind it all comes back, if there is room."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self.settle()

    def settle(self) -> int:
        """Bring back what waits, if there is room; bytes that still wait."""
        if not self._depth:
            for storage in self._storages():
                caching = self.allocator.caching[storage.device]
                ooms = caching.ooms
                try:
                    self.bring_back(storage)
                except RuntimeError:  # no room: nobody asked for it, so it counts as no error
                    caching.ooms = ooms
                    break
        return self.nbytes
