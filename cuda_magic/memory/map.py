"""``%gpu_mem --map``: a picture of the allocator's segments, the largest piece that fits now and after compaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..machine import machine
from ..render.blocks import Bar, Block, Legend, Part, Text, Title
from ..render.palette import look
from ..render.units import bytes_text
from ..result import Result
from .allocator import Segment, Stats, largest_free

if TYPE_CHECKING:
    from .allocator import Allocator

__all__ = ["HeapMap", "Map", "heap_map"]

WIDE = 64
"""Characters of the longest segment in text."""
SHOWN = 24
"""Segments drawn, the largest ones; the others are summed up."""
PIECES = 200
"""Pieces of one segment's bar; of a segment cut finer each shows what most of its bytes are."""
_LOOKS = {"live": "live", "cached": "cached", "lost": "fragmented", "pending": "pending"}
"""Each state of a block with its look, in the legend's order."""
MIB = 1 << 20


@dataclass(frozen=True)
class HeapMap:
    """One device."""

    cuda: int
    stats: Stats
    segments: tuple[Segment, ...]
    fits: int
    """Bytes of the largest request that finds room now: in a free block, or from the driver."""
    largest_block: int
    """Bytes of the largest free block in the allocator's hands."""
    driver_free: int | None
    compacted: int | None = None
    """Bytes of the largest request that would fit after compaction; None where compaction is not possible."""
    reason: str = ""
    """Why compaction is not possible."""


@dataclass(frozen=True, repr=False)
class Map(Result):
    """The segments of each device in use."""

    devices: tuple[HeapMap, ...]
    label: str = ""
    note: str = field(default="")

    def rows(self) -> list[dict[str, Any]]:
        """One row a block."""
        return [
            {
                "cuda": d.cuda,
                "segment": i,
                "pool": s.pool,
                "offset": b.address - s.address,
                "size": b.size,
                "state": _state(s, b.state),
                "expandable": s.expandable,
            }
            for d in self.devices
            for i, s in enumerate(d.segments)
            for b in s.blocks
        ]

    def blocks(self) -> Sequence[Block]:
        blocks: list[Block] = [Title("Segments of the caching allocator", self.label)]
        for device in self.devices:
            stats = device.stats
            count = len(device.segments)
            blocks.append(
                Text(
                    f"cuda:{device.cuda}: {bytes_text(stats.reserved)} in {count} segments,"
                    f" {bytes_text(stats.allocated)} live, {bytes_text(stats.cached)} free in them"
                    f" ({bytes_text(min(stats.inactive_split, stats.cached))} beside live blocks)"
                )
            )
            if device.segments:
                blocks += _picture(device)
            after = "" if device.compacted is None else f"; after compaction {bytes_text(device.compacted)}"
            blocks.append(Text(f"The largest tensor that fits now: {bytes_text(device.fits)}{after}"))
            if device.reason:
                blocks.append(Text(f"Compaction is not possible here: {device.reason}"))
            blocks.append(
                Text(
                    f"cudaMalloc calls {stats.device_mallocs}, retries after emptying the cache {stats.retries},"
                    f" out-of-memory errors {stats.ooms}"
                )
            )
        if self.note:
            blocks.append(Text(self.note))
        return blocks


def _state(segment: Segment, state: str) -> str:
    """``live``, ``pending``, ``cached`` (a segment free as a whole) or ``lost`` (free beside live blocks)."""
    if state != "free":
        return state
    return "cached" if all(b.state == "free" for b in segment.blocks) else "lost"


def _drawn(device: HeapMap) -> list[Segment]:
    chosen = sorted(device.segments, key=lambda s: -s.size)[:SHOWN]
    return sorted(chosen, key=lambda s: (-s.size, s.address))


