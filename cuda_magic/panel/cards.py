"""The devices of a panel: each keeps its place, however often it is lost, back, or joined by others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..devices.model import Device
from ..devices.table import MemoryTable
from . import wire

__all__ = ["Cards"]

GONE = "The driver no longer lists this device."
NOTHING: list[int | None] = [None] * 4


class Cards:
    """Places of devices by UUID, else by number; `all` is what the page is told of each (wire.card)."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []
        self._uuids: list[str | None] = []

    def place(self, table: MemoryTable, peaks: Sequence[int | None]) -> list[list[int | None]]:
        """The values of each device at its place; of one that is not in the reading nothing is known."""
        rows = [list(NOTHING) for _ in self.all]
        seen: set[int] = set()
        for i, device in enumerate(table.reading.devices):
            part = table.splits[i] if i < len(table.splits) else None
            at = self._at(device, seen)
            seen.add(at)
            card = wire.card(device, part.cuda if part else None)
            if at == len(self.all):
                self.all.append(card)
                self._uuids.append(device.uuid)
                rows.append([])
            elif card["error"]:  # a lost card keeps its size and limits
                card = {**self.all[at], "error": card["error"]}
            self.all[at] = card
            self._uuids[at] = device.uuid or self._uuids[at]
            rows[at] = wire.more(device, part, peaks[i] if i < len(peaks) else None)
        if table.reading.status.ok:
            self.all = [
                card if at in seen or card["error"] else {**card, "error": GONE} for at, card in enumerate(self.all)
            ]
        return rows

    def sort(self, table: MemoryTable, lists: list[Any]) -> list[Any]:
        """What belongs to each device of the reading, at its device's place."""
        found: list[Any] = [[] for _ in self.all]
        seen: set[int] = set()
        for device, one in zip(table.reading.devices, lists, strict=False):
            at = self._at(device, seen)
            if at < len(found):
                seen.add(at)
                found[at] = one
        return found

    def _at(self, device: Device, seen: set[int]) -> int:
        label = wire.label(device)
        for at, uuid in enumerate(self._uuids):
            if at not in seen and device.uuid is not None and uuid == device.uuid:
                return at
        for at, card in enumerate(self.all):
            if at not in seen and card["id"] == label and (device.uuid is None or self._uuids[at] is None):
                return at
        return len(self.all)
