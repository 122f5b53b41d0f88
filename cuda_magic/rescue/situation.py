"""What a rung looks at: the fault, the device, what is free there and what the statement needs."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..devices.processes import this_process
from ..memory.allocator import largest_free
from ..memory.compaction.rules import DEFAULT
from .classify import Fault
from .options import GuardOptions

if TYPE_CHECKING:
    from ..devices.model import Device, Reading
    from ..memory.allocator import Allocator

__all__ = ["Room", "Situation", "device_of", "own_device", "room_of"]

CONTEXT = 700 << 20
"""Bytes a process needs before its first tensor: 617 MiB were measured on an H200 (CUDA 13)."""


@dataclass(frozen=True)
class Room:
    """One device at one moment, in bytes; `driver` is what this process may still take from the driver."""

    allocated: int
    reserved: int
    driver: int
    cached: int
    """Free inside the caching allocator's ordinary segments."""
    largest: int
    """The largest free block there."""
    pools: int = 0
    """Reserved in private pools of CUDA graphs and MemPools."""
    lost: int = 0
    """Of `cached`, what lies between live blocks of the same segment: fragmentation."""

    @property
    def total(self) -> int:
        return self.driver + self.cached


def room_of(allocator: Allocator | None, device: int | None) -> Room | None:
    """What is free now; None where nothing can be read (no library, not started, context lost)."""
    if allocator is None or device is None or device not in allocator.devices():
        return None
    try:
        driver = allocator.driver_memory(device)
    except Exception:  # noqa: BLE001 - a lost context: nothing can be read
        return None
    if driver is None:
        return None
    stats = allocator.stats(device)
    limit = allocator.memory_limit(device)
    free = driver[0] if limit is None else max(0, min(driver[0], limit - stats.reserved))
    segments = allocator.segments(device)
    ordinary = [s for s in segments if s.pool_id == (0, 0)]
    pieces = [(sum(b.size for b in s.blocks if b.state == "free"), s.size) for s in ordinary]
    cached = sum(size for size, _ in pieces) if segments else stats.cached
    lost = sum(size for size, whole in pieces if size < whole)
    return Room(stats.allocated, stats.reserved, free, cached, largest_free(ordinary), stats.private_pools, lost)


def device_of(fault: Fault, allocator: Allocator | None) -> int | None:
    """The device that the error names, else the fullest one in use."""
    if fault.sizes.device is not None:
        return fault.sizes.device
    if allocator is None:
        return None
    shares = []
    for device in allocator.devices():
        try:
            memory = allocator.driver_memory(device)
        except Exception:  # noqa: BLE001 - a lost context
            continue
        if memory is not None and memory[1]:
            shares.append((memory[0] / memory[1], device))
    return min(shares)[1] if shares else None


def own_device(reading: Reading, index: int | None, allocator: Allocator | None = None) -> Device | None:
    """The reading of this process's cuda device `index`; None where the two numberings cannot be matched.

    Without an index, as where the first tensor of a process fails: the fullest of those that it sees.
    """
    from ..memory.split import cuda_to_reading

    cards = [d for d in reading.devices if d.parent is None]
    if len(cards) == 1 and index in (None, 0):
        return cards[0]
    at = cuda_to_reading(reading, allocator)
    if index is None:
        seen = [(d.memory.free, d.index, d) for d in cards if d.index in at and d.memory.free is not None]
        return min(seen)[2] if seen else None
    if index >= len(at):
        return None
    return next((d for d in cards if d.index == at[index]), None)


@dataclass
class Situation:
    """One failure of one statement. Sizes in bytes."""

    fault: Fault
    options: GuardOptions
    allocator: Allocator | None
    device: int | None
    namespace: dict[str, Any]
    shell: Any = None
    held: int | None = None
    """Allocated at the moment of the failure."""
    need: int | None = None
    """What the statement took until it failed, and the request: it needs at least this."""
    stuck: bool = False
    """The repeat failed with the same request and the same allocated bytes."""
    spent: bool = False
    """No repeat is left but those that change what the statement asks for."""
    read_before: frozenset[str] = frozenset()
    """Names that earlier statements of the cell read."""
    memory: dict[str, Any] = field(default_factory=dict)
    """What rungs keep between two failures of one statement."""
    node: ast.stmt | None = None
    """The statement; None for a function of a script."""
    roots: tuple[Any, ...] = ()
    """A script's function and its arguments."""
    enter: Callable[[AbstractContextManager[Any]], Any] | None = None
    """Puts a setting in force for the repeat."""
    after: Callable[[Callable[[], tuple[str, int]]], None] | None = None
    """Takes what is called when the attempt is over, twice if interrupted: a note for the report, and how many of the
    allocator's errors were the rung's own."""
    say: Callable[[str], None] = lambda text: None
    readings: Callable[[], Reading | None] = lambda: None

    @property
    def request(self) -> int | None:
        return self.fault.sizes.requested

    def room(self) -> Room | None:
        return room_of(self.allocator, self.device)

    def enough(self) -> bool | None:
        """Whether the statement would find what it needs now; None where this cannot be known."""
        request = self.request
        room = self.room()
        if room is None or request is None:
            return None
        if not self.fault.torch_allocator:
            return room.driver >= request
        rules = self.allocator.rules() if self.allocator is not None else DEFAULT
        fits = room.largest >= rules.block_size(request) or room.driver >= rules.from_driver(request)
        return fits and room.total >= (self.need or request)

    def measure_again(self) -> None:
        """What a repeat left to the collector was its own: it will need that much again."""
        room = self.room()
        if room is not None and self.request is not None and self.held is not None:
            self.need = max(self.need or 0, self.request + max(0, self.held - room.allocated))

    def names(self) -> Mapping[str, Any]:
        """The user's variables."""
        return {n: v for n, v in self.namespace.items() if type(n) is str and not n.startswith("_")}

    def reading(self) -> Device | None:
        """NVML's view of the device."""
        reading = self.readings()
        return own_device(reading, self.device, self.allocator) if reading is not None else None

    def own_process(self, listed: Mapping[int, int | None]) -> int | None:
        """Which of the processes {pid: bytes} is this one; None where it cannot be known."""
        room = self.room()
        if room is None:  # its own pid decides; without figures of torch's nothing else tells
            return os.getpid() if os.getpid() in listed else None
        return this_process(listed, room.reserved)

    def others(self) -> int | None:
        """Bytes that other processes hold on the device; None where nobody tells."""
        card = self.reading()
        sizes = self.fault.sizes
        if card is not None and card.processes is not None and card.memory.used is not None:
            listed = {p.pid: p.used for p in card.processes}
            pid = self.own_process(listed)
            own = listed[pid] if pid is not None else None
            if own is not None:
                return max(0, card.memory.used - own)
            named = [used for used in listed.values() if used is not None]
            if sizes.own is None and self.allocator is not None and not self.allocator.devices():
                return sum(named) or card.memory.used
        if sizes.processes:
            told = dict(sizes.processes)
            pid = self.own_process(told) if sizes.own is None else None
            return sum(size for one, size in told.items() if one != pid)
        if sizes.own is not None and sizes.capacity is not None and sizes.free is not None:
            return max(0, sizes.capacity - sizes.free - sizes.own)
        return None
