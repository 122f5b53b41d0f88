"""How to make one free piece of a wanted size: four strategies on the model, the cheapest that works is taken.

window     empty the stretch of one segment that holds the fewest live bytes into holes elsewhere
slide      pack one region to its low end, through a hole that travels up
evacuate   empty sparse segments into holes, or into a new segment cut from the driver's free memory, and release them
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass

from .heap import Heap, Op, Piece
from .rules import ROUND_LARGE, SMALL, block_size, segment_size

__all__ = ["Plan", "plan"]

WINDOWS = 40
ROUNDS = 40
OP_COST = 50_000
"""Bytes that one operation weighs when plans are compared: a small move took 6.7 us, 1,753 GB/s moved (H200)."""


@dataclass(frozen=True)
class Plan:
    """Operations after which `request` bytes fit. `moved` in bytes; `how` names the strategy."""

    request: int
    how: str
    ops: tuple[Op, ...]
    moved: int

    @property
    def moves(self) -> int:
        """How many blocks are moved."""
        return sum(op.kind == "move" for op in self.ops)


def plan(heap: Heap, request: int) -> Plan | None:
    """The cheapest plan found, or None where none of the strategies makes `request` bytes fit."""
    need = block_size(request)
    if heap.largest() >= need or heap.driver_free >= segment_size(need):
        return Plan(need, "fits", (), 0)
    found = _window(heap, need)
    if found is None:
        tries = [("slide", _slide_any(heap, need)), ("evacuate", _evacuate(heap, need, close=True))]
        if not any(h for _, h in tries):
            tries.append(("evacuate", _evacuate(heap, need, close=False)))
        done = [(how, h) for how, h in tries if h is not None]
        if not done:
            return None
        how, best = min(done, key=lambda t: t[1].moved + OP_COST * len(t[1].ops))
    else:
        how, best = "window", found
    return Plan(need, how, tuple(best.ops), best.moved)


def _windows(heap: Heap, need: int) -> list[tuple[int, int, int, int]]:
    """(live bytes, segment, low, high) of each shortest stretch of at least `need` bytes with nothing fixed in it."""
    found = []
    for index, segment in enumerate(heap.segments):
        j = total = live = fixed = 0
        for piece in segment:
            while j < len(segment) and total < need:
                total += segment[j].size
                live += segment[j].size if segment[j].kind == "live" else 0
                fixed += segment[j].kind == "fixed"
                j += 1
            if total >= need and not fixed:
                found.append((live, index, piece.address, segment[j - 1].address + segment[j - 1].size))
            total -= piece.size
            live -= piece.size if piece.kind == "live" else 0
            fixed -= piece.kind == "fixed"
    return sorted(found)


def _window(heap: Heap, need: int) -> Heap | None:
    for _, index, low, high in _windows(heap, need)[:WINDOWS]:
        room = sorted(
            (r.size, r.segment, heap.segments[r.segment][r.first].address) for r in heap.runs((index, low, high))
        )
        inside = [p for p in heap.segments[index] if low <= p.address < high and p.kind == "live"]
        inside.sort(key=lambda p: -p.need)
        if inside and (not room or room[-1][0] < inside[0].need or sum(r[0] for r in room) < _needs(inside)):
            continue
        trial = heap.copy()
        if _fit_all(trial, index, inside, room) and trial.largest() >= need:
            return trial
    return None


def _needs(pieces: list[Piece]) -> int:
    return sum(p.need for p in pieces)


def _fit_all(trial: Heap, index: int, pieces: list[Piece], room: list[tuple[int, int, int]]) -> bool:
    """Move `pieces` (largest first) of segment `index` into `room`, best fit; False when one finds no place."""
    for piece in pieces:
        at = bisect.bisect_left(room, (piece.need,))
        if at == len(room):
            return False
        size, segment, address = room.pop(at)
        source = trial.segments[index][trial.find(index, piece.address)]
        first = trial.find(segment, address)
        run = next(r for r in trial.runs_of(segment) if r.first <= first < r.last)
        if run.first != first or run.size != size:  # a neighbour was vacated meanwhile: take the row up to its old end
            last, width = first, 0
            while last < run.last and width < size:
                width += trial.segments[segment][last].size
                last += 1
            run = run._replace(first=first, last=last, size=width)
        trial.move(index, source, run)
        if size - piece.need > SMALL:
            bisect.insort(room, (size - piece.need, segment, address + piece.need))
    return True


def _regions(heap: Heap) -> Iterator[tuple[int, int, int, int]]:
    """(segment, low, high, free bytes) of each stretch between fixed blocks."""
    for index, segment in enumerate(heap.segments):
        i = 0
        while i < len(segment):
            if segment[i].kind == "fixed":
                i += 1
                continue
            j = i
            while j < len(segment) and segment[j].kind != "fixed":
                j += 1
            free = sum(p.size for p in segment[i:j] if p.kind == "filler")
            yield index, segment[i].address, segment[j - 1].address + segment[j - 1].size, free
            i = j


def _slide_any(heap: Heap, need: int) -> Heap | None:
    for index, low, high, free in sorted(_regions(heap), key=lambda r: r[3]):
        if free >= need:
            trial = heap.copy()
            if _slide(trial, index, low, high) and trial.largest() >= need:
                return trial
    return None


def _slide(heap: Heap, index: int, low: int, high: int) -> bool:
    """Pack the live blocks of one region at its low end. False when no hole can be made wide enough to travel."""
    segment = heap.segments[index]
    while True:  # the first hole must hold the largest block that will slide through it
        first = next((r for r in heap.runs_of(index) if low <= segment[r.first].address < high), None)
        if first is None:
            return True
        behind = [p for p in segment[first.last :] if p.address < high and p.kind == "live"]
        if not behind:
            return True
        if first.size >= max(p.need for p in behind):
            break
        out = heap.best_run(behind[0].need, (index, low, high))
        if out is None and heap.driver_free >= segment_size(behind[0].need):
            heap.arena(segment_size(behind[0].need))
            out = heap.best_run(behind[0].need, (index, low, high))
        if out is None:
            return False
        heap.move(index, behind[0], out)
    while True:
        hole = next((r for r in heap.runs_of(index) if low <= segment[r.first].address < high), None)
        if hole is None or hole.last >= len(segment) or segment[hole.last].address >= high:
            return True
        piece = segment[hole.last]
        if piece.kind != "live" or hole.size < piece.need:
            return piece.kind == "fixed"
        heap.move(index, piece, hole)


def _evacuate(heap: Heap, need: int, close: bool) -> Heap | None:
    """Empty whole segments, sparsest first, and hand them to the driver; what is freed becomes the next target.

    With `close` a segment that is being emptied is no target for others; without, blocks go wherever they fit best.
    """
    wanted = segment_size(need)
    trial = heap.copy()
    trial.release()
    slid, best = False, -1
    for turn in range(ROUNDS):
        if trial.driver_free >= wanted:
            return trial
        if not close and turn > 3 and trial.driver_free <= best:
            return None
        best = max(best, trial.driver_free)
        largest = max((p.need for s in trial.segments for p in s if p.kind == "live"), default=0)
        if trial.driver_free >= ROUND_LARGE and trial.driver_free > largest:
            trial.arena(trial.driver_free // ROUND_LARGE * ROUND_LARGE)
        emptied = _empty_segments(trial, wanted, close)
        trial.closed = set()
        trial.release()
        if not emptied:
            if slid:
                break
            slid = True  # holes too small: pack every region once, then try again
            for index, low, high, free in list(_regions(trial)):
                if free:
                    _slide(trial, index, low, high)
    return trial if trial.driver_free >= wanted else None


def _empty_segments(trial: Heap, wanted: int, close: bool) -> int:
    """One round: move the live blocks of sparse segments away; gives the bytes of the segments emptied."""
    candidates = [
        i
        for i, s in enumerate(trial.segments)
        if s and not any(p.kind == "fixed" for p in s) and any(p.kind == "live" for p in s)
    ]
    candidates.sort(key=lambda i: trial.live_bytes(i) / trial.size(i))
    targets: set[int] = set()
    free = sorted(r.size for r in trial.runs())
    emptied = 0
    for index in candidates:
        if index in targets or trial.live_bytes(index) > 0.97 * trial.size(index):
            continue
        room = list(free)
        for run in trial.runs_of(index):
            room.pop(bisect.bisect_left(room, run.size))
        live = sorted((p for p in trial.segments[index] if p.kind == "live"), key=lambda p: -p.need)
        if not _would_fit(live, room):
            continue
        if close:
            trial.closed.add(index)
        for piece in live:
            target = trial.best_run(piece.need, None if close else (index, 0, 1 << 62))
            if target is None:  # the sizes said that it fits; where rows merged otherwise, stop here
                return emptied
            targets.add(target.segment)
            trial.move(index, piece, target)
        free = room if close else sorted(r.size for r in trial.runs())
        emptied += trial.size(index)
        if trial.driver_free + (emptied if close else 0) >= wanted:
            break
    return emptied


def _would_fit(live: list[Piece], room: list[int]) -> bool:
    """Whether the pieces (largest first) fit best-fit into rows of the sizes `room`, which is used up."""
    for piece in live:
        at = bisect.bisect_left(room, piece.need)
        if at == len(room):
            return False
        rest = room.pop(at) - piece.need
        if rest > SMALL:
            bisect.insort(room, rest)
    return True
