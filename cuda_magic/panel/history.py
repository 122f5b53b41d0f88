"""The readings of a panel by time: the last ones as they were, and the whole run, thinned by maximum.

panel/js/history.js keeps the same on the page, by the same rule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .wire import PEAK, POWER, TEMP, USED, UTIL

__all__ = ["DAY", "RECENT", "WHOLE", "History", "Point", "merge"]

RECENT = 600
"""Readings that are kept as they were: ten minutes at one a second."""
WHOLE = 500
"""Stretches of the whole run; when there are more, two become one."""
DAY = 86400.0
"""Seconds that are kept."""

Row = Sequence[int | None]


@dataclass
class Point:
    """All devices at one time (seconds since the epoch), as `wire.values` gives them."""

    time: float
    rows: list[Row]


def _top(row: Row) -> int:
    return max(row[USED] or 0, row[PEAK] or 0 if len(row) > PEAK else 0)


def merge(a: Point, b: Point) -> Point:
    """Two neighbours as one: of each device the reading with more memory in use, and the highest of the others."""
    rows: list[Row] = []
    for i in range(max(len(a.rows), len(b.rows))):
        one = a.rows[i] if i < len(a.rows) else ()
        two = b.rows[i] if i < len(b.rows) else ()
        if not one or one[USED] is None or (two and two[USED] is not None and _top(two) > _top(one)):
            one, two = two, one
        if not one or not two or two[USED] is None:
            rows.append(one or two)
            continue
        made = list(one)
        for at in (UTIL, TEMP, POWER):
            known = [v for v in (one[at], two[at]) if v is not None]
            made[at] = max(known) if known else None
        rows.append(made)
    return Point(a.time, rows)


class History:
    """What the chart, the saved notebook and ``--history`` are made from.

    Parameters
    ----------
    interval
        Seconds between two readings: the first width of a stretch.
    """

    def __init__(self, interval: float) -> None:
        self.recent: deque[Point] = deque(maxlen=RECENT)
        self.whole: list[Point] = []
        self.step = max(interval, 0.25)
        """Seconds that one stretch of `whole` covers."""

    def add(self, time: float, rows: Sequence[Row]) -> None:
        """One reading, later than those before."""
        point = Point(time, list(rows))
        self.recent.append(point)
        self._join(point)
        if len(self.whole) > WHOLE:
            self.step *= 2
            old, self.whole = self.whole, []
            for one in old:
                self._join(one)
        while self.whole and self.whole[0].time < time - DAY:
            del self.whole[0]

    def _join(self, point: Point) -> None:
        if self.whole and self.whole[-1].time // self.step == point.time // self.step:
            self.whole[-1] = merge(self.whole[-1], point)
        else:
            self.whole.append(point)

    def points(self) -> list[Point]:
        """All of it by time: stretches of what is older than the readings kept as they were, then these."""
        if not self.recent:
            return []
        first = self.recent[0].time
        return [point for point in self.whole if point.time < first] + list(self.recent)

    def after(self, number: int) -> list[Point]:
        """The last `number` readings."""
        return list(self.recent)[-number:] if number else []


def pack(points: Iterable[Point], base: float) -> list[Any]:
    """Points for the page: ``[seconds since base, row, ...]``, a row that is as it was before is 0."""
    packed = []
    before: list[Row] = []
    for point in points:
        rows = [0 if i < len(before) and before[i] == row else row for i, row in enumerate(point.rows)]
        packed.append([round(point.time - base, 2), *rows])
        before = point.rows
    return packed


def thin(points: list[Point], most: int) -> list[Point]:
    """At most `most` points, neighbours made one by maximum."""
    while len(points) > max(2, most):
        points = [
            merge(points[i], points[i + 1]) if i + 1 < len(points) else points[i] for i in range(0, len(points), 2)
        ]
    return points
