"""Empty the stretch of one segment that holds the fewest live bytes into holes elsewhere."""

from __future__ import annotations

import bisect
from itertools import accumulate

from .goal import OP_COST, Goal, take
from .heap import Heap
from .pieces import FIXED, HOLE, LIVE, Piece, Space
from .rules import ROUND_LARGE, UNLIMITED

__all__ = ["window"]

WINDOWS = 40
"""The cheapest stretches, of which one is emptied."""


def _windows(space: Space, heap: Heap, need: int) -> list[tuple[int, int, Piece, Piece]]:
    """(cost, address, first, last) of the cheapest rows of just `need` bytes with nothing fixed in them."""
    found: list[tuple[int, int, Piece, Piece]] = []
    worst = UNLIMITED
    for stretch in heap.stretches:
        if stretch.space is not space or (stretch.expandable and not space.rules.expandable) or stretch.size < need:
            continue
        pieces = list(stretch.pieces())
        costs = [0, *accumulate([p.need + OP_COST if p.need else 0 for p in pieces])]
        ends = [p.address + p.size for p in pieces]
        fixed = [0, *accumulate([p.kind == FIXED for p in pieces])]
        last = 0
        for at, start in enumerate([stretch.address, *ends[:-1]]):
            wanted = start + need
            if ends[-1] < wanted:
                break
            while ends[last] < wanted:
                last += 1
            cost = costs[last + 1] - costs[at]
            if cost < worst and fixed[at] == fixed[last + 1]:
                bisect.insort(found, (cost, start, pieces[at], pieces[last]))  # no two start at one address
                if len(found) > WINDOWS:
                    found.pop()
                    worst = found[-1][0]
    return found


def window(heap: Heap, goal: Goal) -> bool:
    space = goal.space(heap)
    room = space.sizes(0)
    for _, _, first, last in _windows(space, heap, goal.need):
        # the holes beside it are part of it: what is vacated there becomes one with them
        low = first.before if first.before is not None and first.before.kind == HOLE else first
        high = last.after if last.after is not None and last.after.kind == HOLE else last
        inside = _row(low, high)
        live = sorted((p for p in inside if p.kind == LIVE), key=lambda p: -p.need)
        needs = [p.need for p in live]
        own = [p.size for p in inside if p.kind == HOLE]
        arena = 0
        left = take(space, needs, own, room)
        if left:
            arena = min(-(-left // ROUND_LARGE) * ROUND_LARGE, heap.driver_free)
            parts = [one for one, _ in heap.arena_sizes(space, arena)]
            if not parts or take(space, needs, own, sorted(room + parts)):
                continue
        stretch = first.stretch
        heap.bar(stretch, low.address, high.end)
        if arena:
            heap.arena(space, arena)
        for piece in live:
            target = space.best(piece.need)
            if target is None:  # it was seen to fit: not reached
                return False
            heap.move(piece, target)
        heap.unbar(stretch)
        return space.best(goal.need) is not None
    return False


def _row(first: Piece, last: Piece) -> list[Piece]:
    row = [first]
    while row[-1] is not last and row[-1].after is not None:
        row.append(row[-1].after)
    return row
