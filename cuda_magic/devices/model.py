"""Frozen snapshots of devices. Bytes are int, unknown is None."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["THROTTLED", "Device", "DeviceSource", "Memory", "Process", "Reading", "Status"]

THROTTLED = {
    0x04: "held to its power limit",
    0x08: "slowed down by the hardware",
    0x20: "held down for its temperature",
    0x40: "slowed down for its temperature",
    0x80: "slowed down by the power supply",
}
"""NVML's reasons for a lower clock (nvml.h, nvmlClocksEventReason...); an idle card's and the user's own settings are
no trouble and not among them."""


@dataclass(frozen=True)
class Memory:
    """A device's memory in bytes.

    `used` excludes `reserved` (the driver's own part) unless `used_includes_reserved`.
    """

    total: int | None = None
    used: int | None = None
    free: int | None = None
    reserved: int | None = None
    used_includes_reserved: bool = False
    unified: bool = False
    """True where the GPU shares the system's RAM (GB10, Jetson): the numbers are then the system's."""


@dataclass(frozen=True)
class Process:
    """One process on one device. `used` is in bytes, None where the platform does not tell (WSL2, WDDM, MIG)."""

    pid: int
    used: int | None = None
    kind: str = "compute"
    """``compute`` or ``graphics``."""


@dataclass(frozen=True)
class Device:
    """One GPU, or one MIG instance of one (then `parent` is the index of its card)."""

    index: int
    name: str | None = None
    uuid: str | None = None
    bus_id: str | None = None
    memory: Memory = field(default_factory=Memory)
    utilization: int | None = None
    """Percent of the last sampling period in which a kernel ran."""
    temperature: int | None = None
    """Degrees Celsius."""
    power: float | None = None
    """Watts."""
    power_limit: float | None = None
    temperature_limit: int | None = None
    """Degrees Celsius at which the card slows itself down."""
    clock: int | None = None
    """MHz of the multiprocessors, now."""
    clock_limit: int | None = None
    """MHz at most."""
    throttled: int | None = None
    """Why the clock is held down, as bits of `THROTTLED`; 0 where it is not."""
    compute_capability: tuple[int, int] | None = None
    compute_mode: str | None = None
    """``default``, ``prohibited`` or ``exclusive-process``."""
    processes: tuple[Process, ...] | None = None
    """None where they cannot be read."""
    parent: int | None = None
    mig_mode: bool | None = None
    error: str | None = None
    """One sentence where the device could not be read (lost, no permission)."""


@dataclass(frozen=True)
class Status:
    """Whether readings are to be had. `code` is NVML's number, 0 when all is well, None without NVML."""

    ok: bool
    code: int | None = None
    sentence: str = ""
    trouble: str = ""
    """Where NVML gave no answer at all: ``hang``, ``crash``, or ``start`` (no process could be started to ask it)."""


@dataclass(frozen=True)
class Reading:
    """All devices at one moment, in NVML's (PCI bus) order. `time` is seconds since the epoch."""

    time: float
    devices: tuple[Device, ...] = ()
    status: Status = field(default_factory=lambda: Status(True))
    driver_version: str | None = None
    cuda_version: str | None = None
    """The newest CUDA that the driver supports, ``13.0``; not what torch uses."""
    label: str = ""
    """``PRACTICE`` for the practice GPU."""


class DeviceSource(Protocol):
    """The seam at which real cards (devices/nvml.py) and the practice GPU answer. Never raises, never starts CUDA."""

    def read(self, *, processes: bool = True, slow: bool = True) -> Reading:
        """One reading. `slow` also asks what changes slowly (temperature, power)."""
        ...
