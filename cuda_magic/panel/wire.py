"""A reading as the page gets it: names once, then whole numbers for each device a tick, as one text.

Sizes are in MiB, null where unknown: 8 devices take at most 1.3 kB a message, about 490 bytes of which are Jupyter's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..devices.model import Device
from ..devices.table import MemoryTable

__all__ = ["FIELDS", "MIB", "MORE", "card", "cards", "join", "pack", "row", "split", "unpack", "values"]

MIB = 1 << 20
USED, UTIL, TEMP, POWER = range(4)
FIELDS = ("live", "cached", "fragmented", "context", "kernels", "others", "unattributed", "pools")
"""Parts of a device's used memory (memory/split.py) in the order in which they are sent."""
MORE = ("untold", "peak", "clock", "throttled")
"""What a panel of one machine sends besides: `peak` is what the device held at most since the reading before, where
the allocator knows of more than was read; MHz; NVML's reasons for which clocks are held down, as bits."""
UNTOLD, PEAK, CLOCK, THROTTLED = range(4 + len(FIELDS), 4 + len(FIELDS) + len(MORE))


def _in(unit: int, count: int | None) -> int | None:
    return None if count is None else round(count / unit)


def label(device: Device) -> str:
    """``3``, or ``3:0`` of a MIG instance."""
    return str(device.index) if device.parent is None else f"{device.parent}:{device.index}"


def card(device: Device, cuda: int | None, unit: int = MIB) -> dict[str, Any]:
    """What changes rarely: label, name, total, the driver's reserve, limits, and why a device is not read."""
    made = {
        "id": label(device),
        "cuda": cuda,
        "name": device.name or "unknown device",
        "total": _in(unit, device.memory.total),
        "driver": _in(unit, device.memory.reserved),
        "limit": None if device.power_limit is None else round(device.power_limit),
        "unified": device.memory.unified,
        "error": device.error,
    }
    if device.temperature_limit is not None:
        made["hot"] = device.temperature_limit
    if device.clock_limit is not None:
        made["fast"] = device.clock_limit
    return made


def cards(table: MemoryTable, unit: int = MIB) -> list[dict[str, Any]]:
    """The `card` of each device."""
    splits = table.splits
    return [card(d, splits[i].cuda if i < len(splits) else None, unit) for i, d in enumerate(table.reading.devices)]


def row(device: Device, split: Any, unit: int = MIB) -> list[int | None]:
    """``[used, utilization, temperature, power, *FIELDS]``."""
    power = None if device.power is None else round(device.power)
    made = [_in(unit, device.memory.used), device.utilization, device.temperature, power]
    if split is not None and device.memory.used is not None:
        made += [_in(unit, getattr(split, field)) for field in FIELDS]
    return made


def more(device: Device, split: Any, peak: int | None, unit: int = MIB) -> list[int | None]:
    """`row` and `MORE`, without the nulls at its end: 0 is known, null is not."""
    made = row(device, split, unit)
    if split is not None and device.memory.used is not None:
        made += [_in(unit, split.untold), _in(unit, peak), device.clock, device.throttled]
    while len(made) > 4 and made[-1] is None:
        made.pop()
    return made


def values(table: MemoryTable, unit: int = MIB) -> list[list[int | None]]:
    """The `row` of each device, without the nulls and zeros at its end."""
    splits = table.splits
    rows = []
    for i, d in enumerate(table.reading.devices):
        made = row(d, splits[i] if i < len(splits) else None, unit)
        while len(made) > 4 and not made[-1]:
            made.pop()
        rows.append(made)
    return rows


def pack(row: Sequence[int | None]) -> str:
    """A device's values as one text, ``81559,100,,300``: who only passes it on need not read it."""
    return ",".join("" if value is None else str(value) for value in row)


def unpack(text: str) -> list[int | None]:
    """The values of `pack`."""
    return [int(word) if word else None for word in text.split(",")]


def join(rows: list[str]) -> str:
    """Packed values of several devices as one text."""
    return ";".join(rows)


def split(text: str) -> list[str]:
    """The rows of `join`."""
    return text.split(";") if text else []
