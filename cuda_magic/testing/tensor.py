"""What a practice GPU gives to users: tensors of bytes on a storage that goes back when nothing refers to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..render.units import bytes_text

if TYPE_CHECKING:
    from .allocator import PracticeAllocator
    from .caching import Block

__all__ = ["PracticeStorage", "PracticeTensor"]


class PracticeStorage:
    """Memory on a practice card. Its block may change by a move; the object stays."""

    def __init__(self, allocator: PracticeAllocator, device: int, nbytes: int, key: int) -> None:
        self.device, self.nbytes, self.key = device, nbytes, key
        self._allocator = allocator
        self.block: Block | None = None
        """None where the caching allocator was bypassed, and for 0 bytes."""
        self.address = 0
        self.waits: list[tuple[int, int, int]] | None = None
        """(first, end, value) of its contents while they wait on the host."""
        allocator.fetch(self)

    def __del__(self) -> None:
        self._allocator.drop(self)

    def here(self) -> int:
        """The address, after it was brought back if it waited elsewhere."""
        if self.waits is not None:
            self._allocator.parking.bring_back(self)
        return self.address

    def write(self, value: int) -> None:
        self._allocator.cards[self.device].contents.write(self.here(), self.nbytes, value)

    def total(self) -> int:
        return self._allocator.cards[self.device].contents.total(self.here(), self.nbytes)


class PracticeTensor:
    """A one-dimensional tensor of bytes on a practice GPU; several may share a storage."""

    def __init__(self, storage: PracticeStorage) -> None:
        self._storage = storage
        self._version = 0

    def untyped_storage(self) -> PracticeStorage:
        return self._storage

    @property
    def nbytes(self) -> int:
        return self._storage.nbytes

    @property
    def device(self) -> str:
        return f"cuda:{self._storage.device}"

    def numel(self) -> int:
        return self._storage.nbytes

    def data_ptr(self) -> int:
        return self._storage.here()

    def fill_(self, value: int) -> PracticeTensor:
        """Write `value` (0 to 255) into every byte."""
        if not 0 <= value <= 255:
            raise ValueError(f"{value} does not fit into a byte (0 to 255)")
        self._storage.write(value)
        self._version += 1
        return self

    def sum(self) -> int:
        """The sum of all bytes."""
        return self._storage.total()

    def __repr__(self) -> str:
        return f"PracticeTensor({bytes_text(self.nbytes)}, PRACTICE {self.device})"
