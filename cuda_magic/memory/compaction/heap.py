"""A model of the allocator's pools on one device, on which a plan is tried out before anything real moves.

The steering trick that makes moves predictable: every hole is held by a filler, so when one hole is opened it is the
only place that the allocator can choose. A move opens its target, moves one block into it, and fills what is left
over and what was vacated, so exactly one hole is ever open. A pool is filled when the first block moves in it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from .rules import DEFAULT, MIN_LARGE, ROUND_LARGE, SMALL, SMALL_SEGMENT, SMALLEST, UNLIMITED, Rules

if TYPE_CHECKING:
    from ..allocator import Block, Segment, Storage

Movable = dict[int, tuple[int, int]]
"""(key, bytes) of the storages that may be moved, by address."""

__all__ = ["FIXED", "HOLE", "LIVE", "Heap", "Op", "Piece", "Space", "Stretch"]

ARENA_BASE = 1 << 60
ARENA_STEP = 1 << 44
"""New segments have no address yet: the model gives the n-th the place ARENA_BASE + n * ARENA_STEP."""

LIVE, FIXED, HOLE, OPEN = "live", "fixed", "hole", "open"


class Op(NamedTuple):
    """One real operation: fill, drop, move, arena, empty, park (to the host) or unpark; `key` names the storage."""

    kind: str
    address: int = 0
    size: int = 0
    key: int = 0
    stream: int = 0


class Piece:
    """A block, or a hole: free memory held by the fillers at `fillers`. `need` is the size a block takes elsewhere."""

    __slots__ = ("address", "after", "before", "fillers", "key", "kind", "loose", "need", "size", "stretch")

    def __init__(self, stretch: Stretch, address: int, size: int, kind: str) -> None:
        self.stretch, self.address, self.size, self.kind = stretch, address, size, kind
        self.key = self.need = 0
        self.before: Piece | None = None
        self.after: Piece | None = None
        self.fillers: list[int] = []
        self.loose = False
        """Whether a part of a hole is not held, because no request has its size."""

    @property
    def end(self) -> int:
        return self.address + self.size


class Stretch:
    """A segment, or a part of an expandable one that has memory behind it. Its pieces are made when first looked at."""

    __slots__ = (
        "_first",
        "_raw",
        "address",
        "blocks",
        "closed",
        "expandable",
        "fixed",
        "gone",
        "least",
        "live",
        "size",
        "space",
    )

    def __init__(self, space: Space, address: int, size: int, expandable: bool = False) -> None:
        self.space, self.address, self.size, self.expandable = space, address, size, expandable
        self._first: Piece | None = None
        self._raw: tuple[Iterable[Block], Movable] | None = None
        self.live = self.blocks = self.fixed = 0
        self.least = UNLIMITED
        """No block in it needs less."""
        self.closed = False
        """Being emptied: no target."""
        self.gone = False

    @classmethod
    def of(cls, space: Space, segment: Segment, movable: Movable) -> Stretch:
        """A segment as it is: its holes and sums now, its pieces later."""
        new = cls(space, segment.address, segment.size, segment.expandable)
        new._raw = (segment.blocks, movable)
        target = space.rules.expandable or not segment.expandable
        needs = []
        for address, size, state, _ in segment.blocks:
            if state != "free":
                needs.append(_movable(movable, space, address, size, state)[1])
            elif target:
                space.holes[address] = new
                space.order.append((size, address))
        new.fixed = needs.count(0)
        new.blocks, new.live = len(needs) - new.fixed, sum(needs)
        if new.blocks:
            new.least = min(filter(None, needs))
        return new

    @property
    def first(self) -> Piece | None:
        """The piece at its low end."""
        if self._raw is not None:
            self._make()
        return self._first

    @first.setter
    def first(self, piece: Piece) -> None:
        self._first = piece

    @property
    def made(self) -> bool:
        """Whether its pieces were looked at."""
        return self._raw is None

    def _make(self) -> None:
        assert self._raw is not None
        (blocks, movable), self._raw = self._raw, None
        space = self.space
        holes, unheld = space.holes, space.filled
        last: Piece | None = None
        for address, size, state, _ in blocks:
            piece = Piece(self, address, size, HOLE)
            if state == "free":
                piece.loose = unheld
                if address in holes:
                    holes[address] = piece
            else:
                piece.key, piece.need = _movable(movable, space, address, size, state)
                piece.kind = LIVE if piece.need else FIXED
            if last is None:
                self._first = piece
            else:
                last.after, piece.before = piece, last
            last = piece

    def hold(self, need: int) -> None:
        """One live block more."""
        self.live += need
        self.blocks += 1
        self.least = min(self.least, need)

    def pieces(self) -> Iterator[Piece]:
        piece = self.first
        while piece is not None:
            yield piece
            piece = piece.after


def _movable(movable: Movable, space: Space, address: int, size: int, state: str) -> tuple[int, int]:
    """(key, need) of a block that may be moved; (0, 0) of one that may not."""
    found = movable.get(address) if state == "live" else None
    if found is None:
        return 0, 0
    key, nbytes = found
    need = (nbytes + 511) & -512 if not space.rules.divisions else space.rules.block_size(nbytes)
    return (key, need) if nbytes <= size and (need <= SMALL) == space.small else (0, 0)


class Space:
    """One pool: the small or the large one of a stream. Holes that may be targets stand in order of (size, address)."""

    def __init__(self, stream: int, small: bool, rules: Rules) -> None:
        self.stream, self.small, self.rules = stream, small, rules
        self.order: list[tuple[int, int]] = []
        self.holes: dict[int, Piece | Stretch] = {}
        """By address; a stretch whose pieces were not looked at yet stands for its hole."""
        self.filled = False
        self.least = UNLIMITED
        """No movable block of this pool needs less: a smaller hole need not be held."""
        self.barred = (0, 0)
        """Addresses that are being emptied: no targets."""

    def add(self, hole: Piece) -> None:
        low, high = self.barred
        if hole.stretch.closed or low <= hole.address < high:
            return
        # with expandable segments off, what is free in older ones is passed over by the allocator
        if self.rules.expandable or not hole.stretch.expandable:
            bisect.insort(self.order, (hole.size, hole.address))
            self.holes[hole.address] = hole

    def discard(self, hole: Piece) -> None:
        if self.holes.pop(hole.address, None) is not None:
            del self.order[bisect.bisect_left(self.order, (hole.size, hole.address))]

    def best(self, need: int) -> Piece | None:
        """The hole that a block of `need` bytes goes into: the smallest that is large enough."""
        at = bisect.bisect_left(self.order, (need, 0))
        if at == len(self.order) or not self.rules.takes(self.order[at][0], need):
            return None
        return self.hole(self.order[at][1])

    def hole(self, address: int) -> Piece:
        """The hole at `address`, which may be a target."""
        found = self.holes[address]
        if isinstance(found, Stretch):
            assert found.first is not None
            found = self.holes[address]
        assert isinstance(found, Piece)
        return found


class Heap:
    """The pools of one device, the driver's free bytes, and the operations done so far."""

    def __init__(self, driver_free: int, rules: Rules = DEFAULT) -> None:
        self.rules, self.driver_free = rules, driver_free
        self.spaces: dict[tuple[int, bool], Space] = {}
        self.stretches: list[Stretch] = []
        self.ops: list[Op] = []
        self.moved = self.moves = 0
        self.parked: list[tuple[int, int, Space]] = []
        """(need, key, pool) of blocks that are on the host only."""
        self._arenas = 0

    @classmethod
    def of(
        cls, segments: Iterable[Segment], storages: Iterable[Storage], driver_free: int, rules: Rules = DEFAULT
    ) -> Heap:
        """The model of the allocator's ordinary pools as they are."""
        movable = {s.address: (s.key, s.nbytes) for s in storages if not s.reason}
        heap = cls(driver_free, rules)
        for segment in segments:
            if segment.pool_id != (0, 0):
                continue  # a graph's pool or a MemPool: a move would take a block out of it
            space = heap.space(segment.stream, segment.pool == "small")
            stretch = Stretch.of(space, segment, movable)
            heap.stretches.append(stretch)
            space.least = min(space.least, stretch.least)
        for space in heap.spaces.values():
            space.order.sort()
        return heap

    def space(self, stream: int, small: bool) -> Space:
        key = (stream, small)
        if key not in self.spaces:
            self.spaces[key] = Space(stream, small, self.rules)
        return self.spaces[key]

    def bar(self, stretch: Stretch, low: int, high: int) -> None:
        """No targets between these addresses of `stretch`."""
        space = stretch.space
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
        for hole in [p for p in stretch.pieces() if p.kind == HOLE]:
            stretch.space.discard(hole)
        stretch.closed = True

    def reopen(self) -> None:
        """Whatever was shut may hold targets again."""
        for stretch in self.stretches:
            if stretch.closed:
                stretch.closed = False
                for hole in [p for p in stretch.pieces() if p.kind == HOLE]:
                    stretch.space.add(hole)

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
            self.stretches.append(stretch)
            stretch.first = hole = Piece(stretch, base, one, HOLE)
            hole.fillers.append(base)
            self.ops.append(Op("arena", base, request, 0, space.stream))
            if one > request:
                hole.fillers.append(base + request)
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
        kept = []
        for stretch in self.stretches:
            if not stretch.blocks and not stretch.fixed:
                if stretch.first is not None:
                    self._drop(stretch.first)
                stretch.gone = True
                freed += stretch.size
            elif stretch.expandable and any(p.kind == HOLE and p.size >= self._page(p) for p in stretch.pieces()):
                gone, parts = self._unmap(stretch, ends)
                stretch.gone = True
                freed += gone
                kept += parts
            else:
                kept.append(stretch)
        self.stretches = kept
        if freed:
            self.ops.append(Op("empty"))
            self.driver_free += freed
        if ends:
            self._close(ends)
        return freed

    # -- inside
    def _page(self, piece: Piece) -> int:
        return self.rules.page(piece.stretch.space.small)

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

    def _drop(self, hole: Piece) -> None:
        """Open a hole: its fillers go."""
        hole.stretch.space.discard(hole)
        self.ops.extend([Op("drop", a) for a in hole.fillers])
        hole.fillers = []
        hole.loose = False

    def _place(self, hole: Piece, key: int, need: int) -> Piece | None:
        """A block at the start of a hole, which is opened; gives the open rest that the allocator splits off."""
        stretch = hole.stretch
        self._drop(hole)
        rest = self.rules.rest(hole.size, need, stretch.space.small)
        left: Piece | None = None
        if rest:
            left = Piece(stretch, hole.end - rest, rest, OPEN)
            left.before, left.after = hole, hole.after
            if hole.after is not None:
                hole.after.before = left
            hole.after = left
            hole.size -= rest
        hole.kind, hole.key, hole.need = LIVE, key, need
        stretch.hold(need)
        return left

    def _vacate(self, piece: Piece) -> None:
        piece.stretch.live -= piece.need
        piece.stretch.blocks -= 1
        piece.kind, piece.key, piece.need = OPEN, 0, 0

    def _fill_all(self, space: Space) -> None:
        """Hold all holes of a pool, once, before the first block moves in it."""
        if space.filled:
            return
        least = 0 if self.rules.expandable else space.least
        for _, address in space.order[bisect.bisect_left(space.order, (least, 0)) :]:
            space.hole(address)
        space.filled = True
        mine = [s for s in self.stretches if s.space is space and s.made]
        self._hold(space, [hole for stretch in mine for hole in stretch.pieces() if hole.kind == HOLE])

    def _close(self, opened: list[Piece]) -> None:
        """Fillers into what is open, merged with its neighbours; it becomes holes."""
        merged: dict[Space, list[Piece]] = {}
        for piece in opened:
            if piece.kind != OPEN:
                continue  # already part of another one
            for near in (piece.before, piece.after):
                if near is not None and near.kind == HOLE and near.loose:
                    self._drop(near)
                    near.kind = OPEN
            first = piece
            while first.before is not None and first.before.kind == OPEN:
                first = first.before
            while first.after is not None and first.after.kind == OPEN:
                self._swallow(first)
            first.kind = HOLE
            merged.setdefault(first.stretch.space, []).append(first)
        for space, pieces in merged.items():
            self._hold(space, pieces)
        for pieces in merged.values():
            for piece in pieces:
                self._join(piece)

    def _hold(self, space: Space, holes: list[Piece]) -> None:
        """The requests that fill open holes, in the order in which the allocator serves each from the place meant."""
        rules, small, stream = space.rules, space.small, space.stream
        # with expandable segments off, what is free in older ones is passed over by the allocator
        holes = [h for h in holes if rules.expandable or not h.stretch.expandable]
        least = 0 if rules.expandable else space.least
        if least > SMALLEST:
            for hole in holes:
                hole.loose = hole.size < least
            holes = [h for h in holes if not h.loose]
        if not rules.rounds and not rules.expandable and rules.max_split == UNLIMITED:
            # a request of exactly a hole's size goes there; the largest first, so that nothing larger is left to choose
            exact = [h for h in holes if (h.size <= SMALL) == small]
            for hole in sorted(exact, key=lambda h: (-h.size, h.address)):
                hole.fillers.append(hole.address)
                self.ops.append(Op("fill", hole.address, hole.size, 0, stream))
            if len(exact) == len(holes):
                return
            holes = [h for h in holes if (h.size <= SMALL) != small]
        owner = {hole.address: hole for hole in holes}
        order = sorted((hole.size, hole.address) for hole in holes)
        while order:
            size, address = order[-1]
            request = rules.request(size, small)
            if not request or size < least or not rules.takes(size, request):
                order.pop()
                owner[address].loose = True  # no block of this pool can be put there either
                continue
            at = bisect.bisect_left(order, (request, 0))
            # the end of an expandable stretch counts as large as it can become: others are taken before it
            inner = (i for i in range(at, len(order)) if not _grows(owner[order[i][1]], *order[i]))
            size, address = order.pop(next(inner, at) if rules.expandable else at)
            rest = rules.rest(size, request, small)
            hole = owner.pop(address)
            hole.fillers.append(address)
            self.ops.append(Op("fill", address, request, 0, stream))
            if rest:
                owner[address + size - rest] = hole
                bisect.insort(order, (rest, address + size - rest))

    def _join(self, hole: Piece) -> None:
        """A new hole and those beside it become one, which may be a target."""
        if hole.kind != HOLE:
            return  # already part of another one
        space = hole.stretch.space
        before = hole.before
        if before is not None and before.kind == HOLE:
            hole = before
        space.discard(hole)
        while hole.after is not None and hole.after.kind == HOLE:
            space.discard(hole.after)
            hole.fillers += hole.after.fillers
            hole.loose = hole.loose or hole.after.loose
            self._swallow(hole)
        space.add(hole)

    @staticmethod
    def _swallow(piece: Piece) -> None:
        """The next piece becomes part of this one."""
        after = piece.after
        assert after is not None
        piece.size += after.size
        after.kind = ""
        piece.after = after.after
        if after.after is not None:
            after.after.before = piece


def _grows(hole: Piece, size: int, address: int) -> bool:
    return hole.stretch.expandable and hole.after is None and address + size == hole.end
