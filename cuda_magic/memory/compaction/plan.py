"""How to make room for a request of a wanted size: strategies on the model, the cheapest that works is taken.

window     empty the stretch of one segment that holds the fewest live bytes into holes elsewhere
slide      pack a part of one segment to its low end, through a hole that travels up
evacuate   empty sparse segments of any pool into holes, or into a new one from the driver's free memory; release them
out        as few blocks as possible leave for the host and come back packed
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import nsmallest

from .heap import FIXED, HOLE, LIVE, Heap, Op, Piece, Space, Stretch
from .rules import ROUND_LARGE, SMALL, Rules

__all__ = ["Plan", "plan"]

WINDOWS = 40
ROUNDS = 40
FEW = 8
OP_COST = 50_000
"""Bytes that one operation weighs when plans are compared: a small move took 6.7 us, 1,753 GB/s moved (H200)."""
HOST_COST = 35
"""How many bytes moved on the card take the time of one that goes over the host and back (1,753 and 50 GB/s)."""


@dataclass(frozen=True)
class Plan:
    """Operations after which `request` bytes fit. `moved` in bytes; `how` names the strategy."""

    request: int
    how: str
    ops: tuple[Op, ...]
    moved: int
    moves: int = 0

    @property
    def parked(self) -> int:
        """Bytes that are on the host at once, at most."""
        now = most = 0
        for op in self.ops:
            now += op.size if op.kind == "park" else -op.size if op.kind == "unpark" else 0
            most = max(most, now)
        return most


class _Goal:
    """What is to be reached: a hole that serves the request, or enough free memory of the driver's."""

    def __init__(self, request: int, stream: int, rules: Rules) -> None:
        self.need = rules.block_size(request)
        self.driver = rules.from_driver(request)
        self.stream, self.small = stream, self.need <= SMALL

    def space(self, heap: Heap) -> Space:
        return heap.space(self.stream, self.small)

    def reached(self, heap: Heap) -> bool:
        return heap.driver_free >= self.driver or self.space(heap).best(self.need) is not None


def plan(
    make: Callable[[], Heap], request: int, *, stream: int = 0, host: Callable[[], int] = lambda: 0
) -> Plan | None:
    """The cheapest plan found, or None where no strategy makes `request` bytes fit.

    Parameters
    ----------
    make
        Gives the model of the heap as it is; each strategy that is tried takes one.
    stream
        Whose pool the request goes to.
    host
        Gives the bytes that may wait on the host at once; asked only where no plan on the card exists.
    """
    heap = make()
    goal = _Goal(request, stream, heap.rules)
    if goal.reached(heap):
        return Plan(goal.need, "fits", (), 0)
    found: list[Plan] = []

    def attempt(how: str, run: Callable[[Heap, _Goal], bool]) -> None:
        nonlocal heap
        if heap.ops:  # an earlier attempt has changed it
            heap = make()
        if run(heap, goal):
            found.append(_done(heap, goal, how))

    attempt("window", _window)
    if not found:
        attempt("slide", _slide_any)
        attempt("evacuate", _evacuate)
    if not found:
        attempt("evacuate", lambda h, g: _evacuate(h, g, close=False))
    room = host() if not found else 0
    if room > 0:
        attempt("out", lambda h, g: _slide_any(h, g, room))
        attempt("out", _out)
        found = [p for p in found if p.parked <= room]
    return min(found, key=_cost, default=None)


def _done(heap: Heap, goal: _Goal, how: str) -> Plan:
    return Plan(goal.need, how, tuple(heap.ops), heap.moved, heap.moves)


def _cost(one: Plan) -> int:
    over = sum(op.size for op in one.ops if op.kind == "park")
    return one.moved + OP_COST * len(one.ops) + HOST_COST * over


# -- window


