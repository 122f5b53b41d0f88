"""One reading as a table: `%gpu_mem --once`, `cuda-magic mem`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..render.blocks import Bar, Block, Note, Part, Table, Text, Title
from ..render.units import NA, amount, bytes_text
from ..result import Result
from .model import Device, Reading

__all__ = ["MemoryTable", "Share", "percent"]


def percent(device: Device) -> float | None:
    """How full the device is, 0 to 100; None where its memory cannot be read."""
    memory = device.memory
    return None if memory.used is None or not memory.total else 100 * memory.used / memory.total


@dataclass(frozen=True)
class Share:
    """What this kernel holds on one device, in bytes; None where it is not known."""

    device: int
    """Index in the reading."""
    allocated: int | None = None
    """In live tensors."""
    cached: int | None = None
    """Reserved by the allocator and free."""
    process: int | None = None
    """All that the driver counts for this process, context and libraries included."""
    others: int | None = None
    """Other processes."""


@dataclass(frozen=True, repr=False)
class MemoryTable(Result):
    """Devices at one moment."""

    reading: Reading
    shares: tuple[Share, ...] = field(default=())
    alert: int = 95
    """Percent of a device's memory above which a note says so."""

    def rows(self) -> list[dict[str, Any]]:
        """One row a device: index, name, bytes, percent, degrees Celsius, watts, and this kernel's share."""
        shares = {s.device: s for s in self.shares}
        rows = []
        for device in self.reading.devices:
            share = shares.get(device.index, Share(device.index)) if device.parent is None else Share(device.index)
            memory = device.memory
            rows.append(
                {
                    "index": device.index,
                    "parent": device.parent,
                    "name": device.name,
                    "uuid": device.uuid,
                    "total": memory.total,
                    "used": memory.used,
                    "free": memory.free,
                    "reserved_by_driver": memory.reserved,
                    "utilization": device.utilization,
                    "temperature": device.temperature,
                    "power": device.power,
                    "allocated": share.allocated,
                    "cached": share.cached,
                    "this_process": share.process,
                    "other_processes": share.others,
                    "error": device.error,
                }
            )
        return rows

    def blocks(self) -> Sequence[Block]:
        reading = self.reading
        if not reading.devices:
            return [Title("GPU memory", reading.label), Text(reading.status.sentence or "No GPU found.")]
        versions = [f"driver {reading.driver_version}"] if reading.driver_version else []
        versions += [f"CUDA up to {reading.cuda_version}"] if reading.cuda_version else []
        blocks: list[Block] = [Title("GPU memory" + (f" ({', '.join(versions)})" if versions else ""), reading.label)]
        columns = ("GPU", "name", "used", "total", "free", "util", "temp", "power", "processes")
        blocks.append(Table(columns, [_cells(d) for d in reading.devices], frozenset({2, 3, 4, 5, 6, 7, 8})))
        shares = {s.device: s for s in self.shares}
        for device in reading.devices:
            if device.parent is None and device.memory.used is not None and device.memory.total:
                blocks.append(_bar(device, shares.get(device.index)))
        if reading.devices and any(
            d.parent is None and d.memory.total and not d.memory.unified for d in reading.devices
        ):
            blocks.append(Text("# this kernel's tensors  + its cache  o its context and libraries  = other processes"))
        blocks += self._notes()
        return blocks

    def _notes(self) -> list[Block]:
        notes: list[Block] = []
        for device in self.reading.devices:
            full = percent(device)
            name = _label(device)
            if device.error:
                notes.append(Note("error", f"GPU {name}: {device.error}"))
            elif full is not None and full >= self.alert:
                notes.append(Note("warning", f"GPU {name} is {full:.0f} % full."))
            if device.memory.unified:
                notes.append(Note("info", f"GPU {name} shares the system's RAM: the numbers are the system's."))
            if device.memory.total and device.memory.used_includes_reserved and not device.memory.unified:
                notes.append(Note("info", f"GPU {name}: used includes the driver's own reserve (old driver)."))
        return notes


def _label(device: Device) -> str:
    return str(device.index) if device.parent is None else f"{device.parent}:{device.index}"


def _cells(device: Device) -> list[str]:
    memory = device.memory
    count = NA if device.processes is None else str(len(device.processes))
    return [
        _label(device),
        device.name or NA,
        bytes_text(memory.used),
        bytes_text(memory.total),
        bytes_text(memory.free),
        amount(device.utilization, " %"),
        amount(device.temperature, " C"),
        amount(device.power, " W"),
        count,
    ]


def _bar(device: Device, share: Share | None) -> Bar:
    used, total = device.memory.used or 0, device.memory.total or 0
    parts = []
    rest = used
    if share is not None and share.allocated is not None:
        cached = share.cached or 0
        context = max(0, share.process - share.allocated - cached) if share.process is not None else 0
        for name, size, mark in (
            ("tensors", share.allocated, "#"),
            ("cache", cached, "+"),
            ("context", context, "o"),
        ):
            parts.append(Part(name, size, mark))
            rest -= size
    elif share is not None and share.process:
        parts.append(Part("this kernel", share.process, "o"))
        rest -= share.process
    parts.append(Part("others", max(0, rest), "="))
    return Bar(f"GPU {_label(device)}", parts, total, f"{percent(device) or 0:.0f} %")
