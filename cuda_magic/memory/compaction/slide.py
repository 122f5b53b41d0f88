"""Pack a part of one segment to its low end, through a hole that travels up."""

from __future__ import annotations

from collections.abc import Iterator

from .goal import Goal
from .heap import Heap
from .pieces import FIXED, LIVE, Piece, Stretch

__all__ = ["regions", "slide", "slide_any"]


def regions(stretch: Stretch) -> Iterator[tuple[Piece, int]]:
    """(first piece, free bytes) of each row between fixed blocks; what live blocks hold beyond their need counts."""
    first: Piece | None = None
    free = 0
    if not stretch.fixed and stretch.first is not None:  # all of it
        yield stretch.first, stretch.size - stretch.live
        return
    for piece in stretch.pieces():
        if piece.kind == FIXED:
            if first is not None:
                yield first, free
            first, free = None, 0
            continue
        first = first or piece
        free += piece.size - piece.need
    if first is not None:
        yield first, free


def slide_any(heap: Heap, goal: Goal, host: int = 0) -> bool:
    space = goal.space(heap)
    usable = [s for s in heap.stretches if s.space is space and s.size >= goal.need]
    usable = [s for s in usable if space.rules.expandable or not s.expandable]
    rows = sorted(((free, first.address, first) for s in usable for first, free in regions(s)), key=lambda r: r[:2])
    for free, _, first in rows:
        if free < goal.need:
            continue
        # one region a try: a failed one has moved blocks, but every state is a heap as good as the one before
        if slide(heap, first, goal.need, host) and (not heap.parked or heap.unpark()):
            if space.best(goal.need) is not None:
                return True
        elif heap.parked:
            return False
    return False


def slide(heap: Heap, first: Piece, wanted: int = 1 << 62, host: int = 0) -> bool:
    """Pack the live blocks from `first` up to a fixed one at the low end, until one hole of `wanted` bytes is there.

    False when a block is larger than the hole that comes to it and finds no place elsewhere.
    """
    space = first.stretch.space
    piece: Piece | None = first
    parked = 0
    while piece is not None:
        if piece.kind == FIXED:
            return True
        if piece.kind == LIVE:
            piece = piece.after
            continue
        if piece.size >= wanted + parked:
            return True
        block = piece.after
        if block is None or block.kind != LIVE:
            return True
        if block.need <= piece.size and space.rules.takes(piece.size, block.need):
            heap.move(block, piece)
            piece = piece.after  # the hole has travelled behind the block
            continue
        target = space.best(block.need)
        if target is None:
            size = heap.rules.segment_size(block.need)
            if heap.driver_free >= size and heap.arena(space, size):
                target = space.best(block.need)
        if target is not None and target is not piece:
            heap.move(block, target)
        elif host - parked >= block.need:
            parked += block.need
            heap.park(block)
        else:
            return False
        # the hole has grown by the block that left
    return True