def _windows(space: Space, heap: Heap, need: int) -> Iterator[tuple[int, int, Piece, Piece]]:
    """(cost, address, first, last) of each shortest row of at least `need` bytes with nothing fixed in it."""
    for stretch in heap.stretches:
        if stretch.space is not space or (stretch.expandable and not space.rules.expandable) or stretch.size < need:
            continue
        end = stretch.first
        total = live = fixed = 0
        last = end
        for piece in stretch.pieces():
            while end is not None and total < need:
                total += end.size
                live += end.need + OP_COST if end.kind == LIVE else 0
                fixed += end.kind == FIXED
                last, end = end, end.after
            if total < need:
                break
            if not fixed and last is not None:
                yield live, piece.address, piece, last
            total -= piece.size
            live -= piece.need + OP_COST if piece.kind == LIVE else 0
            fixed -= piece.kind == FIXED


def _window(heap: Heap, goal: _Goal) -> bool:
    space = goal.space(heap)
    for _, _, first, last in nsmallest(WINDOWS, _windows(space, heap, goal.need), key=lambda w: w[:2]):
        # the holes beside it are part of it: what is vacated there becomes one with them
        low = first.before if first.before is not None and first.before.kind == HOLE else first
        high = last.after if last.after is not None and last.after.kind == HOLE else last
        inside = _row(low, high)
        live = sorted((p for p in inside if p.kind == LIVE), key=lambda p: -p.need)
        room = list(space.order)
        for hole in inside:
            if hole.kind == HOLE:
                del room[bisect.bisect_left(room, (hole.size, hole.address))]
        sizes = [size for size, _ in room]
        arena = 0
        left = _place_all(space.rules, space.small, [p.need for p in live], list(sizes))
        if left:
            arena = min(-(-left // ROUND_LARGE) * ROUND_LARGE, heap.driver_free)
            parts = [one for one, _ in heap.arena_sizes(space, arena)]
            if _place_all(space.rules, space.small, [p.need for p in live], sorted(sizes + parts)):
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


def _place_all(rules: Rules, small: bool, needs: list[int], room: list[int]) -> int:
    """Bytes of `needs` (largest first) that find no place in holes of the sizes `room`, which is used up."""
    left = 0
    for need in needs:
        at = bisect.bisect_left(room, need)
        if at == len(room) or not rules.takes(room[at], need):
            left += need
            continue
        rest = rules.rest(room.pop(at), need, small)
        if rest:
            bisect.insort(room, rest)
    return left


# -- slide


def _regions(stretch: Stretch) -> Iterator[tuple[Piece, int]]:
    """(first piece, free bytes) of each row between fixed blocks; what live blocks hold beyond their need counts."""
    first: Piece | None = None
    free = 0
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


def _slide_any(heap: Heap, goal: _Goal, host: int = 0) -> bool:
    space = goal.space(heap)
    usable = [s for s in heap.stretches if s.space is space and s.size >= goal.need]
    usable = [s for s in usable if space.rules.expandable or not s.expandable]
    regions = sorted(((free, first.address, first) for s in usable for first, free in _regions(s)), key=lambda r: r[:2])
    for free, _, first in regions:
        if free < goal.need:
            continue
        # one region a try: a failed one has moved blocks, but every state is a heap as good as the one before
        if _slide(heap, first, goal.need, host) and (not heap.parked or heap.unpark()):
            if space.best(goal.need) is not None:
                return True
        elif heap.parked:
            return False
    return False


def _slide(heap: Heap, first: Piece, wanted: int = 1 << 62, host: int = 0) -> bool:
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


# -- evacuate


def _evacuate(heap: Heap, goal: _Goal, close: bool = True) -> bool:
    """Empty whole segments, cheapest first, and hand them to the driver; what is freed becomes the next target.

    With `close` a segment that is being emptied is no target for others; without, blocks go wherever they fit best.
    """
    heap.release()
    slid = False
    used: set[Space] = set()
    units = _units(heap)
    waste = _waste(units)
    best = -1
    for turn in range(ROUNDS):
        if goal.reached(heap):
            return True
        if not close and turn > 3 and heap.driver_free <= best:
            return False
        best = max(best, heap.driver_free)
        emptied = _empty_segments(heap, goal, units, close)
        if emptied:
            heap.reopen()
            heap.release()
            units = [s for s in units if not s.gone]
            used = set()
            if goal.reached(heap):
                return True
        # what is left of the driver's memory becomes the next target
        space = max((s for s in waste if s not in used), key=lambda s: (waste[s], -s.stream), default=None)
        if space is not None and heap.arena(space, heap.driver_free):
            used.add(space)  # not twice in vain
            continue
        if emptied:
            continue
        if slid:
            return False
        slid, used = True, set()  # holes are too small: pack everything once, then try again
        for stretch in sorted(heap.stretches, key=lambda s: s.live - s.size):
            if goal.reached(heap):
                break
            if (stretch.expandable and not heap.rules.expandable) or (stretch.space.small and not stretch.expandable):
                continue
            for first, free in list(_regions(stretch)):
                if free >= ROUND_LARGE:
                    _slide(heap, first)
            if stretch.expandable:
                heap.release()
        heap.release()
        units = _units(heap)
        waste = _waste(units)
    return goal.reached(heap)


def _units(heap: Heap) -> list[Stretch]:
    """What can be emptied as a whole, cheapest first: segments, and expandable ones while that setting is off."""
    units = [s for s in heap.stretches if s.blocks and not s.fixed and not (s.expandable and heap.rules.expandable)]
    units.sort(key=lambda s: ((s.live + OP_COST * s.blocks) / s.size, s.address))
    return units


def _waste(units: list[Stretch]) -> dict[Space, int]:
    """Bytes that are free in segments of each large pool: new memory lets their blocks be packed."""
    waste: dict[Space, int] = {}
    for stretch in units:
        if not stretch.space.small:
            waste[stretch.space] = waste.get(stretch.space, 0) + stretch.size - stretch.live
    return waste


def _empty_segments(heap: Heap, goal: _Goal, units: list[Stretch], close: bool) -> int:
    """One round: move the live blocks of sparse segments away; gives the bytes of the segments emptied."""
    rooms = {space: [size for size, _ in space.order] for space in heap.spaces.values()}
    least = dict.fromkeys(rooms, 1 << 62)
    for stretch in units:
        least[stretch.space] = min(least[stretch.space], stretch.least)
    reach = {space: _reach(room, least[space]) for space, room in rooms.items()}
    hopeful = {space for space, room in rooms.items() if room and room[-1] >= least[space]}
    targets: set[Stretch] = set()
    emptied = 0
    for stretch in units:
        space = stretch.space
        if space not in hopeful:
            if not hopeful:
                break
            continue
        room = rooms[space]
        if stretch.live > reach[space] or stretch.live > 0.97 * stretch.size or room[-1] < stretch.least:
            continue
        if stretch in targets or not stretch.blocks:
            continue
        pieces = list(stretch.pieces())
        live = sorted((p for p in pieces if p.kind == LIVE), key=lambda p: -p.need)
        if live[0].need > room[-1]:
            continue
        rest = list(room)
        for piece in pieces:
            if piece.kind == HOLE and piece.address in space.holes:
                del rest[bisect.bisect_left(rest, piece.size)]
        if _place_all(space.rules, space.small, [p.need for p in live], rest):
            continue
        heap.shut(stretch)
        for piece in live:
            hole = space.best(piece.need)
            if hole is None:  # it was seen to fit: not reached
                heap.reopen()
                return emptied
            targets.add(hole.stretch)
            heap.move(piece, hole)
        if not close:
            stretch.closed = False
            for hole in stretch.pieces():
                space.add(hole)
            rest = [size for size, _ in space.order]
        rooms[space] = rest
        reach[space] = _reach(rest, least[space])
        if not rest or rest[-1] < least[space]:
            hopeful.discard(space)
        emptied += stretch.size
        if heap.driver_free + (emptied if close else 0) >= goal.driver:
            break
    return emptied


def _reach(room: list[int], least: int) -> int:
    """What holes of the sizes `room` can hold at most, in blocks of `least` and above; worked out where few can."""
    first = bisect.bisect_left(room, least)
    return sum(room[first:]) if len(room) - first < FEW else 1 << 62


# -- over the host


def _out(heap: Heap, goal: _Goal) -> bool:
    """Whole segments leave for the host, as few bytes as possible, and come back packed into a new one."""
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
