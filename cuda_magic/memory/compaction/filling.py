"""Holding every hole of the model with fillers, so that the one place that is open is where the next block goes."""

from __future__ import annotations

import bisect

from .pieces import HOLE, LIVE, OPEN, Op, Piece, Space, Stretch
from .rules import SMALL, SMALLEST, UNLIMITED, Rules

__all__ = ["Places"]


class Places:
    """The places of one device and the operations so far: opened one at a time, filled, and joined to holes again."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.stretches: list[Stretch] = []
        self.ops: list[Op] = []

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
