"""Empty sparse segments of any pool into holes, or into a new one from the driver's free memory; release them."""

from __future__ import annotations

from .goal import OP_COST, Goal, take
from .heap import Heap
from .pieces import HOLE, LIVE, Space, Stretch
from .rules import ROUND_LARGE, UNLIMITED
from .slide import regions, slide

__all__ = ["evacuate"]

ROUNDS = 40
FEW = 8


def evacuate(heap: Heap, goal: Goal, close: bool = True) -> bool:
    """Empty whole segments, cheapest first, and hand them to the driver; what is freed becomes the next target.

    With `close` a segment that is being emptied is no target for others; without, blocks go wherever they fit best.
    """
    heap.release()
    slid = False
    used: set[Space] = set()
    units = _units(heap)
    waste, least = _waste(units), _least(units)
    best = -1
    for turn in range(ROUNDS):
        if goal.reached(heap):
            return True
        if not close and turn > 3 and heap.driver_free <= best:
            return False
        best = max(best, heap.driver_free)
        emptied = _empty_segments(heap, goal, units, least, close)
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
            for first, free in list(regions(stretch)):
                if free >= ROUND_LARGE:
                    slide(heap, first)
            if stretch.expandable:
                heap.release()
        heap.release()
        units = _units(heap)
        waste, least = _waste(units), _least(units)
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


def _least(units: list[Stretch]) -> dict[Space, int]:
    """No block in the segments of each pool needs less."""
    least: dict[Space, int] = {}
    for stretch in units:
        if stretch.least < least.get(stretch.space, UNLIMITED):
            least[stretch.space] = stretch.least
    return least


def _empty_segments(heap: Heap, goal: Goal, units: list[Stretch], least: dict[Space, int], close: bool) -> int:
    """One round: move the live blocks of sparse segments away; gives the bytes of the segments emptied."""
    # sizes of the holes, ascending, that a block can go into
    rooms = {space: space.sizes(need) for space, need in least.items()}
    reach = {space: _reach(room) for space, room in rooms.items()}
    hopeful = {space for space, room in rooms.items() if room}
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
        own = [p.size for p in pieces if p.kind == HOLE and p.size >= least[space] and p.address in space.holes]
        if take(space, [p.need for p in live], own, room):
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
            heap.reopen()
            room = rooms[space] = space.sizes(least[space])
        reach[space] = _reach(room)
        if not room:
            hopeful.discard(space)
        emptied += stretch.size
        if heap.driver_free + (emptied if close else 0) >= goal.driver:
            break
    return emptied


def _reach(room: list[int]) -> int:
    """What holes of the sizes `room` can hold at most; worked out where they are few."""
    return sum(room) if len(room) < FEW else UNLIMITED
