"""``%%gpu_mem``: what one cell allocated, its peak, and what stays, on each device."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..machine import machine
from ..render.blocks import Block, Table, Text, Title
from ..render.units import bytes_text, seconds_text
from ..result import Result

if TYPE_CHECKING:
    from .allocator import Allocator, Stats

__all__ = ["Entry", "Ledger", "Recorder"]


@dataclass(frozen=True)
class Entry:
    """One device, in bytes. `peak` None: this allocator's peak was not reached in this cell and cannot be told."""

    cuda: int
    before: int
    after: int
    peak: int | None
    mallocs: int
    """cudaMalloc calls during the cell."""
    retries: int
    """Allocations that needed the cache emptied first."""
    ooms: int
    """Out-of-memory errors, those that the cell handled included."""

    @property
    def stays(self) -> int:
        """Bytes more (or less) allocated than before."""
        return self.after - self.before


@dataclass(frozen=True, repr=False)
class Ledger(Result):
    """One cell."""

    entries: tuple[Entry, ...]
    seconds: float
    label: str = ""
    note: str = ""

    def rows(self) -> list[dict[str, Any]]:
        """One row a device."""
        return [
            {
                "cuda": e.cuda,
                "before": e.before,
                "after": e.after,
                "stays": e.stays,
                "peak": e.peak,
                "allocated_during": None if e.peak is None else e.peak - e.before,
                "mallocs": e.mallocs,
                "retries": e.retries,
                "ooms": e.ooms,
                "seconds": self.seconds,
            }
            for e in self.entries
        ]

    def blocks(self) -> Sequence[Block]:
        blocks: list[Block] = [Title(f"This cell, {seconds_text(self.seconds)}", self.label)]
        shown = [e for e in self.entries if e.before or e.after or e.peak or e.mallocs or e.ooms] or self.entries[:1]
        if shown:
            columns = ("device", "up to", "peak", "stays", "cudaMalloc", "retries", "out of memory")
            rows = [
                (
                    f"cuda:{e.cuda}",
                    "n/a" if e.peak is None else "+" + bytes_text(e.peak - e.before),
                    bytes_text(e.peak),
                    ("+" if e.stays >= 0 else "") + bytes_text(e.stays),
                    str(e.mallocs),
                    str(e.retries),
                    str(e.ooms),
                )
                for e in shown
            ]
            blocks.append(Table(columns, rows, frozenset(range(1, 7))))
        if self.note:
            blocks.append(Text(self.note))
        return blocks


class Recorder:
    """Marks the counters before a cell; `done` gives the ledger. Nests: an inner cell does not spoil the outer peak."""

    _open: list[Recorder] = []  # noqa: RUF012 - all recorders of the process, innermost last

    def __init__(self, nvtx: str = "") -> None:
        self.allocator = machine().allocator()
        self.before: dict[int, Stats] = _stats(self.allocator)
        self.peaks: dict[int, int] = {d: s.allocated for d, s in self.before.items()}
        self._range = _push(nvtx) if nvtx else False
        for outer in Recorder._open:
            outer._remember(self.before)
        _reset(self.allocator)
        Recorder._open.append(self)
        self.started = time.perf_counter()

    def _remember(self, stats: dict[int, Stats]) -> None:
        for device, now in stats.items():
            self.peaks[device] = max(self.peaks.get(device, 0), now.peak_allocated)

    def close(self) -> None:
        """End it without a ledger: a cell that did not start. Closing twice does nothing."""
        if self in Recorder._open:
            Recorder._open.remove(self)
            if self._range:
                _pop()

    def done(self) -> Ledger:
        """The ledger of what ran since."""
        seconds = time.perf_counter() - self.started
        if self.allocator is None:
            self.allocator = machine().allocator()  # the cell itself imported torch
        after = _stats(self.allocator)
        self.close()
        self._remember(after)
        for outer in Recorder._open:
            outer._remember(after)
        entries = []
        for device, now in after.items():
            old = self.before.get(device)
            was = old or replace(now, allocated=0, device_mallocs=0, retries=0, ooms=0)
            peak: int | None = max(self.peaks.get(device, 0), now.allocated)
            if not _can_reset(self.allocator) and old is not None and now.peak_allocated <= old.peak_allocated:
                peak = None  # an earlier peak hides this cell's
            entries.append(
                Entry(
                    device,
                    was.allocated,
                    now.allocated,
                    peak,
                    now.device_mallocs - was.device_mallocs,
                    now.retries - was.retries,
                    now.ooms - was.ooms,
                )
            )
        label = self.allocator.label if self.allocator is not None else ""
        note = "" if entries else "This kernel uses no GPU so far."
        return Ledger(tuple(entries), seconds, label, note)


def _stats(allocator: Allocator | None) -> dict[int, Stats]:
    if allocator is None or not allocator.started():
        return {}
    return {device: allocator.stats(device) for device in allocator.devices()}


def _can_reset(allocator: Allocator | None) -> bool:
    return hasattr(allocator, "reset_peak")


def _reset(allocator: Allocator | None) -> None:
    if allocator is not None and _can_reset(allocator) and allocator.started():
        for device in allocator.devices():
            allocator.reset_peak(device)  # type: ignore[attr-defined]


def _push(name: str) -> bool:
    """Open an NVTX range, by the nvtx package or torch's own; False where neither can."""
    module = sys.modules.get("nvtx")
    try:
        if module is None:
            module = getattr(getattr(sys.modules.get("torch"), "cuda", None), "nvtx", None)
            if module is None:
                return False
            module.range_push(name)
        else:
            module.push_range(name)
    except Exception:  # noqa: BLE001 - a build without NVTX raises; the cell must run all the same
        return False
    return True


def _pop() -> None:
    module = sys.modules.get("nvtx")
    try:
        if module is not None:
            module.pop_range()
        else:
            sys.modules["torch"].cuda.nvtx.range_pop()
    except Exception:  # noqa: BLE001 - as above
        pass
