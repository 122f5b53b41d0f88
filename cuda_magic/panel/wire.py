"""A reading as the page gets it: names once, then one list of whole numbers a device a tick.

Sizes are in MiB, null where unknown: 8 devices take at most 1.3 kB a message, about 490 bytes of which are Jupyter's.
"""

from __future__ import annotations

from typing import Any

from ..devices.table import MemoryTable

__all__ = ["FIELDS", "MIB", "cards", "history_point", "join", "pack", "split", "unpack", "values"]

MIB = 1 << 20
FIELDS = ("live", "cached", "fragmented", "context", "kernels", "others", "unattributed", "pools")
"""Parts of a device's used memory (memory/split.py) in the order in which panel.js draws them."""


def _in(unit: int, count: int | None) -> int | None:
    return None if count is None else round(count / unit)


def cards(table: MemoryTable, unit: int = MIB) -> list[dict[str, Any]]:
    """What changes rarely: label, name, total, the driver's reserve, power limit, and why a device is not read."""
    splits = table.splits
    return [
        {
            "id": str(d.index) if d.parent is None else f"{d.parent}:{d.index}",
            "cuda": splits[i].cuda if i < len(splits) else None,
            "name": d.name or "unknown device",
            "total": _in(unit, d.memory.total),
            "driver": _in(unit, d.memory.reserved),
            "limit": None if d.power_limit is None else round(d.power_limit),
            "unified": d.memory.unified,
            "error": d.error,
        }
        for i, d in enumerate(table.reading.devices)
    ]


def values(table: MemoryTable, unit: int = MIB) -> list[list[int | None]]:
    """``[used, utilization, temperature, power, *FIELDS]`` of each device, without the nulls at its end."""
    splits = table.splits
    rows = []
    for i, d in enumerate(table.reading.devices):
        row = [_in(unit, d.memory.used), d.utilization, d.temperature, None if d.power is None else round(d.power)]
        if i < len(splits) and d.memory.used is not None:
            row += [_in(unit, getattr(splits[i], field)) for field in FIELDS]
        while len(row) > 4 and not row[-1]:
            row.pop()
        rows.append(row)
    return rows


def pack(row: list[int | None]) -> str:
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


def history_point(now: list[list[int | None]]) -> list[int | None]:
    """Used memory and utilization of each device in one flat list: what the lines of the panel are drawn from."""
    return [value for device in now for value in device[:2]]