def _picture(device: HeapMap) -> list[Block]:
    """A bar for each segment, how many are not drawn, and the legend."""
    drawn = _drawn(device)
    longest = max(s.size for s in drawn)
    blocks: list[Block] = []
    for segment in drawn:
        kind = f"{segment.pool}{', expandable' if segment.expandable else ''}"
        label = bytes_text(segment.size).rjust(11)
        blocks.append(Bar(label, _pieces(segment), segment.size, kind, segment.size / longest, WIDE))
    rest = device.segments
    if len(rest) > len(drawn):
        left = sum(s.size for s in rest) - sum(s.size for s in drawn)
        blocks.append(Text(f"{len(rest) - len(drawn)} smaller segments, {bytes_text(left)} in all, are not drawn"))
    used = {_state(s, b.state) for s in drawn for b in s.blocks}
    return [*blocks, Legend(tuple(name for state, name in _LOOKS.items() if state in used))]


def _pieces(segment: Segment) -> list[Part]:
    """The segment's blocks as parts of a bar: neighbours of one state are one."""
    runs: list[tuple[str, int]] = []
    for block in segment.blocks:
        _join(runs, _state(segment, block.state), block.size)
    if len(runs) > PIECES:
        runs = _coarse(runs, segment.size // PIECES + 1)
    return [Part(one.words, size, one.mark, one.id) for one, size in ((look(_LOOKS[state]), n) for state, n in runs)]


def _join(runs: list[tuple[str, int]], state: str, size: int) -> None:
    if runs and runs[-1][0] == state:
        size += runs.pop()[1]
    runs.append((state, size))


def _coarse(runs: list[tuple[str, int]], step: int) -> list[tuple[str, int]]:
    """Pieces of `step` bytes, each of the state that most of its bytes have."""
    made: list[tuple[str, int]] = []
    held: dict[str, int] = {}
    for state, size in runs:
        left = size
        while left:
            part = min(left, step - sum(held.values()))
            held[state] = held.get(state, 0) + part
            left -= part
            if sum(held.values()) == step:
                _join(made, max(held, key=held.__getitem__), step)
                held = {}
    if held:
        _join(made, max(held, key=held.__getitem__), sum(held.values()))
    return made


def heap_map() -> Map:
    """The map now. Reads only: what compaction would give is worked out on a model, and no cache is emptied."""
    here = machine()
    allocator = here.allocator()
    if allocator is None:
        return Map((), here.label, "torch is not imported in this kernel: there are no segments.")
    if not allocator.started():
        return Map((), here.label, f"{allocator.name} has not started CUDA in this kernel: there are no segments.")
    return Map(tuple(_one(allocator, d) for d in allocator.devices()), allocator.label)


def _one(allocator: Allocator, device: int) -> HeapMap:
    segments = allocator.segments(device)
    stats = allocator.stats(device)
    driver = allocator.driver_memory(device)
    free = driver[0] if driver else None
    limit = allocator.memory_limit(device)
    if free is not None and limit is not None:
        free = max(0, min(free, limit - stats.reserved))
    whole = sum(s.size for s in segments if s.pool_id == (0, 0) and all(b.state == "free" for b in s.blocks))
    block = largest_free(segments)
    # the allocator gives whole free segments back before it fails, so they count with the driver's free memory
    fits = max(block, (free or 0) + whole)
    compacted, reason = _compacted(allocator, device, segments, (free or 0) + whole, fits)
    return HeapMap(device, stats, segments, fits, block, free, compacted, reason)


def _compacted(
    allocator: Allocator, device: int, segments: tuple[Segment, ...], free: int, fits: int
) -> tuple[int | None, str]:
    """(largest request after compaction, why there is none), found by halving on the planner's model."""
    from .compaction import HEADROOM
    from .compaction.heap import Heap
    from .compaction.plan import plan

    refused = allocator.moving_refused(device)
    if refused:
        return None, refused
    busy = [s for s in segments if any(b.state != "free" for b in s.blocks)]
    storages = allocator.storages(device)
    room, rules = max(0, free - HEADROOM), allocator.rules()

    def make() -> Heap:
        heap = Heap.of(busy, storages, room, rules)
        heap.release()  # free pages of expandable segments
        return heap

    def possible(request: int) -> bool:
        return plan(make, request) is not None

    low = max(fits // MIB, 0)
    high = (free + sum(b.size for s in busy for b in s.blocks if b.state == "free")) // MIB
    for _ in range(12):
        if high - low <= max(1, low // 100):
            break
        middle = (low + high) // 2
        if possible(middle * MIB):
            low = middle
        else:
            high = middle
    return max(low * MIB, fits), ""
