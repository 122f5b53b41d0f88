"""A recording in the panel: all its readings go to the page at once, where a slider moves through them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

from ..devices.replay import Replay
from ..devices.table import MemoryTable
from ..render import html
from ..result import Result
from . import wire
from .history import Point
from .live import Panel, stop
from .picture import picture
from .saved import HIDE
from .watchers import Watchers

__all__ = ["NUMBERS", "Playback", "frames"]

NUMBERS = 200_000
"""Numbers that go to the page at most, about 1 MB: 16 000 readings of one device, 2 000 of eight."""


class Playback(Panel):
    """A panel that shows a recording; nothing is read, and nothing sent after the page has it."""

    text = "GPU memory, a recording. Its table is below."

    def __init__(self, shell: Any, recording: Replay, alert: int) -> None:
        count = max(1, len(recording.tables) - 1)
        super().__init__(shell, recording.tables[-1], recording.seconds / count, alert, Watchers())
        self.recording = recording

    @classmethod
    def show(cls, shell: Any, recording: Replay, alert: int) -> Playback:
        """Show `recording`, in place of the panel before."""
        stop()
        panel = cls(shell, recording, alert)
        panel._begin()
        return panel

    def _kept(self) -> Result:
        return self.recording

    def _more(self) -> dict[str, Any]:
        label = self.table.reading.label
        kept = thin(self.recording.tables)
        cards, values = frames(kept)
        began = kept[0].reading.time
        times = [round(table.reading.time - began, 2) for table in kept]
        label = f"REPLAY, {label}" if label else "REPLAY"
        driver = self.table.reading.driver_version or ""
        return {"label": label, "driver": driver, "cards": cards, "frames": values, "times": times, "base": began}

    def _chart(self) -> Any:
        kept = thin(self.recording.tables)
        cards, values = frames(kept)
        drawn = picture([Point(table.reading.time, [*rows]) for table, rows in zip(kept, values, strict=True)], cards)
        return drawn and replace(drawn, text="")  # the recording's own table has a line of each device

    def _run(self) -> None:
        while not (self._halt or self.is_rich):
            self._wake.wait()
            self._wake.clear()
            if not self._halt:
                self._become_rich()

    def _send_plain(self) -> None:
        self.plain.value = HIDE + html.draw(self.recording.blocks())


def thin(tables: tuple[MemoryTable, ...]) -> list[MemoryTable]:
    """At most as many readings as `NUMBERS` allows; of each stretch the one with the most memory in use."""
    each = max(len(table.reading.devices) for table in tables) * (4 + len(wire.FIELDS) + len(wire.MORE))
    most = max(2, NUMBERS // each)
    if len(tables) <= most:
        return list(tables)
    cuts = [i * len(tables) // most for i in range(most + 1)]
    return [max(tables[a:b], key=_used) for a, b in pairwise(cuts)]


def _used(table: MemoryTable) -> int:
    return sum(device.memory.used or 0 for device in table.reading.devices)


def frames(tables: list[MemoryTable]) -> tuple[list[dict[str, Any]], list[list[list[int | None]]]]:
    """(cards, values of each reading); a device that is not in a reading has no values there."""
    cards: dict[str, dict[str, Any]] = {}
    rows = []
    for table in tables:
        row = {}
        splits = (*table.splits, *[None] * (len(table.reading.devices) - len(table.splits)))
        for card, device, split in zip(wire.cards(table), table.reading.devices, splits, strict=True):
            row[card["id"]] = wire.more(device, split, None)
            if card["id"] not in cards or card["total"] is not None:  # a lost card keeps its size
                cards[card["id"]] = card
        rows.append(row)
    return list(cards.values()), [[row.get(key, [None] * 4) for key in cards] for row in rows]
