"""``%gpu_mem --map``: a picture of the allocator's segments, the largest piece that fits now and after compaction."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..machine import machine
from ..render.blocks import Block, Picture, Text, Title
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
_LOOK = {"live": ("#", "#3b7dd8"), "pending": ("p", "#b07cc6"), "cached": ("+", "#8fb8ee"), "lost": ("~", "#d98b3a")}
_WORDS = {"live": "live", "pending": "freed, still used by a stream", "cached": "cached", "lost": "shut in"}
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
                blocks.append(Picture(_svg(device), _text(device)))
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


def _text(device: HeapMap) -> str:
    drawn = _drawn(device)
    longest = max(s.size for s in drawn)
    lines = []
    for segment in drawn:
        cells = max(1, round(WIDE * segment.size / longest))
        row, done = "", 0
        for block in segment.blocks:
            done += block.size
            row += _LOOK[_state(segment, block.state)][0] * (round(done / segment.size * cells) - len(row))
        kind = f"{segment.pool}{', expandable' if segment.expandable else ''}"
        lines.append(f"{bytes_text(segment.size).rjust(11)} |{row}| {kind}")
    rest = len(device.segments) - len(drawn)
    if rest:
        lines.append(f"{rest} smaller segments are not drawn")
    used = {_state(s, b.state) for s in drawn for b in s.blocks}
    lines.append("  ".join(f"{mark} {_WORDS[name]}" for name, (mark, _) in _LOOK.items() if name in used))
    return "\n".join(lines)


def _svg(device: HeapMap) -> str:
    drawn = _drawn(device)
    longest = max(s.size for s in drawn)
    high, left, wide = 18, 90, 520
    parts = []
    for row, segment in enumerate(drawn):
        top = row * high
        parts.append(
            f'<text x="{left - 6}" y="{top + 12}" font-size="11" text-anchor="end" fill="currentColor">'
            f"{html.escape(bytes_text(segment.size))}</text>"
        )
        for block in segment.blocks:
            state = _state(segment, block.state)
            x = left + (block.address - segment.address) / longest * wide
            width = max(block.size / longest * wide, 0.4)
            parts.append(
                f'<rect x="{x:.1f}" y="{top + 2}" width="{width:.1f}" height="{high - 5}" fill="{_LOOK[state][1]}">'
                f"<title>{bytes_text(block.size)} {_WORDS[state]}</title></rect>"
            )
        parts.append(
            f'<rect x="{left}" y="{top + 2}" width="{segment.size / longest * wide:.1f}" height="{high - 5}"'
            ' fill="none" stroke="currentColor" stroke-width="0.6"/>'
        )
    end = len(drawn) * high
    for i, (name, (_, colour)) in enumerate(_LOOK.items()):
        x = left + i * 130
        parts.append(f'<rect x="{x}" y="{end + 5}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="{end + 14}" font-size="11" fill="currentColor">{_WORDS[name]}</text>')
    words = html.escape(f"cuda:{device.cuda}: " + _text(device).splitlines()[-1])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + wide + 60}" height="{end + 22}" role="img"'
        f' aria-label="{words}">{"".join(parts)}</svg>'
    )


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
