"""``%gpu_mem --replay FILE``: a recording at a glance, and its readings for the panel."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..render.blocks import Block, Table, Title
from ..render.units import NA, bytes_text, seconds_text
from ..result import Result, pandas
from .recording import load
from .table import MemoryTable

__all__ = ["Replay", "replay", "steps", "timed"]

_STEPS = "▁▂▃▄▅▆▇█"
WIDE = 60


@dataclass(frozen=True, repr=False)
class Replay(Result):
    """A recording; `tables` are its readings, oldest first."""

    path: str
    tables: tuple[MemoryTable, ...]

    @property
    def seconds(self) -> float:
        """From the first reading to the last."""
        return self.tables[-1].reading.time - self.tables[0].reading.time

    def rows(self) -> list[dict[str, Any]]:
        """One row a device and reading."""
        return [{"time": table.reading.time, **row} for table in self.tables for row in table.rows()]

    def to_dataframe(self) -> Any:
        """`rows`, the time as a moment in UTC."""
        return timed(super().to_dataframe())

    def blocks(self) -> Sequence[Block]:
        first = self.tables[0].reading
        began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(first.time))
        title = f"{self.path}: {len(self.tables)} readings from {began}, {seconds_text(self.seconds)}"
        lines = []
        for i, device in enumerate(first.devices):
            used = [t.reading.devices[i].memory.used if i < len(t.reading.devices) else None for t in self.tables]
            known = [u for u in used if u is not None]
            total = device.memory.total
            index = str(device.index) if device.parent is None else f"{device.parent}:{device.index}"
            low, high = (bytes_text(min(known)), bytes_text(max(known))) if known else (NA, NA)
            over_time = steps(used, total or max(known, default=0))
            lines.append((index, device.name or NA, low, high, bytes_text(total), over_time))
        columns = ("GPU", "name", "lowest", "highest", "total", "used over time")
        return [Title(title, first.label), Table(columns, lines, frozenset({2, 3, 4}))]


def timed(frame: Any) -> Any:
    """`frame` with its column of seconds since the epoch as moments in UTC."""
    frame["time"] = pandas("to_dataframe").to_datetime(frame["time"], unit="s", utc=True)
    return frame


def steps(values: Sequence[int | None], highest: int) -> str:
    """One mark for each stretch of time, its highest value against the whole card; a space where nothing is known."""
    cells = min(WIDE, len(values))
    row = ""
    for i in range(cells):
        some = [v for v in values[i * len(values) // cells : (i + 1) * len(values) // cells] if v is not None]
        row += _STEPS[min(7, 8 * max(some) // (highest + 1))] if some else " "
    return row


def replay(path: Path) -> Replay:
    """The recording at `path`."""
    return Replay(path.name, tuple(load(path)))
