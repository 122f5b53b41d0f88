"""Compaction: live tensors are moved together on the card itself, so that scattered free memory becomes one piece.

Planned beforehand on a model of the allocator (heap.py, plan.py), done only if the plan says that the request will
fit, and replayed with every address checked (replay.py). A move keeps the storage object, so every tensor, view and
parameter follows; data is valid at every step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .heap import Heap
from .plan import Plan, plan
from .replay import Diverged, replay
from .rules import block_size, segment_size

if TYPE_CHECKING:
    from ..allocator import Allocator, Storage

__all__ = ["Outcome", "Plan", "block_size", "compact", "predict", "segment_size"]

HEADROOM = 16 << 20
"""Bytes of the driver's free memory that a plan leaves alone: kernels load lazily and need device memory (H200)."""


@dataclass(frozen=True)
class Outcome:
    """What a compaction did. `moved` in bytes, `seconds` all in all, `reason` one sentence where it did nothing."""

    done: bool
    reason: str = ""
    moved: int = 0
    moves: int = 0
    seconds: float = 0.0
    how: str = ""


def _prepare(
    allocator: Allocator, device: int, request: int, anyway: bool
) -> tuple[Plan | None, dict[int, Storage], str]:
    """(plan, storages by key, why there is no plan). The storages keep memory alive: drop them before measuring."""
    refused = allocator.moving_refused(device, anyway=anyway)
    if refused:
        return None, {}, refused
    allocator.empty_cache()  # whole free segments go back to the driver, so that the model starts from what is left
    storages = {s.key: s for s in allocator.storages(device, anyway=anyway)}
    driver = allocator.driver_memory(device)
    free = driver[0] if driver else 0
    segments = allocator.segments(device)
    limit = allocator.memory_limit(device)
    if limit is not None:
        free = min(free, limit - sum(s.size for s in segments))
    if any(s.pool_id[0] > 0 for s in segments):
        return None, {}, "a CUDA graph's pool is alive, and the graph remembers addresses"
    if any(s.expandable for s in segments):
        return None, {}, "segments are expandable: their pages follow other rules"
    heap = Heap.of(segments, storages.values(), max(0, free - HEADROOM))
    found = plan(heap, request)
    if found is not None:
        return found, storages, ""
    fixed = [s for s in storages.values() if s.reason]
    reason = "no arrangement of the live blocks leaves room for the request"
    if fixed:
        reason += f" ({len(fixed)} may not be moved: {fixed[0].reason})"
    return None, {}, reason


def predict(allocator: Allocator, device: int, request: int) -> Plan | None:
    """The plan after which `request` bytes fit on `device`, or None; moves nothing (but empties the cache)."""
    return _prepare(allocator, device, request, False)[0]


def compact(allocator: Allocator, device: int, request: int, *, anyway: bool = False) -> Outcome:
    """Make one free piece of `request` bytes on `device`, if a plan says that this will succeed.

    With `anyway` also where an address may be remembered elsewhere.
    """
    started = time.perf_counter()
    found, storages, reason = _prepare(allocator, device, request, anyway)
    if found is None:
        return Outcome(False, reason, seconds=time.perf_counter() - started)
    try:
        replay(found, allocator, device, storages)
    except Diverged as error:
        return Outcome(
            False, f"stopped, all data in place: {error}", found.moved, found.moves, time.perf_counter() - started
        )
    return Outcome(True, "", found.moved, found.moves, time.perf_counter() - started, found.how)
