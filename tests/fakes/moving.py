"""A machine of cards whose numbers move, for tests of the panel: the seams of cuda_magic.machine, no hardware.

>>> from fakes.moving import Moving
>>> fake = Moving(8); fake.install()
>>> fake.still = True          # nothing changes any more
>>> fake.lose(3)               # card 3 has fallen off the bus
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, replace
from typing import Any

from cuda_magic.devices.model import Device, Memory, Process, Reading, Status
from cuda_magic.machine import use
from cuda_magic.memory.allocator import Stats

GIB = 1 << 30


@dataclass
class Moving:
    """`count` cards of 80 GiB; `names` replaces their names, in order."""

    count: int = 1
    names: tuple[str, ...] = ()
    label: str = ""
    still: bool = False
    reads: int = 0
    none: bool = False
    """No driver."""

    def __post_init__(self) -> None:
        self.lost: set[int] = set()
        self.peaks: dict[int, int] = {}
        """Bytes of the highest that this process's tensors ever took on a card, where that is more than was read."""
        self.ooms = 0
        self.held = 0
        """Bits of the clock's event reasons, of card 1."""
        self._at = 0

    def install(self) -> Moving:
        """Make this the machine in use."""
        use(self)
        return self

    def lose(self, index: int) -> None:
        self.lost.add(index)

    def find(self, index: int) -> None:
        """The card is back."""
        self.lost.discard(index)

    def spike(self, index: int, peak: int) -> None:
        """Tensors took `peak` bytes for a moment that no reading saw."""
        self.peaks[index] = peak

    # -- the three seams
    def devices(self) -> Moving:
        return self

    def allocator(self) -> Any:
        return Holding(self)

    def startup(self, full: bool = False) -> Any:
        raise NotImplementedError

    def read(self, *, processes: bool = True, slow: bool = True) -> Reading:
        self.reads += 1
        if self.none:
            return Reading(time.time(), status=Status(False, 12, "No NVIDIA driver found on this machine."))
        if not self.still:
            self._at += 1
        devices = tuple(self._device(i) for i in range(self.count))
        return Reading(time.time(), devices, driver_version="580.65.06", cuda_version="13.0", label=self.label)

    def live(self, i: int) -> int:
        """Bytes in tensors of this process on card `i`."""
        wave = 0.5 + 0.5 * math.sin((self._at + 17 * i) / (7 + i))
        return int((2 + 30 * wave * ((i * 37 % 11) / 10)) * GIB) if i % 3 != 2 else 0

    def _device(self, i: int) -> Device:
        if i in self.lost:
            return Device(i, self._name(i), error="The card has fallen off the bus: restart the machine.")
        live = self.live(i)
        mine = live + (3 * GIB if live else 0) + (1 * GIB if live else 0)
        others = (60 if i == 3 else i * 13 % 29) * GIB
        used = min(mine + others, 79 * GIB) if i != 6 else 78 * GIB
        found = [Process(os.getpid(), mine)] if mine else []
        found += [Process(1, others)] if others else []
        busy = 0 if not used else int(50 + 49 * math.sin((self._at + 5 * i) / 4))
        device = Device(i, self._name(i), f"GPU-{i:08d}-0000-0000-0000-000000000000")
        return replace(
            device,
            memory=Memory(80 * GIB, used, 80 * GIB - used, GIB // 2),
            utilization=busy,
            temperature=35 + busy // 3,
            power=90.0 + 5.4 * busy,
            power_limit=700.0,
            temperature_limit=87,
            clock=1980 - 6 * busy,
            clock_limit=1980,
            throttled=self.held if i == 1 else 0,
            processes=tuple(found),
        )

    def _name(self, i: int) -> str:
        return self.names[i] if i < len(self.names) else "NVIDIA H100 80GB HBM3"


@dataclass
class Holding:
    """The allocator's readings of a process that holds what `Moving` says."""

    machine: Moving
    name: str = "torch"
    label: str = ""

    def started(self) -> bool:
        return True

    def devices(self) -> tuple[int, ...]:
        return tuple(range(self.machine.count))

    def stats(self, device: int) -> Stats:
        live = self.machine.live(device)
        peak = self.machine.peaks.get(device, 0)
        held = live + (3 * GIB if live else 0)
        return Stats(live, held, peak, ooms=self.machine.ooms, inactive_split=GIB if live else 0)

    def room(self) -> str:
        """Nothing asks it for memory."""
        return "nothing is allocated here"

    def settle(self, ended: bool = False) -> int:
        """Nothing of it is parked."""
        return 0

    def release_host(self, *, excess: bool = False) -> int:
        """Nothing of the host is kept for it."""
        return 0
