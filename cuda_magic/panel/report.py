"""``%gpu_mem --history``: the readings of the panel as a result, with the columns and bytes of the page's CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..devices.replay import timed
from ..render.blocks import Block, Table, Text, Title
from ..render.units import bytes_text, seconds_text
from ..result import Result
from .history import Point
from .picture import AT, STACK, picture
from .wire import CLOCK, MIB, PEAK, POWER, TEMP, THROTTLED, USED, UTIL

__all__ = ["HistoryTable"]


@dataclass(frozen=True, repr=False)
class HistoryTable(Result):
    """The panel's readings, oldest first: what is older than its last 600 readings is thinned by maximum."""

    points: tuple[Point, ...]
    cards: tuple[dict[str, Any], ...]
    marks: tuple[dict[str, Any], ...] = ()
    label: str = ""

    def rows(self) -> list[dict[str, Any]]:
        """One row a device and reading; sizes in bytes."""
        return [
            _row(point, card, point.rows[at] if at < len(point.rows) else ())
            for point in self.points
            for at, card in enumerate(self.cards)
        ]

    def to_dict(self) -> dict[str, Any]:
        """The rows, and the marks of cells, out-of-memory errors and rescues."""
        return {"label": self.label, "rows": self.rows(), "marks": list(self.marks)}

    def to_dataframe(self) -> Any:
        """`rows`, the time as a moment in UTC."""
        return timed(super().to_dataframe())

    def blocks(self) -> Sequence[Block]:
        if not self.points:
            return [Title("GPU memory over time"), Text("No panel has read yet: %gpu_mem shows one.")]
        span = seconds_text(self.points[-1].time - self.points[0].time)
        title = Title(f"GPU memory over time: {len(self.points)} points, {span}", self.label)
        rows = []
        for at, card in enumerate(self.cards):
            known = [row for point in self.points if at < len(point.rows) and (row := point.rows[at])[USED] is not None]
            most = [max(row[USED] or 0, (row[PEAK] or 0) if len(row) > PEAK else 0) for row in known]
            low = min((row[USED] or 0 for row in known), default=None)
            sizes = (low, max(most, default=None), card["total"])
            rows.append((card["id"], card["name"], *(bytes_text(None if n is None else n * MIB) for n in sizes)))
        table = Table(("GPU", "name", "lowest", "highest", "total"), rows, frozenset({2, 3, 4}))
        drawn = picture(self.points, self.cards, self.marks)
        return [title, table, *([drawn] if drawn is not None else [])]


def _row(point: Point, card: dict[str, Any], values: Sequence[int | None]) -> dict[str, Any]:
    def at(place: int, unit: int = 1) -> int | None:
        value = values[place] if place < len(values) else None
        return None if value is None else value * unit

    return {
        "time": point.time,
        "gpu": card["id"],
        "name": card["name"],
        "total": None if card["total"] is None else card["total"] * MIB,
        "used": at(USED, MIB),
        "utilization": at(UTIL),
        "temperature": at(TEMP),
        "power": at(POWER),
        **{name: at(AT[name], MIB) for name in STACK},
        "peak": at(PEAK, MIB),
        "clock": at(CLOCK),
        "throttled": at(THROTTLED),
    }
