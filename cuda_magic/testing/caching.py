"""A model of torch's caching allocator on one practice card: same requests, same blocks.

Rules of c10/cuda/CUDACachingAllocator.cpp (torch 2.11): sizes rounded to 512 bytes; a pool for requests up to 1 MiB
and one for larger ones; segments of 2 MiB, 20 MiB or the size rounded to 2 MiB; best fit by (size, address); a rest is
split off when it is worth it; free neighbours merge; before an error the cache goes back to the driver and the request
is tried once more. Pools by stream; settings as `Rules`. Replayed against the real allocator by
tests/gpu/test_practice_gpu.py.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from ..allocation.native import HOST, NO_ROOM, TRY_AGAIN, USE_HOST
from ..memory.allocator import Block as BlockRecord
from ..memory.allocator import Segment as SegmentRecord
from ..memory.allocator import Stats
from ..memory.compaction.rules import SMALL, Rules
from .card import Card
from .errors import HINT, OutOfMemoryError, torch_size

__all__ = ["Block", "Caching"]


@dataclass(eq=False)
class Segment:
    """Addresses taken from the driver at once; an expandable one has memory behind some of its pages only."""

    address: int
    size: int
    expandable: bool = False


@dataclass(eq=False)
class Block:
    """A stretch of a segment: live, free, or (expandable segments only) without memory behind it."""

    address: int
    size: int
    segment: Segment
    pool: Pool
    requested: int | None = None
    live: bool = False
    mapped: bool = True
    before: Block | None = None
    after: Block | None = None

    @property
    def end(self) -> int:
        return self.address + self.size

    @property
    def split(self) -> bool:
        return self.before is not None or self.after is not None


@dataclass(eq=False)
class Pool:
    """The free blocks of one kind, in order of (size, address), and all heads of segments."""

    small: bool
    stream: int = 0
    order: list[tuple[int, int]] = field(default_factory=list)
    free: dict[int, Block] = field(default_factory=dict)
    unmapped: dict[int, Block] = field(default_factory=dict)

    def add(self, block: Block) -> None:
        if block.mapped:
            bisect.insort(self.order, (block.size, block.address))
            self.free[block.address] = block
        else:
            self.unmapped[block.address] = block

    def discard(self, block: Block) -> None:
        if block.mapped:
            del self.order[bisect.bisect_left(self.order, (block.size, block.address))]
            del self.free[block.address]
        else:
            del self.unmapped[block.address]


class Caching:
    """The caching allocator of this process on one card."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.limit: int | None = None
        """Bytes that may be reserved (the per-process memory fraction)."""
        self.rules = Rules()
        self.ask: Callable[[int, int, int], int] | None = None
        """Who is asked when the driver has no room, as the native shim asks (allocation/handler.py)."""
        self.pools: dict[tuple[int, bool], Pool] = {}
        self.heads: list[Block] = []
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0
        self.ooms = self.retries = self.device_mallocs = 0

    @property
    def expandable(self) -> bool:
        """Whether new segments are expandable."""
        return self.rules.expandable

    @expandable.setter
    def expandable(self, on: bool) -> None:
        self.rules = replace(self.rules, expandable=on)

    # -- taking and giving
    def take(self, requested: int, stream: int = 0) -> Block:
        """A live block for `requested` bytes from the pools of `stream`.

        Raises
        ------
        OutOfMemoryError
            In torch's words, after the cache was given back and the request tried again.
        """
        size = self.rules.block_size(requested)
        small = size <= SMALL
        pool = self.pools.setdefault((stream, small), Pool(small, stream))
        block = self._fit(pool, size) or self._grow(pool, size)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._grow(pool, size)
        if block is None:
            self.ooms += 1
            raise OutOfMemoryError(self._message(self.rules.segment_size(size)))
        if self.rules.rest(block.size, size, small):
            self._cut(block, size)
        block.live, block.requested = True, requested
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def give(self, block: Block) -> None:
        """A live block becomes free and merges with free neighbours."""
        block.live, block.requested = False, None
        self.allocated -= block.size
        self._merge(block)
        block.pool.add(block)

    def empty_cache(self) -> None:
        """Free memory that no live block shares a segment (or a page) with goes back to the driver."""
        for pool in self.pools.values():
            for block in list(pool.free.values()):
                if block.segment.expandable:
                    self._unmap(block)
                elif not block.split:
                    pool.discard(block)
                    self.heads.remove(block)
                    self.card.release(block.address, block.size)
                    self._reserve(-block.size)
            for block in list(pool.unmapped.values()):
                if not block.split:
                    pool.discard(block)
                    self.heads.remove(block)
                    self.card.unreserve(block.address, block.size)

    # -- finding and growing
    def _fit(self, pool: Pool, size: int) -> Block | None:
        found: Block | None = None
        for at in range(bisect.bisect_left(pool.order, (size, 0)), len(pool.order)):
            block = pool.free[pool.order[at][1]]
            if block.segment.expandable and not self.expandable:
                continue  # they are passed over once expandable segments are off again
            if found is not None and _reach(block) >= _reach(found):
                break
            found = block
            if not found.segment.expandable:
                break  # an expandable one counts as large as it can become, and a later block may be nearer
        if found is None or not self.rules.takes(found.size, size):
            return None
        pool.discard(found)
        return found

    def _grow(self, pool: Pool, size: int) -> Block | None:
        nbytes = self.rules.segment_size(size)
        if self.expandable:
            within = self.limit is None or self.reserved + nbytes <= self.limit
            return self._expand(pool, size) if within else None
        address = self._from_driver(nbytes)
        if address is None:
            return None
        self.device_mallocs += 1
        self._reserve(nbytes)
        block = Block(address, nbytes, Segment(address, nbytes), pool)
        self.heads.append(block)
        return block

    def room(self) -> int:
        """What a segment may have: of the driver, and within the limit."""
        free = self.card.free
        return free if self.limit is None else min(free, self.limit - self.reserved + self.card.elsewhere)

    def _from_driver(self, nbytes: int) -> int | None:
        """The address of a new segment; where there is no room whoever listens is asked to make it, and tried again."""
        tries = 0
        while True:
            if nbytes <= self.room():
                return self.card.allocate(nbytes)
            answer = self.ask(self.card.index, nbytes, tries) if self.ask is not None else NO_ROOM
            if answer == USE_HOST:
                return self.card.allocate(nbytes, HOST)
            if answer != TRY_AGAIN:
                return None
            tries += 1

    def _reserve(self, nbytes: int) -> None:
        self.reserved += nbytes
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _cut(self, block: Block, size: int) -> None:
        rest = Block(block.address + size, block.size - size, block.segment, block.pool, mapped=block.mapped)
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        block.after, block.size = rest, size
        block.pool.add(rest)

    def _merge(self, block: Block) -> None:
        """Free (or unmapped) neighbours of `block`, which is in no list, become part of it."""
        after = block.after
        if after is not None and not after.live and after.mapped == block.mapped:
            block.pool.discard(after)
            block.size += after.size
            block.after = after.after
            if after.after is not None:
                after.after.before = block
        before = block.before
        if before is not None and not before.live and before.mapped == block.mapped:
            block.pool.discard(before)
            block.address, block.size = before.address, before.size + block.size
            block.before = before.before
            if before.before is not None:
                before.before.after = block
            else:
                self.heads[self.heads.index(before)] = block

    # -- expandable segments: one long stretch of addresses, memory behind its pages as needed
    def _expand(self, pool: Pool, size: int) -> Block | None:
        block = self._room(pool, size)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            after = block.after
            assert after is not None
            if not self._map(after, min(size - block.size, after.size)):
                return None
            block = after
        pool.discard(block)
        return block

    def _room(self, pool: Pool, size: int) -> Block:
        for address in sorted(pool.unmapped):
            first = pool.unmapped[address]
            if first.before is not None and not first.before.live:
                first = first.before
            reach, block = 0, first
            while reach < size and not block.live:
                reach += block.size
                if block.after is None:
                    break
                block = block.after
            if reach >= size:
                return first
        page = self.rules.page(pool.small)
        length = -(-self.card.capacity * 9 // 8 // page) * page
        address = self.card.reserve(length)
        block = Block(address, length, Segment(address, length, expandable=True), pool, mapped=False)
        self.heads.append(block)
        pool.add(block)
        return block

    def _map(self, block: Block, nbytes: int) -> bool:
        page = self.rules.page(block.pool.small)
        nbytes = -(-nbytes // page) * page
        if not self.card.hold(nbytes):
            return False
        self._reserve(nbytes)
        pool = block.pool
        pool.discard(block)
        if nbytes < block.size:
            self._cut(block, nbytes)
        block.mapped = True
        self._merge(block)
        pool.add(block)
        return True

    def _unmap(self, block: Block) -> None:
        page, start = self.rules.page(block.pool.small), block.segment.address
        first = start + -(-(block.address - start) // page) * page
        end = start + (block.end - start) // page * page
        if end <= first:
            return
        pool = block.pool
        pool.discard(block)
        if first > block.address:
            self._cut(block, first - block.address)
            pool.add(block)
            assert block.after is not None
            block = block.after
            pool.discard(block)
        if end < block.end:
            self._cut(block, end - first)
        block.mapped = False
        self.card.hold(-(end - first))
        self._reserve(-(end - first))
        self._merge(block)
        pool.add(block)

    # -- readings
    def blocks(self) -> Iterator[Block]:
        for head in self.heads:
            block: Block | None = head
            while block is not None:
                yield block
                block = block.after

    def stats(self) -> Stats:
        split = sum(b.size for pool in self.pools.values() for b in pool.free.values() if b.split)
        return Stats(
            allocated=self.allocated,
            reserved=self.reserved,
            peak_allocated=self.peak_allocated,
            peak_reserved=self.peak_reserved,
            ooms=self.ooms,
            retries=self.retries,
            device_mallocs=self.device_mallocs,
            inactive_split=split,
            elsewhere=self.card.elsewhere,
            on_host=sum(size for size, where in self.card.chunks.values() if where == HOST),
        )

    def segments(self) -> tuple[SegmentRecord, ...]:
        """Segments in order of address; of an expandable one, each stretch that has memory behind it."""
        stretches: list[list[Block]] = []
        last: Block | None = None
        for block in self.blocks():
            if not block.mapped:
                last = None
                continue
            if last is None or block.before is not last:
                stretches.append([])
            stretches[-1].append(block)
            last = block
        return tuple(sorted((self._record(s) for s in stretches), key=lambda s: s.address))

    def _record(self, blocks: list[Block]) -> SegmentRecord:
        return SegmentRecord(
            device=self.card.index,
            address=blocks[0].address,
            size=sum(b.size for b in blocks),
            blocks=tuple(BlockRecord(b.address, b.size, "live" if b.live else "free", b.requested) for b in blocks),
            pool="small" if blocks[0].pool.small else "large",
            stream=blocks[0].pool.stream,
            expandable=blocks[0].segment.expandable,
        )

    def _message(self, asked: int) -> str:
        card = self.card
        processes = "".join(
            f"Process {p.pid} has {torch_size(p.nbytes)} memory in use. " for p in card.others if p.running
        )
        allowed = f"{torch_size(self.limit)} allowed; " if self.limit is not None else ""
        return (
            f"CUDA out of memory. Tried to allocate {torch_size(asked)}. GPU {card.index} has a total capacity of"
            f" {torch_size(card.capacity)} of which {torch_size(card.free)} is free. {processes}"
            f"Including non-PyTorch memory, this process has {torch_size(card.own)} memory in use. {allowed}"
            f"Of the allocated memory {torch_size(self.allocated)} is allocated by PyTorch,"
            f" and {torch_size(self.reserved - self.allocated)} is reserved by PyTorch but unallocated.{HINT}"
        )


def _reach(block: Block) -> int:
    after = block.after
    return block.size + (after.size if after is not None and not after.mapped else 0)
