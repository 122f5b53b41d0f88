"""Holding every hole of the model with fillers, so that the one place that is open is where the next block goes."""

from __future__ import annotations

import bisect

from .pieces import HOLE, LIVE, OPEN, Op, Piece, Space, Stretch
from .rules import SMALL, UNLIMITED, Rules

__all__ = ["Places"]


class Places:
    """The places of one device and the operations so far: opened one at a time, filled, and joined to holes again."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.stretches: dict[Stretch, None] = {}
        self.ops: list[Op] = []
        self.freer: dict[Stretch, None] = {}
        """Where more has become free since the last release, in that order."""

    def _drop(self, hole: Piece) -> None:
        """Open a hole: its fillers go."""
        hole.stretch.space.discard(hole)
        self.ops.extend([Op("drop", a) for a in hole.fillers])
        hole.fillers = ()
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
        self.freer[piece.stretch] = None
        piece.stretch.live -= piece.need
        piece.stretch.blocks -= 1
        piece.kind, piece.key, piece.need = OPEN, 0, 0

    def _fill_all(self, space: Space) -> None:
        """Hold all holes of a pool, once, before the first block moves in it."""
        if space.filled:
            return
        space.filled = True
        space.split, space.part = self._fill(space, space.order[bisect.bisect_left(space.order, (space.held, 0)) :])
        for hole in space.holes.values():
            if isinstance(hole, Piece):
                hole.fillers, hole.loose = space.fillers(hole.address, hole.size)

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
        """Fill open holes."""
        rules = self.rules
        # with expandable segments off, what is free in older ones is passed over by the allocator
        holes = [h for h in holes if rules.expandable or not h.stretch.expandable]
        split, part = self._fill(space, sorted((h.size, h.address) for h in holes if h.size >= space.held))
        for hole in holes:
            if hole.size < space.held:
                hole.loose = True
            else:
                hole.fillers = split.get(hole.address, (hole.address,))
                hole.loose = hole.address in part

    def _fill(self, space: Space, order: list[tuple[int, int]]) -> tuple[dict[int, tuple[int, ...]], set[int]]:
        """The requests that fill open holes, in the order in which the allocator serves each from the place meant.

        Parameters
        ----------
        order
            (size, address) of the holes, ascending.

        Returns
        -------
        tuple
            The fillers of the holes that took other than one at their start; the holes of which a part took none.
        """
        rules, small, stream, ops = space.rules, space.small, space.stream, self.ops
        if not rules.rounds and rules.max_split == UNLIMITED:
            return self._fill_exactly(space, order)
        split: dict[int, tuple[int, ...]] = {address: () for _, address in order}
        part: set[int] = set()
        owner = {address: address for _, address in order}
        while order:
            size, address = order[-1]
            request = rules.request(size, small)
            if not request or size < space.held or not rules.takes(size, request):
                order.pop()
                part.add(owner[address])  # no block of this pool can be put there either
                continue
            at = bisect.bisect_left(order, (request, 0))
            size, address = order.pop(at)
            hole = owner[address]
            split[hole] += (address,)
            ops.append(Op("fill", address, request, 0, stream))
            rest = rules.rest(size, request, small)
            if rest:
                owner[address + size - rest] = hole
                bisect.insort(order, (rest, address + size - rest))
        return split, part

    def _fill_exactly(self, space: Space, order: list[tuple[int, int]]) -> tuple[dict[int, tuple[int, ...]], set[int]]:
        """The same where a request of a hole's size goes there: largest first, so that nothing larger is left over."""
        at = bisect.bisect_left(order, (SMALL + 1, 0))
        split: dict[int, tuple[int, ...]] = {}
        if space.small:
            # a request of this pool has 1 MiB at most; first that of each larger hole, then what is left of those
            part: set[int] = set()
            whole: list[int] = []
            rests = []
            for size, address in order[at:]:
                rest = size % SMALL
                last = address + size - rest
                split[address] = tuple(range(address, last, SMALL))
                whole += split[address]
                if rest >= space.held:
                    split[address] += (last,)
                    rests.append((rest, last))
                elif rest:
                    part.add(address)
            exact = [(SMALL, address) for address in whole]
            exact += sorted(order[:at] + rests, reverse=True)
        else:
            part = {address for _, address in order[:at]}
            split = dict.fromkeys(part, ())
            exact = order[at:][::-1]
        self.ops += [Op("fill", address, size, 0, space.stream) for size, address in exact]
        return split, part

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
