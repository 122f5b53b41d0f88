"""A practice card: what the driver hands out of one card's memory, to whom, and what stands in it."""

from __future__ import annotations

import bisect
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ..allocation.native import CARD
from ..devices.model import Device, Memory, Process
from .errors import error

__all__ = ["GRANULE", "Card", "Contents", "OtherProcess"]

MIB = 1 << 20
GRANULE = 2 * MIB
"""The driver gives memory in multiples of this (cudaMalloc on an H200)."""
CHUNK = 32 * MIB
"""Stretches of large segments whose memory can be exchanged, as the native shim makes them."""
CHUNKED = 20 * MIB
"""Segments from this size on are made of such stretches."""
_BASE = 0x7F_0000_0000_00
_PER_DEVICE = 1 << 42


class Contents:
    """What each byte of a card was last filled with, kept as stretches, so that gigabytes cost nothing."""

    def __init__(self) -> None:
        self._stretches: list[tuple[int, int, int]] = []  # (first, end, value), in order of address

    def write(self, address: int, nbytes: int, value: int) -> None:
        self._put([(address, address + nbytes, value)], address, address + nbytes)

    def copy(self, source: int, target: int, nbytes: int) -> None:
        shift = target - source
        found = [(a + shift, b + shift, v) for a, b, v in self.read(source, nbytes)]
        self._put(found, target, target + nbytes)

    def read(self, address: int, nbytes: int) -> list[tuple[int, int, int]]:
        """(first, end, value) of what was written inside a range."""
        end = address + nbytes
        return [(max(a, address), min(b, end), v) for a, b, v in self._stretches if a < end and b > address]

    def total(self, address: int, nbytes: int) -> int:
        """The sum of a range's bytes; a byte that was never written counts 0."""
        return sum((b - a) * v for a, b, v in self.read(address, nbytes))

    def _put(self, new: list[tuple[int, int, int]], first: int, end: int) -> None:
        kept: list[tuple[int, int, int]] = []
        for a, b, v in self._stretches:
            if b <= first or a >= end:
                kept.append((a, b, v))
                continue
            if a < first:
                kept.append((a, first, v))
            if b > end:
                kept.append((end, b, v))
        self._stretches = sorted([*kept, *(s for s in new if s[1] > s[0])])


@dataclass
class OtherProcess:
    """Memory that another process holds on a card, until `stop` or for `seconds`."""

    pid: int
    nbytes: int
    ends: float | None = None
    stopped: bool = False

    @property
    def running(self) -> bool:
        return not self.stopped and (self.ends is None or time.monotonic() < self.ends)

    def stop(self) -> None:
        """End the process: its memory is free again."""
        self.stopped = True


@dataclass
class Card:
    """One practice card. Sizes in bytes.

    `total` is what NVML reports; `total` - `reserved` is what CUDA sees, as on a real card.
    """

    index: int
    total: int
    name: str
    reserved: int = 256 * MIB
    context_size: int = 512 * MIB
    others: list[OtherProcess] = field(default_factory=list)
    contents: Contents = field(default_factory=Contents)
    started: bool = False
    """Whether this process has a context here."""
    lost: bool = False
    """Whether that context is lost, as after a device-side assert."""
    place: Callable[[int], int] | None = None
    """Chooses addresses in place of the driver's first fit: a comparison with a real card gives the real ones."""
    host: str = ""
    """The practice host that it stands in: cards of two hosts are different cards."""
    chunks: dict[int, tuple[int, int]] = field(default_factory=dict)
    """{address: (size, where)} of what large segments are made of, where as in allocation/native.py."""
    _ranges: list[tuple[int, int]] = field(default_factory=list)
    _held: int = 0

    @property
    def capacity(self) -> int:
        """What CUDA calls the device's total memory."""
        return self.total - self.reserved

    @property
    def uuid(self) -> str:
        digest = hashlib.sha256(f"practice {self.host}{self.index} {self.total}".encode()).hexdigest()
        return f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"

    @property
    def own(self) -> int:
        """What this process holds, its context included."""
        return self._held + (self.context_size if self.started else 0)

    @property
    def free(self) -> int:
        return max(0, self.capacity - self.own - sum(p.nbytes for p in self.others if p.running))

    def start(self) -> None:
        """Create this process's context.

        Raises
        ------
        AcceleratorError
            With code 2 where the card has no room for it, and with the code of a lost context.
        """
        if self.lost:
            raise error("assert")
        if not self.started:
            if self.free < self.context_size:
                raise error("runtime")
            self.started = True

    def allocate(self, nbytes: int, where: int = CARD) -> int | None:
        """The address of `nbytes` new bytes (a multiple of `GRANULE`), None where they are not free."""
        if where == CARD and nbytes > self.free:
            return None
        address = self.reserve(nbytes)
        if nbytes >= CHUNKED or where != CARD:
            for at in range(0, nbytes, CHUNK):
                self.chunks[address + at] = (min(CHUNK, nbytes - at), where)
        if where == CARD:
            self._held += nbytes
        return address

    def release(self, address: int, nbytes: int) -> None:
        """What `allocate` gave goes back."""
        self.unreserve(address, nbytes)
        elsewhere = 0
        for at in range(address, address + nbytes, CHUNK):
            size, where = self.chunks.pop(at, (0, CARD))
            elsewhere += size if where != CARD else 0
        self._held -= nbytes - elsewhere

    def exchange(self, address: int, where: int) -> int:
        """Put a chunk to another place, its contents with it; bytes that moved, 0 where there is no room."""
        size, before = self.chunks[address]
        if before == where or (where == CARD and size > self.free):
            return 0
        self.chunks[address] = (size, where)
        self._held += size * ((where == CARD) - (before == CARD))
        return size

    @property
    def elsewhere(self) -> int:
        """Bytes of segments with no memory of the card behind them now."""
        return sum(size for size, where in self.chunks.values() if where != CARD)

    def reserve(self, nbytes: int) -> int:
        """Addresses without memory behind them: the lowest gap that is wide enough."""
        if self.place is not None:
            address = self.place(nbytes)
        else:
            address = _BASE + self.index * _PER_DEVICE
            for first, end in self._ranges:
                if first - address >= nbytes:
                    break
                address = end
        bisect.insort(self._ranges, (address, address + nbytes))
        return address

    def unreserve(self, address: int, nbytes: int) -> None:
        self._ranges.remove((address, address + nbytes))

    def hold(self, nbytes: int) -> bool:
        """Memory behind reserved addresses (negative: given back); False where it is not free."""
        if nbytes > self.free:
            return False
        self._held += nbytes
        return True

    def reading(self, pid: int) -> Device:
        """The card as NVML would show it to a process `pid`."""
        processes = [Process(p.pid, p.nbytes) for p in self.others if p.running]
        if self.started:
            processes.append(Process(pid, self.own))
        free = self.free
        return Device(
            index=self.index,
            name=self.name,
            uuid=self.uuid,
            bus_id=f"00000000:{self.index + 1:02X}:00.0",
            memory=Memory(self.total, self.capacity - free, free, self.reserved),
            utilization=0,
            temperature=36,
            power=21.0,
            power_limit=250.0,
            compute_capability=(8, 6),
            compute_mode="default",
            processes=tuple(processes),
            mig_mode=None,
        )
