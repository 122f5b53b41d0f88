"""As few blocks as possible leave for the host and come back packed."""

from __future__ import annotations

from .goal import Goal
from .heap import Heap
from .pieces import LIVE, Space, Stretch
from .rules import ROUND_LARGE, Rules

__all__ = ["out"]


def out(heap: Heap, goal: Goal, most: int) -> bool:
    """Whole segments leave for the host, as few bytes as possible and `most` at once; they come back packed."""
    heap.release()
    units = [s for s in heap.stretches if s.blocks and not s.fixed and not s.space.small]
    units.sort(key=lambda s: ((s.live - s.size) / s.live, s.address))
    taken: list[Stretch] = []
    gained = 0
    packs: dict[Space, int] = {}
    for stretch in units:
        taken.append(stretch)
        gained += stretch.size
        packs[stretch.space] = packs.get(stretch.space, 0) + stretch.live
        if heap.driver_free + gained >= goal.driver + sum(_pack(heap.rules, n) for n in packs.values()):
            break
    else:
        return False
    if sum(packs.values()) > most:
        return False
    for stretch in taken:
        for piece in [p for p in stretch.pieces() if p.kind == LIVE]:
            heap.park(piece)
    heap.release()
    for space, nbytes in packs.items():
        heap.arena(space, _pack(heap.rules, nbytes))
    return heap.unpark() and goal.reached(heap)


def _pack(rules: Rules, nbytes: int) -> int:
    """Bytes of the segments into which blocks of `nbytes` in all are packed."""
    step = rules.page(False) if rules.expandable else ROUND_LARGE
    return max(rules.large_segment, -(-nbytes // step) * step)
