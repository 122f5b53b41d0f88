"""What the model of the allocator is made of: blocks and holes, the segments they lie in, and pools of holes."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from .rules import SMALL, SMALLEST, UNLIMITED, Rules

if TYPE_CHECKING:
    from ..allocator import Block, Segment

__all__ = ["FIXED", "HOLE", "LIVE", "OPEN", "Movable", "Op", "Piece", "Space", "Stretch"]

Movable = dict[int, tuple[int, int, int]]
"""(key, bytes, bytes of a block that serves as many) of the storages that may be moved, by address."""

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

    def __init__(  # noqa: PLR0917 - made by the thousand
        self,
        stretch: Stretch,
        address: int,
        size: int,
        kind: str,
        before: Piece | None = None,
        key: int = 0,
        need: int = 0,
    ) -> None:
        self.stretch = stretch
        self.address = address
        self.size = size
        self.kind = kind
        self.before = before
        self.after: Piece | None = None
        self.key = key
        self.need = need
        self.fillers: tuple[int, ...] = ()
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
        holes, order = space.holes, space.order
        target = space.rules.expandable or not segment.expandable
        small, get = space.small, movable.get
        live = blocks = fixed = 0
        least = UNLIMITED
        for address, size, state, _ in segment.blocks:
            if state == "free":
                if target:
                    holes[address] = new
                    order.append((size, address))
                continue
            found = get(address) if state == "live" else None
            if found is None or found[1] > size or (found[2] <= SMALL) is not small:
                fixed += 1
                continue
            need = found[2]
            live += need
            blocks += 1
            if need < least:  # noqa: PLR1730 - the inner loop of planning
                least = need
        new.live, new.blocks, new.fixed, new.least = live, blocks, fixed, least
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

    def holes(self) -> list[tuple[int, int]]:
        """(address, size) of what is free in it; makes no pieces."""
        if self._raw is not None:
            return [(address, size) for address, size, state, _ in self._raw[0] if state == "free"]
        return [(p.address, p.size) for p in self.pieces() if p.kind == HOLE]

    def _make(self) -> None:
        assert self._raw is not None
        (blocks, movable), self._raw = self._raw, None
        space = self.space
        holes, small, get = space.holes, space.small, movable.get
        last: Piece | None = None
        for address, size, state, _ in blocks:
            if state == "free":
                piece = Piece(self, address, size, HOLE, last)
                if address in holes:
                    holes[address] = piece
                    if space.filled:
                        piece.fillers, piece.loose = space.fillers(address, size)
                else:
                    piece.loose = space.filled
            else:
                found = get(address) if state == "live" else None
                if found is None or found[1] > size or (found[2] <= SMALL) is not small:
                    piece = Piece(self, address, size, FIXED, last)
                else:
                    piece = Piece(self, address, size, LIVE, last, found[0], found[2])
            if last is None:
                self._first = piece
            else:
                last.after = piece
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


class Space:
    """One pool: the small or the large one of a stream. Holes that may be targets stand in order of (size, address)."""

    def __init__(self, stream: int, small: bool, rules: Rules) -> None:
        self.stream, self.small, self.rules = stream, small, rules
        self.order: list[tuple[int, int]] = []
        self.holes: dict[int, Piece | Stretch] = {}
        """By address; a stretch whose pieces were not looked at yet stands for its hole."""
        self.filled = False
        self.split: dict[int, tuple[int, ...]] = {}
        """Fillers, by the address of the hole, of those that took other than one when the pool was filled."""
        self.part: set[int] = set()
        """Addresses of holes of which a part took none."""
        self.least = UNLIMITED
        """No movable block of this pool needs less: a smaller hole need not be held."""
        self.barred = (0, 0)
        """Addresses that are being emptied: no targets."""

    @property
    def held(self) -> int:
        """A smaller hole is not held: nothing goes into it."""
        return SMALLEST if self.rules.expandable else self.least

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

    def sizes(self, least: int) -> list[int]:
        """Bytes of each hole of at least `least`, ascending."""
        return [size for size, _ in self.order[bisect.bisect_left(self.order, (least, 0)) :]]

    def best(self, need: int) -> Piece | None:
        """The hole that a block of `need` bytes goes into: the smallest that is large enough."""
        at = bisect.bisect_left(self.order, (need, 0))
        if at == len(self.order) or not self.rules.takes(self.order[at][0], need):
            return None
        return self.hole(self.order[at][1])

    def fillers(self, address: int, size: int) -> tuple[tuple[int, ...], bool]:
        """(addresses of the fillers that the hole got when the pool was filled, whether a part of it got none)."""
        if size < self.held:
            return (), True
        return self.split.get(address, (address,)), address in self.part

    def hole(self, address: int) -> Piece:
        """The hole at `address`, which may be a target."""
        found = self.holes[address]
        if isinstance(found, Stretch):
            assert found.first is not None
            found = self.holes[address]
        assert isinstance(found, Piece)
        return found
