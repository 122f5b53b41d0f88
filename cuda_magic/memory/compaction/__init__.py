"""Compaction: live tensors are moved together on the card itself, so that scattered free memory becomes one piece.

Planned beforehand (plan.py and the strategies it tries) on a model of the allocator (heap.py), done only if the plan
says that the request will fit, and replayed with every address checked (replay.py). A move keeps the storage object, so
every tensor, view and parameter follows; data is valid at every step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .heap import Heap
from .plan import Plan, plan
from .replay import Diverged, collector_paused, replay
from .rules import HEADROOM, UNLIMITED, Rules, block_size, segment_size

if TYPE_CHECKING:
    from ..allocator import Allocator, Survey

__all__ = ["HEADROOM", "Outcome", "Plan", "Rules", "block_size", "compact", "predict", "segment_size"]

TRIES = 2
"""A plan that was stopped (something was still in use by another stream) is made anew once."""


@dataclass(frozen=True)
class Outcome:
    """What a compaction did. `moved` in bytes, `seconds` all in all, `reason` one sentence where it did nothing."""

    done: bool
    reason: str = ""
    moved: int = 0
    moves: int = 0
    seconds: float = 0.0
    how: str = ""
    parked: int = 0
    """Bytes that went over the host and back."""
    planning: float = 0.0
    """Seconds for finding the plan."""
    refused: str = ""
    """Why nothing may be moved at all; nothing was tried then."""


def _plan(allocator: Allocator, found: Survey, request: int) -> tuple[Plan | None, str]:
    """(plan, why there is none)."""
    if found.refused:
        return None, found.refused
    rules = found.rules
    if rules.expandable and (rules.rounds or rules.max_split < UNLIMITED):
        return None, "expandable segments together with max_split_size_mb or roundup_power2_divisions are not planned"

    def make() -> Heap:
        return Heap.of(found.segments, found.storages, max(0, found.free), rules)

    chosen = plan(make, request, stream=found.stream, host=allocator.host_room)
    if chosen is not None:
        return chosen, ""
    fixed = [s for s in found.storages if s.reason]
    reason = "no arrangement of the live blocks leaves room for the request"
    if fixed:
        reason += f" ({len(fixed)} may not be moved: {fixed[0].reason})"
    return None, reason


def predict(allocator: Allocator, device: int, request: int) -> Plan | None:
    """The plan after which `request` bytes fit on `device`, or None; moves nothing (but empties the cache)."""
    with collector_paused():
        return _plan(allocator, allocator.survey(device), request)[0]


def compact(allocator: Allocator, device: int, *requests: int) -> Outcome:
    """Make one free piece on `device`, if a plan says that this will succeed.

    Parameters
    ----------
    requests
        Bytes; the first for which there is a plan is taken.
    """
    with collector_paused():
        return _compact(allocator, device, requests)


def _compact(allocator: Allocator, device: int, requests: tuple[int, ...]) -> Outcome:
    started = time.perf_counter()
    outcome = Outcome(False)
    for _ in range(TRIES):
        found = allocator.survey(device)
        surveyed = time.perf_counter()
        if found.refused and not outcome.reason:
            return Outcome(False, found.refused, seconds=surveyed - started, refused=found.refused)
        chosen, reason = None, ""
        for request in requests:
            chosen, reason = _plan(allocator, found, request)
            if chosen is not None:
                break
        now = time.perf_counter()
        if chosen is None:
            return Outcome(False, outcome.reason or reason, seconds=now - started, planning=now - surveyed)
        error = None
        try:
            replay(chosen, allocator, device, {s.key: s for s in found.storages})
        except Diverged as diverged:
            error = str(diverged)
        outcome = Outcome(
            error is None,
            f"stopped, all data in place: {error}" if error else "",
            chosen.moved,
            chosen.moves,
            time.perf_counter() - started,
            chosen.how,
            chosen.parked,
            now - surveyed,
        )
        if outcome.done:
            break
    return outcome
