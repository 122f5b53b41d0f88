"""What a plan is to reach, and what the strategies weigh moves by."""

from __future__ import annotations

import bisect

from .heap import Heap
from .pieces import Space
from .rules import SMALL, Rules

__all__ = ["OP_COST", "Goal", "take"]

OP_COST = 50_000
"""Bytes that one operation weighs when plans are compared: a small move took 6.7 us, 1,753 GB/s moved (H200)."""


class Goal:
    """What is to be reached: a hole that serves the request, or enough free memory of the driver's."""

    def __init__(self, request: int, stream: int, rules: Rules) -> None:
        self.need = rules.block_size(request)
        self.driver = rules.from_driver(request)
        self.stream, self.small = stream, self.need <= SMALL

    def space(self, heap: Heap) -> Space:
        return heap.space(self.stream, self.small)

    def reached(self, heap: Heap) -> bool:
        return heap.driver_free >= self.driver or self.space(heap).best(self.need) is not None


def take(space: Space, needs: list[int], own: list[int], room: list[int]) -> int:
    """Bytes of blocks of `needs`, largest first, that find no place in holes of the sizes `room`, those of `own` aside.

    `room` is ascending. Where all find one it is left as it is afterwards, else as it was.
    """
    rules, small = space.rules, space.small
    gone, new = list(own), []
    for size in own:
        del room[bisect.bisect_left(room, size)]
    left = 0
    for need in needs:
        at = bisect.bisect_left(room, need)
        if at == len(room) or not rules.takes(room[at], need):
            left += need
            continue
        size = room.pop(at)
        gone.append(size)
        rest = rules.rest(size, need, small)
        if rest:
            bisect.insort(room, rest)
            new.append(rest)
    if left:
        for size in gone:
            bisect.insort(room, size)
        for rest in new:
            del room[bisect.bisect_left(room, rest)]
    return left
