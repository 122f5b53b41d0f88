"""The practice GPUs behind the Allocator protocol: a rescue works on them as it works on torch."""

from __future__ import annotations

import random
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from ..memory.allocator import Saved, Segment, Stats, Storage, Survey
from ..memory.compaction.rules import Rules
from ..memory.torch import allocator as _torchs
from .caching import Block, Caching
from .card import GRANULE, Card
from .errors import error
from .parking import Parking
from .tensor import PracticeStorage, PracticeTensor

if TYPE_CHECKING:
    from .room import PracticeRoom

__all__ = ["PracticeAllocator"]


class PracticeAllocator:
    """Caching allocators of this process, one a card, and the tensors that live on them."""

    name = "practice allocator"
    label = "PRACTICE"

    def __init__(self, cards: Sequence[Card]) -> None:
        self.cards = tuple(cards)
        self.caching = tuple(Caching(card) for card in cards)
        self.generator = random.Random(0)
        self.refusal = ""
        """Set by a test: why nothing may be moved."""
        self.host = 64 << 30
        """Bytes that the host can keep."""
        self.stream = 0
        """The stream that new tensors are made on."""
        self._bypassed = False
        self.parking = Parking(self)
        self._room: PracticeRoom | None = None
        self._storages: dict[int, weakref.ref[PracticeStorage]] = {}
        self._tensors: dict[int, weakref.ref[PracticeTensor]] = {}
        self._serial = 0
        self._busy = False
        self._dropped: deque[tuple[int, int, int, Block | None]] = deque()

    # -- what users' tensors ask for
    def tensor(self, nbytes: int, device: int) -> PracticeTensor:
        """A new tensor.

        Raises
        ------
        OutOfMemoryError, AcceleratorError
            As torch does.
        """
        storage = self._storage(nbytes, device)
        new = PracticeTensor(storage)
        self._tensors[storage.key] = weakref.ref(new)
        return new

    def _storage(self, nbytes: int, device: int) -> PracticeStorage:
        if nbytes < 0:
            raise ValueError(f"a tensor of {nbytes} bytes")
        self._serial += 1
        new = PracticeStorage(self, device, nbytes, self._serial)
        self._storages[new.key] = weakref.ref(new)
        return new

    def fetch(self, storage: PracticeStorage, stream: int | None = None) -> None:
        """Give `storage` memory of its own size, from the pools of `stream` (else of the current one)."""
        card = self.cards[storage.device]
        card.start()
        if not storage.nbytes:
            return
        self._busy = True  # the garbage collector may run inside: what it drops then waits
        try:
            if self._bypassed:
                address = card.allocate(-(-storage.nbytes // GRANULE) * GRANULE)
                if address is None:
                    raise error("runtime")
                storage.block, storage.address = None, address
            else:
                storage.block = self.caching[storage.device].take(
                    storage.nbytes, self.stream if stream is None else stream
                )
                storage.address = storage.block.address
        finally:
            self._busy = False
            self._settle()

    def drop(self, storage: PracticeStorage) -> None:
        """Take back the memory of `storage`."""
        self._storages.pop(storage.key, None)
        self._tensors.pop(storage.key, None)
        self.take_back(storage)

    def take_back(self, storage: PracticeStorage) -> None:
        """Take back its memory; the storage stays."""
        if storage.address:
            self._give_back(storage.device, storage.address, storage.nbytes, storage.block)
            storage.block, storage.address = None, 0

    def _give_back(self, device: int, address: int, nbytes: int, block: Block | None) -> None:
        self._dropped.append((device, address, nbytes, block))
        if not self._busy:
            self._settle()

    def _settle(self) -> None:
        while self._dropped:
            device, address, nbytes, block = self._dropped.popleft()
            self._busy = True
            try:
                if block is None:
                    self.cards[device].release(address, -(-nbytes // GRANULE) * GRANULE)
                else:
                    self.caching[device].give(block)
            finally:
                self._busy = False

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Somebody makes room in the middle of a request: what is dropped meanwhile goes back at once."""
        busy, self._busy = self._busy, False
        self._settle()
        try:
            yield
        finally:
            self._settle()
            self._busy = busy

    def room(self) -> PracticeRoom:
        if self._room is None:
            from .room import PracticeRoom

            self._room = PracticeRoom(self)
        return self._room

    # -- readings
    def started(self) -> bool:
        return any(card.started for card in self.cards)

    def devices(self) -> tuple[int, ...]:
        return tuple(card.index for card in self.cards if card.started)

    def stats(self, device: int) -> Stats:
        return self.caching[device].stats()

    def reset_peak(self, device: int) -> None:
        """Let the peaks of `stats` start from now."""
        one = self.caching[device]
        one.peak_allocated, one.peak_reserved = one.allocated, one.reserved

    def ooms(self, device: int) -> int:
        """Out-of-memory errors raised so far, those that the user's code handled included."""
        return self.caching[device].ooms

    def segments(self, device: int) -> tuple[Segment, ...]:
        return self.caching[device].segments()

    def driver_memory(self, device: int) -> tuple[int, int] | None:
        card = self.cards[device]
        if card.lost:
            raise error("assert")
        return (card.free, card.capacity) if card.started else None

    def memory_limit(self, device: int) -> int | None:
        return self.caching[device].limit

    def healthy(self, device: int) -> bool:
        return not self.cards[device].lost

    # -- giving back
    def empty_cache(self) -> None:
        for caching in self.caching:
            self._busy = True
            try:
                caching.empty_cache()
            finally:
                self._busy = False
                self._settle()

    def clear_workspaces(self) -> list[str]:
        return []

    def release_host(self, *, excess: bool = False) -> int:
        return 0

    # -- live storages and moving
    def storages(self, device: int, *, doing: str = "move") -> list[Storage]:
        found = []
        for reference in list(self._storages.values()):
            storage = reference()
            if storage is not None and storage.device == device and storage.address:
                reason = "" if storage.block is not None else "made with the caching allocator bypassed"
                found.append(Storage(storage.key, device, storage.address, storage.nbytes, storage, reason))
        return found

    def owners(self, among: Iterable[Any] | None = None) -> Iterator[tuple[Any, int, int, int]]:
        known = [reference() for reference in list(self._tensors.values())] if among is None else among
        for tensor in known:
            if type(tensor) is PracticeTensor:
                storage = tensor.untyped_storage()
                yield tensor, storage.device, storage.key, storage.nbytes

    def kind_of(self, value: Any) -> str:
        return "tensor" if type(value) is PracticeTensor else ""

    def saved(self, groups: Sequence[Sequence[Any]], modules: Iterable[tuple[str, Any]]) -> list[Saved]:
        return []

    def moving_refused(self, device: int, *, doing: str = "move") -> str:
        if not self.cards[device].started:
            return "CUDA is not started"
        return self.refusal

    def rules(self) -> Rules:
        return self.caching[0].rules

    def survey(self, device: int) -> Survey:
        """What a compaction starts from. A model's kernels need no memory: all that is free may be used."""
        refused = self.moving_refused(device)
        if refused:
            return Survey(refused, self.rules())
        self.empty_cache()
        card, limit = self.cards[device], self.memory_limit(device)
        free = card.free if limit is None else min(card.free, limit - self.stats(device).reserved)
        storages = tuple(self.storages(device))
        return Survey("", self.rules(), self.segments(device), storages, max(0, free), self.stream)

    def move(self, storage: Storage, stream: int = 0) -> int:
        """As torch's ``resize_``: a new block first, then the copy, then the old block goes back."""
        mine: PracticeStorage = storage.handle
        address, block = mine.address, mine.block
        self.fetch(mine, stream)
        self.cards[mine.device].contents.copy(address, mine.address, mine.nbytes)
        self._give_back(mine.device, address, mine.nbytes, block)
        return mine.address

    def host_room(self) -> int:
        return self.host

    def copy_out(self, storage: Storage) -> Any:
        mine: PracticeStorage = storage.handle
        if mine.nbytes > self.host:
            raise MemoryError("the host has no room")
        self.host -= mine.nbytes
        found = self.cards[mine.device].contents.read(mine.address, mine.nbytes)
        return [(first - mine.address, end - mine.address, value) for first, end, value in found]

    def let_go(self, storage: Storage) -> None:
        mine: PracticeStorage = storage.handle
        address, block = mine.address, mine.block
        mine.address, mine.block = 0, None
        self.cards[mine.device].contents.write(address, mine.nbytes, 0)  # whoever comes next may write here
        self._give_back(mine.device, address, mine.nbytes, block)

    def copy_in(self, storage: Storage, copy: Any, stream: int = 0) -> int:
        mine: PracticeStorage = storage.handle
        if not mine.address:
            self.fetch(mine, stream)
        for first, end, value in copy:
            self.cards[mine.device].contents.write(mine.address + first, end - first, value)
        self.host += mine.nbytes
        return mine.address

    def filler(self, device: int, nbytes: int, stream: int = 0) -> Any:
        before, self.stream = self.stream, stream
        try:
            return self._storage(nbytes, device)
        finally:
            self.stream = before

    def filler_address(self, filler: Any) -> int:
        return int(filler.address)

    # -- parking
    def held_below(self, value: Any) -> int:
        return 0

    def parts_below(self, value: Any) -> tuple[Any, ...]:
        return ()

    def unused(self, device: int, idle: Callable[[Any], bool]) -> tuple[list[tuple[Storage, Any]], dict[str, int]]:
        return self.parking.unused(device, idle), {}

    def park_room(self, device: int) -> int:
        return self.parking.room()

    def park(self, storages: Iterable[Storage]) -> int:
        return self.parking.park(storages)

    def watched(self) -> AbstractContextManager[Any]:
        return self.parking.watched()

    def parked(self) -> int:
        return self.parking.nbytes + (self._room.left() if self._room is not None else 0)

    def absorbed(self) -> int:
        return 0

    def settle(self, ended: bool = False) -> int:
        return self.parking.settle() + (self._room.settle() if self._room is not None else 0)

    # -- what autograd saves
    def recorded(self, error: BaseException) -> str:
        return "the practice GPU has no autograd"

    def activations(self, device: int, request: int, place: str | None = None) -> Any:
        return None

    # -- settings
    def expandable(self) -> bool | None:
        return any(caching.expandable for caching in self.caching) if self.started() else None

    @contextmanager
    def with_expandable(self) -> Iterator[None]:
        before = [caching.expandable for caching in self.caching]
        for caching in self.caching:
            caching.expandable = True
        try:
            yield
        finally:
            for caching, old in zip(self.caching, before, strict=True):
                caching.expandable = old

    @contextmanager
    def uncached(self) -> Iterator[None]:
        before, self._bypassed = self._bypassed, True
        try:
            yield
        finally:
            self._bypassed = before

    def ops(self) -> None:
        return None  # it has tensors and no ops

    # -- random states: torch's own too, of the CPU here, which draws beside the practice GPU
    def random_state(self) -> Any:
        torch = _torchs()
        return self.generator.getstate(), None if torch is None else torch.random_state()

    def set_random_state(self, state: Any) -> None:
        own, of_torch = state
        self.generator.setstate(own)
        if of_torch is not None and (torch := _torchs()) is not None:
            torch.set_random_state(of_torch)
