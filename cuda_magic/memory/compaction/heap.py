"""A model of the allocator's pools on one device, on which a plan is tried out before anything real moves.

The steering trick that makes moves predictable: every hole is held by a filler, so when one hole is opened it is the
only place that the allocator can choose. A move opens its target, moves one block into it, and fills what is left
over and what was vacated, so exactly one hole is ever open. A pool is filled when the first block moves in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import TYPE_CHECKING

from .filling import Places
from .pieces import FIXED, HOLE, LIVE, OPEN, Op, Piece, Space, Stretch
from .rules import DEFAULT, MIN_LARGE, ROUND_LARGE, SMALL, SMALL_SEGMENT, UNLIMITED, Rules

if TYPE_CHECKING:
    from ..allocator import Segment, Storage

__all__ = ["ARENA_BASE", "ARENA_STEP", "Heap"]

ARENA_BASE = 1 << 60
ARENA_STEP = 1 << 44
"""New segments have no address yet: the model gives the n-th the place ARENA_BASE + n * ARENA_STEP."""


class Heap(Places):
    """The pools of one device, the driver's free bytes, and the operations done so far."""

    def __init__(self, driver_free: int, rules: Rules = DEFAULT) -> None:
        super().__init__(rules)
        self.driver_free = driver_free
        self.spaces: dict[tuple[int, bool], Space] = {}
        self.moved = self.moves = 0
        self.parked: list[tuple[int, int, Space]] = []
        """(need, key, pool) of blocks that are on the host only."""
        self._arenas = 0
        self._shut: list[Stretch] = []

    @classmethod
    def of(
        cls, segments: Iterable[Segment], storages: Iterable[Storage], driver_free: int, rules: Rules = DEFAULT
    ) -> Heap:
        """The model of the allocator's ordinary pools as they are."""
        if rules.rounds:
            movable = {s.address: (s.key, s.nbytes, rules.block_size(s.nbytes)) for s in storages if not s.reason}
        else:
            movable = {s.address: (s.key, s.nbytes, (s.nbytes + 511) & -512) for s in storages if not s.reason}
        heap = cls(driver_free, rules)
        for segment in segments:
            if segment.pool_id != (0, 0):
                continue  # a graph's pool or a MemPool: a move would take a block out of it
            space = heap.space(segment.stream, segment.pool == "small")
            stretch = Stretch.of(space, segment, movable)
            heap.stretches[stretch] = None
            if stretch.expandable or not (stretch.blocks or stretch.fixed):
                heap.freer[stretch] = None
            space.least = min(space.least, stretch.least)
        for space in heap.spaces.values():
            # twice by a number is faster than once by pairs; they come in order of address
            space.order.sort(key=itemgetter(1))
            space.order.sort(key=itemgetter(0))
        return heap

    def space(self, stream: int, small: bool) -> Space:
        found = self.spaces.get((stream, small))
        if found is None:
            found = self.spaces[stream, small] = Space(stream, small, self.rules)
        return found

    def bar(self, stretch: Stretch, low: int, high: int) -> None:
        """No targets between these addresses of `stretch`."""
        space = stretch.space
        self._fill_all(space)
        for hole in [p for p in stretch.pieces() if p.kind == HOLE and low <= p.address < high]:
            space.discard(hole)
        space.barred = (low, high)

    def unbar(self, stretch: Stretch) -> None:
        """What was barred may be a target again."""
        space, (low, high) = stretch.space, stretch.space.barred
        space.barred = (0, 0)
        for hole in [p for p in stretch.pieces() if p.kind == HOLE and low <= p.address < high]:
            space.add(hole)

    def shut(self, stretch: Stretch) -> None:
        """No targets in `stretch`, which is being emptied."""
        self._fill_all(stretch.space)
        for hole in [p for p in stretch.pieces() if p.kind == HOLE]:
            stretch.space.discard(hole)
        stretch.closed = True
        self._shut.append(stretch)

    def reopen(self) -> None:
        """Whatever was shut may hold targets again."""
        for stretch in self._shut:
            stretch.closed = False
            for hole in [p for p in stretch.pieces() if p.kind == HOLE]:
                stretch.space.add(hole)
        self._shut = []

    # -- changes, each with the real operations that it stands for
    def move(self, piece: Piece, hole: Piece) -> None:
        """Move a live piece to the start of a hole."""
        space = hole.stretch.space
        self._fill_all(space)
        rest = self._place(hole, piece.key, piece.need)
        self.ops.append(Op("move", hole.address, piece.need, piece.key, space.stream))
        self.moved += piece.need
        self.moves += 1
        self._vacate(piece)
        self._close([piece, rest] if rest is not None else [piece])

    def park(self, piece: Piece) -> None:
        """Let a live piece leave for the host."""
        space = piece.stretch.space
        self._fill_all(space)
        self.ops.append(Op("park", piece.address, piece.need, piece.key, space.stream))
        self.parked.append((piece.need, piece.key, space))
        self.moved += 2 * piece.need
        self.moves += 1
        self._vacate(piece)
        self._close([piece])

    def unpark(self) -> bool:
        """Bring everything back into holes of its pool, largest first; False when one finds none."""
        for need, key, space in sorted(self.parked, key=lambda p: -p[0]):
            hole = space.best(need)
            if hole is None:
                return False
            rest = self._place(hole, key, need)
            self.ops.append(Op("unpark", hole.address, need, key, space.stream))
            if rest is not None:
                self._close([rest])
        self.parked = []
        return True

    def arena(self, space: Space, size: int) -> int:
        """New segments of `size` bytes in all from the driver's free memory, held by fillers; gives what they took."""
        self._fill_all(space)
        taken = 0
        for one, request in self.arena_sizes(space, size):
            base = ARENA_BASE + self._arenas * ARENA_STEP
            self._arenas += 1
            stretch = Stretch(space, base, one, self.rules.expandable)
            self.stretches[stretch] = None
            self.freer[stretch] = None
            stretch.first = hole = Piece(stretch, base, one, HOLE)
            hole.fillers = (base,)
            self.ops.append(Op("arena", base, request, 0, space.stream))
            if one > request:
                hole.fillers += (base + request,)
                self.ops.append(Op("fill", base + request, one - request, 0, space.stream))
            space.add(hole)
            taken += one
        self.driver_free -= taken
        return taken

    def arena_sizes(self, space: Space, size: int) -> Iterator[tuple[int, int]]:
        """(bytes, first request) of the segments that make up `size`."""
        rules = self.rules
        if space.small:
            for _ in range(size // SMALL_SEGMENT):
                yield SMALL_SEGMENT, SMALL
            return
        step = rules.page(False) if rules.expandable else ROUND_LARGE
        # a smaller one could be served from a hole that is not held
        smallest = max(step, MIN_LARGE, space.least if space.least < UNLIMITED else 0)
        while size >= smallest:
            one = min(size, rules.max_split - 1) // step * step
            if rules.rounds:
                one = rules.request(one, False) // step * step
            if one < smallest or rules.block_size(one) != one:
                return
            yield one, one
            size -= one

    def release(self) -> int:
        """Give what only fillers hold back to the driver, by segments and pages; gives its bytes."""
        freed = 0
        ends: list[Piece] = []
        for stretch in self.freer:
            if not stretch.blocks and not stretch.fixed:
                if stretch.first is not None:
                    self._drop(stretch.first)
                stretch.gone = True
                freed += stretch.size
            elif stretch.expandable and self._pages(stretch):
                gone, parts = self._unmap(stretch, ends)
                stretch.gone = True
                freed += gone
                self.stretches |= dict.fromkeys(parts)
            if stretch.gone:
                del self.stretches[stretch]
        self.freer = {}
        if freed:
            self.ops.append(Op("empty"))
            self.driver_free += freed
        if ends:
            self._close(ends)
        return freed

    # -- inside
    def _pages(self, stretch: Stretch) -> bool:
        """Whether a whole page of an expandable stretch is free."""
        page, base = self.rules.page(stretch.space.small), stretch.address
        return any(
            size >= page and -(-(address - base) // page) < (address + size - base) // page
            for address, size in stretch.holes()
        )

    def _unmap(self, stretch: Stretch, ends: list[Piece]) -> tuple[int, list[Stretch]]:
        """Whole pages without a block leave an expandable stretch, which falls into parts."""
        page, freed = self.rules.page(stretch.space.small), 0
        parts: list[Stretch] = []
        base = stretch.address
        rows: list[list[Piece]] = [[]]
        starts = [base]
        for piece in list(stretch.pieces()):
            low = base + -(-(piece.address - base) // page) * page
            high = base + (piece.end - base) // page * page
            if piece.kind != HOLE or high <= low:
                rows[-1].append(piece)
                continue
            self._drop(piece)
            freed += high - low
            if low > piece.address:
                rows[-1].append(Piece(stretch, piece.address, low - piece.address, OPEN))
                ends.append(rows[-1][-1])
            rows.append([])
            starts.append(high)
            if piece.end > high:
                rows[-1].append(Piece(stretch, high, piece.end - high, OPEN))
                ends.append(rows[-1][-1])
        for start, row in zip(starts, rows, strict=True):
            if not row:
                continue
            part = Stretch(stretch.space, start, row[-1].end - start, True)
            part.first = row[0]
            before = None
            for piece in row:
                piece.stretch, piece.before, piece.after = part, before, None
                if before is not None:
                    before.after = piece
                before = piece
                if piece.kind == LIVE:
                    part.hold(piece.need)
                part.fixed += piece.kind == FIXED
            parts.append(part)
        return freed, parts
