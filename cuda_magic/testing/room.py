"""Room on the practice GPUs: the same handler asks, and the same ways make it, on a model of the card's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..allocation.native import CARD, HOST, NO_ROOM, NOWHERE, TRY_AGAIN
from ..render.units import bytes_text
from .card import CHUNK
from .tensor import PracticeTensor

if TYPE_CHECKING:
    from .allocator import PracticeAllocator
    from .caching import Block

__all__ = ["PracticeRoom"]

_FREE, _IDLE, _USED = -1, 0, 1
"""How late a chunk leaves the card: nothing lives in it, only what the running cell cannot reach, anything."""


class PracticeRoom:
    """What `cuda_magic.memory.torch.room.TorchRoom` is for torch.

    Parameters
    ----------
    allocator
        Whose cards these are.
    """

    def __init__(self, allocator: PracticeAllocator) -> None:
        self.allocator = allocator
        self._reached: Callable[[], Iterable[Any]] = tuple
        self._plugs: list[tuple[int, Block, list[int]]] = []
        self._limits: dict[int, int | None] = {}
        self._out = 0

    # -- a guarded cell
    def listen(self, handler: Callable[[int, int, int], int] | None) -> None:
        for caching in self.allocator.caching:
            caching.ask = self._asks(handler) if handler is not None else None

    def _asks(self, handler: Callable[[int, int, int], int]) -> Callable[[int, int, int], int]:
        def ask(device: int, nbytes: int, tries: int) -> int:
            with self.allocator.inside():
                return handler(device, nbytes, tries)

        return ask

    def begin(
        self, reached: Callable[[], Iterable[Any]], idle: Callable[[], Iterable[Any]], limit: int | None = None
    ) -> None:
        self._reached, self._out = reached, 0
        if limit is not None:
            caching = self.allocator.caching[0]
            self._limits[0] = caching.limit
            caching.limit = limit if caching.limit is None else min(limit, caching.limit)
        for card in self.allocator.cards:
            self._return(card.index)

    def resume(self) -> None:
        """Nothing starts late here."""

    def end(self) -> int:
        self.listen(None)
        self._reached = tuple
        left = self.settle()
        for device, limit in self._limits.items():
            self.allocator.caching[device].limit = limit
        self._limits.clear()
        if left or self._plugs:
            self.listen(self._after)
        return left

    def _after(self, device: int, nbytes: int, tries: int) -> int:
        """Asked while no cell is guarded and something is elsewhere: the guarded cell left the card full."""
        if tries > 1 or not self.allocator.cards[device].elsewhere:
            return NO_ROOM
        self._release(device)
        self.allocator.empty_cache()
        if not self.moving_refused(device):
            self.pages(device, nbytes - self.free(device))
        return TRY_AGAIN if self.free(device) >= nbytes else NO_ROOM

    def _release(self, device: int) -> bool:
        """Drop the plugs of segments in which nothing else lives any more; whether any."""
        card, caching = self.allocator.cards[device], self.allocator.caching[device]
        plugs = {id(block): plug for plug in self._plugs for block in [plug[1]] if plug[0] == device}
        others = {id(b.segment) for b in caching.blocks() if b.live and id(b) not in plugs}
        done = [plug for plug in plugs.values() if id(plug[1].segment) not in others]
        for plug in done:
            for at in plug[2]:
                card.exchange(at, CARD) or card.exchange(at, HOST)
            caching.give(plug[1])
            self._plugs.remove(plug)
        return bool(done)

    def ready(self) -> None:
        """Nothing is shared here."""

    def limit(self, nbytes: int | None) -> None:
        for caching in self.allocator.caching:
            caching.limit = nbytes

    def left(self) -> int:
        chunks = [chunk for card in self.allocator.cards for chunk in card.chunks.values()]
        return sum(size for size, where in chunks if where == HOST)

    def close(self) -> None:
        self.listen(None)

    def out_bytes(self) -> int:
        return self._out

    def settle(self) -> int:
        """Bring back what has room now; bytes that stay."""
        return sum(self._return(card.index) for card in self.allocator.cards)

    def _return(self, device: int) -> int:
        """Bring back what has room; bytes that stay."""
        card, caching = self.allocator.cards[device], self.allocator.caching[device]
        if not card.chunks or card.lost:
            return 0
        self._release(device)
        self.allocator.empty_cache()
        for plug in list(self._plugs):
            where, block, chunks = plug
            if where == device and sum(card.chunks[at][0] for at in chunks) <= caching.room():
                for at in chunks:
                    card.exchange(at, CARD)
                caching.give(block)
                self._plugs.remove(plug)
        for at, (size, where) in list(card.chunks.items()):
            if where == HOST and size <= caching.room():
                card.exchange(at, CARD)
        return sum(size for size, where in card.chunks.values() if where == HOST)

    # -- what the handler asks
    def refused(self, device: int) -> str:
        return ""

    def free(self, device: int) -> int:
        return max(0, self.allocator.caching[device].room())

    def in_use(self, device: int) -> int:
        return self.allocator.caching[device].reserved

    def caches(self, device: int) -> str:
        self.allocator.empty_cache()
        return ""

    def holes(self, device: int, nbytes: int) -> int:
        """As on a card: a free block with whole chunks below it is taken, and they go back to the driver."""
        card, caching = self.allocator.cards[device], self.allocator.caching[device]
        free = [b for b in caching.blocks() if not b.live and b.mapped and not b.segment.expandable]
        gained = 0
        for block in sorted(free, key=lambda b: -b.size):
            inside = [at for at in self._below(device, block) if card.chunks[at][1] == CARD]
            if gained >= nbytes or not inside:
                continue
            taken = caching.take(block.size, block.pool.stream)
            inside = [at for at in self._below(device, taken) if card.chunks[at][1] == CARD]
            gained += sum(card.exchange(at, NOWHERE) for at in inside)
            self._plugs.append((device, taken, inside))
        return gained

    def _below(self, device: int, block: Block) -> list[int]:
        """Addresses of the chunks that lie wholly in a block."""
        chunks, start = self.allocator.cards[device].chunks, block.segment.address
        first = start + -(-(block.address - start) // CHUNK) * CHUNK
        found = [at for at in range(first, block.end, CHUNK) if at in chunks]
        return [at for at in found if at + chunks[at][0] <= block.end]

    def saved(self, device: int, nbytes: int) -> int:
        return 0

    def pages(self, device: int, nbytes: int) -> int:
        card = self.allocator.cards[device]
        here = {at: size for at, (size, where) in card.chunks.items() if where == CARD}
        if nbytes <= 0 or sum(here.values()) < nbytes:
            return 0
        worth = self._worth(device, here)
        moved = 0
        for at in sorted(here, key=lambda at: (worth[at], at)):
            if moved >= nbytes:
                break
            moved += card.exchange(at, HOST)
        self._out += moved
        return moved

    def _worth(self, device: int, here: dict[int, int]) -> dict[int, int]:
        used = {id(tensor.untyped_storage()) for tensor in _tensors(self._reached())}
        addresses = {s.address: id(s.handle) for s in self.allocator.storages(device)}
        worth = dict.fromkeys(here, _FREE)
        for block in self.allocator.caching[device].blocks():
            if block.live:
                value = _USED if addresses.get(block.address) in used else _IDLE
                start = block.segment.address
                first = start + (block.address - start) // CHUNK * CHUNK
                for at in range(first, block.end, CHUNK):
                    if at in worth:
                        worth[at] = max(worth[at], value)
        return worth

    def moving_refused(self, device: int) -> str:
        return self.allocator.refusal

    def host_room(self, nbytes: int) -> str:
        elsewhere = sum(size for card in self.allocator.cards for size, where in card.chunks.values() if where == HOST)
        room = self.allocator.host - elsewhere
        if nbytes > room:
            return f"the host can give {bytes_text(room)}, {bytes_text(nbytes)} was asked for"
        self._out += nbytes
        return ""


def _tensors(roots: Iterable[Any]) -> Iterator[PracticeTensor]:
    """Practice tensors among these values, and in containers of theirs."""
    stack = list(roots)
    seen: set[int] = set()
    while stack:
        one = stack.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if type(one) is PracticeTensor:
            yield one
        elif type(one) is dict:
            stack += one.values()
        elif type(one) in (list, tuple, set):
            stack += one
