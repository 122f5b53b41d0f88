"""The practice machine: the seams of cuda_magic/machine.py answered by practice GPUs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..devices.model import Reading, Status
from .allocator import PracticeAllocator
from .card import Card

if TYPE_CHECKING:
    from ..doctor.facts import Facts
    from ..doctor.startup import Startup

__all__ = ["PracticeMachine", "PracticeSource"]

DRIVER = "580.65.06"
CUDA = "13.0"


class PracticeSource:
    """Readings of practice cards."""

    def __init__(self, cards: Sequence[Card]) -> None:
        self.cards = cards

    def read(self, *, processes: bool = True, slow: bool = True) -> Reading:
        pid = os.getpid()
        return Reading(
            time=time.time(),
            devices=tuple(card.reading(pid) for card in self.cards),
            status=Status(True, 0),
            driver_version=DRIVER,
            cuda_version=CUDA,
            label="PRACTICE",
        )


class PracticeMachine:
    """Practice GPUs in place of the real machine; all in this process, nothing is started."""

    label = "PRACTICE"

    def __init__(self, cards: Sequence[Card]) -> None:
        self.cards = tuple(cards)
        self.host = self.cards[0].host if self.cards else ""
        """The name of the practice host; empty for the host that this process runs on."""
        self._allocator = PracticeAllocator(self.cards)

    def devices(self) -> PracticeSource:
        return PracticeSource(self.cards)

    def facts(self, full: bool = False) -> Facts:
        """A healthy host with these cards, the same everywhere."""
        from ..doctor.situations import practice_facts

        return practice_facts(self.devices().read(), self.startup(full=full), self._allocator.started())

    def allocator(self) -> PracticeAllocator:
        return self._allocator

    def startup(self, full: bool = False) -> Startup:
        """As if a child process had started CUDA on the practice cards; with `full` it also takes a first byte."""
        from ..doctor.codes import cuda_name
        from ..doctor.startup import Allocation, StartedDevice, Startup

        devices = tuple(
            StartedDevice(
                index=card.index,
                name=card.name,
                total=card.capacity,
                compute_capability=(8, 6),
                bus_id=f"0000:{card.index + 1:02x}:00.0",
                integrated=False,
                compute_mode="default",
            )
            for card in self.cards
        )
        tried = tuple(
            Allocation(
                card.index, "practice", card.free >= card.context_size, None if card.free >= card.context_size else 2
            )
            for card in self.cards
            if full
        )
        return Startup(
            code=0,
            error=cuda_name(0),
            device_count=len(devices),
            driver_api=13000,
            devices=devices,
            full=full,
            allocations=tried,
            sentence=f"CUDA starts: {len(devices)} device{'s' if len(devices) != 1 else ''}",
        )
