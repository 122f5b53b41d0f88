"""The only place that knows pynvml (distribution nvidia-ml-py). Starts no CUDA, never raises.

One pass for each device; names, UUIDs and MIG layout are asked once, temperature and power only when asked for,
PCIe throughput never (that call sleeps 20 ms). Latencies on an H200: memory v2 8.8 us, processes 8.7 us,
utilisation 1.8 us, name 3.9 us, MIG mode 79 us.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .model import Device, Memory, Process, Reading, Status

__all__ = ["Nvml", "source"]

SENTENCES = {
    1: "NVML was not initialised.",
    3: "This call is not supported on this device.",
    4: "No permission to ask this device (a container or a MIG parent without the capability).",
    9: "The NVIDIA driver is not loaded.",
    12: "No NVIDIA driver found on this machine.",
    15: "A GPU has fallen off the bus: the machine must be restarted.",
    17: "The driver denies access to the device in this container or session.",
    18: "The driver's library and its kernel module are of different versions: reboot, or reload the module.",
    20: "The driver ran out of memory of its own.",
    999: "The driver gives an unknown error; in a long-running container its access to the GPU may have been lost.",
}
"""A calm sentence for NVML's return codes (nvml.h, nvmlReturn_t); others are named by number."""

LOST = {15, 16}
COMPUTE_MODES = {0: "default", 1: "exclusive-thread", 2: "prohibited", 3: "exclusive-process"}
RESCAN = 30.0
"""Seconds after which a driver that was not there is asked for again."""


def _text(value: Any) -> str | None:
    """NVML's strings are bytes in old bindings and str in new ones."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None


@dataclass
class _Fixed:
    """What does not change while a device is there."""

    handle: Any
    device: Device
    fast_memory: bool = True
    """Memory v2 answers."""
    broken: frozenset[str] = frozenset()
    """Calls that said «not supported»: not asked again."""


class Nvml:
    """A DeviceSource over NVML, one for each process; a forked child starts NVML anew."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._fixed: list[_Fixed] = []
        self._failed_at = float("-inf")
        self._status = Status(False, None, "NVML was not asked yet.")
        self._versions: tuple[str | None, str | None] = (None, None)
        self._nvml: Any = None

    def read(self, *, processes: bool = True, slow: bool = True) -> Reading:
        """One reading. Never raises: what cannot be read is None, and why is a sentence."""
        with self._lock:
            if not self._start():
                return Reading(time.time(), status=self._status)
            try:
                devices = []
                for fixed in self._fixed:
                    devices.extend(self._device(fixed, processes, slow))
            except Exception as error:  # noqa: BLE001 - a reading never raises, whatever a driver gives
                self._stop()
                return Reading(time.time(), status=Status(False, None, f"NVML could not be read: {error!r}"))
            if devices and all(d.error for d in devices):
                self._failed_at, self._pid = time.monotonic(), 0  # a driver reload invalidates every handle
            return Reading(time.time(), tuple(devices), self._status, *self._versions)

    # -- starting
    def _start(self) -> bool:
        if self._pid == os.getpid():
            return True
        if time.monotonic() - self._failed_at < RESCAN:
            return False
        try:
            import pynvml
        except ImportError:
            self._status = Status(False, None, "nvidia-ml-py is not installed: %pip install nvidia-ml-py")
            return False
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            self._versions = (
                _text(self._ask("nvmlSystemGetDriverVersion")),
                _cuda_version(self._ask("nvmlSystemGetCudaDriverVersion_v2")),
            )
            count = pynvml.nvmlDeviceGetCount()
            self._fixed = [f for i in range(count) for f in self._find(i)]
        except Exception as error:  # noqa: BLE001 - see read
            self._status = self._status_of(error)
            self._stop()
            return False
        self._pid = os.getpid()
        self._status = Status(True, 0, "" if self._fixed else "The driver is loaded and has no GPU.")
        return True

    def _stop(self) -> None:
        self._pid = 0
        self._failed_at = time.monotonic()

    def _status_of(self, error: Exception) -> Status:
        code = getattr(error, "value", None)
        if not isinstance(code, int):
            return Status(False, None, f"NVML could not be started: {error}")
        return Status(False, code, SENTENCES.get(code, f"NVML answers with error {code} ({error})."))

    def _ask(self, name: str, *arguments: Any, default: Any = None) -> Any:
        """One NVML call; `default` where it fails or this binding lacks it."""
        call: Callable[..., Any] | None = getattr(self._nvml, name, None)
        if call is None:
            return default
        try:
            return call(*arguments)
        except self._nvml.NVMLError:
            return default

    # -- once for each device
    def _find(self, index: int) -> list[_Fixed]:
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        except self._nvml.NVMLError as error:
            return [_Fixed(None, Device(index, error=self._status_of(error).sentence))]
        mig = self._ask("nvmlDeviceGetMigMode", handle)
        capability = self._ask("nvmlDeviceGetCudaComputeCapability", handle)
        bus = self._ask("nvmlDeviceGetPciInfo", handle)
        card = Device(
            index=index,
            name=_text(self._ask("nvmlDeviceGetName", handle)),
            uuid=_text(self._ask("nvmlDeviceGetUUID", handle)),
            bus_id=_text(getattr(bus, "busId", None)),
            compute_capability=tuple(capability) if capability else None,
            compute_mode=COMPUTE_MODES.get(self._ask("nvmlDeviceGetComputeMode", handle)),
            mig_mode=bool(mig[0]) if mig else None,
        )
        found = [_Fixed(handle, card)]
        if card.mig_mode:
            for i in range(self._ask("nvmlDeviceGetMaxMigDeviceCount", handle, default=0)):
                instance = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, i)
                if instance is not None:
                    name = _text(self._ask("nvmlDeviceGetName", instance)) or f"MIG instance {i}"
                    uuid = _text(self._ask("nvmlDeviceGetUUID", instance))
                    found.append(_Fixed(instance, Device(i, name, uuid, parent=index)))
        return found

    # -- each time
    def _device(self, fixed: _Fixed, processes: bool, slow: bool) -> list[Device]:
        if fixed.handle is None:
            return [fixed.device]
        try:
            memory = self._memory(fixed)
        except self._nvml.NVMLError as error:
            code = getattr(error, "value", None)
            if code in LOST or code == 999:
                return [replace(fixed.device, error=SENTENCES.get(code, "The GPU is lost."))]
            memory = Memory()  # a MIG parent without permission, say: its instances have numbers of their own
        device = replace(
            fixed.device,
            memory=memory,
            utilization=self._utilization(fixed),
            processes=self._processes(fixed) if processes else None,
        )
        if slow:
            power = self._number(fixed, "nvmlDeviceGetPowerUsage")
            limit = self._number(fixed, "nvmlDeviceGetEnforcedPowerLimit")
            device = replace(
                device,
                temperature=self._number(fixed, "nvmlDeviceGetTemperature", 0),
                power=None if power is None else power / 1000,
                power_limit=None if limit is None else limit / 1000,
            )
        return [device]

    def _memory(self, fixed: _Fixed) -> Memory:
        nvml = self._nvml
        raw = None
        if fixed.fast_memory and hasattr(nvml, "nvmlMemory_v2"):
            try:
                raw = nvml.nvmlDeviceGetMemoryInfo(fixed.handle, version=nvml.nvmlMemory_v2)
            except (nvml.NVMLError, TypeError):
                fixed.fast_memory = False  # an old driver or binding: v1 counts the reserve as used
        if raw is None:
            try:
                raw = nvml.nvmlDeviceGetMemoryInfo(fixed.handle)
            except nvml.NVMLError as error:
                if getattr(error, "value", None) == 3:
                    return _system_memory()
                raise
        reserved = getattr(raw, "reserved", None)
        return _sane(int(raw.total), int(raw.used), int(raw.free), None if reserved is None else int(reserved))

    def _utilization(self, fixed: _Fixed) -> int | None:
        rates = self._guarded(fixed, "nvmlDeviceGetUtilizationRates")
        return None if rates is None or not 0 <= rates.gpu <= 100 else int(rates.gpu)

    def _number(self, fixed: _Fixed, name: str, *more: Any) -> int | None:
        value = self._guarded(fixed, name, *more)
        return int(value) if isinstance(value, int) and 0 <= value < 1 << 31 else None

    def _guarded(self, fixed: _Fixed, name: str, *more: Any) -> Any:
        """A call that is not repeated once it was «not supported»."""
        call = getattr(self._nvml, name, None)
        if call is None or name in fixed.broken:
            return None
        try:
            return call(fixed.handle, *more)
        except self._nvml.NVMLError as error:
            if getattr(error, "value", None) == 3:
                fixed.broken |= {name}
            return None

    def _processes(self, fixed: _Fixed) -> tuple[Process, ...] | None:
        found: dict[int, Process] = {}
        answered = False
        for kind in ("graphics", "compute"):
            raw = self._guarded(fixed, f"nvmlDeviceGet{kind.capitalize()}RunningProcesses")
            if raw is None:
                continue
            answered = True
            for entry in raw:
                used = entry.usedGpuMemory  # None on WSL2 and WDDM; a wrapped value is none either
                known = isinstance(used, int) and 0 <= used < 1 << 60
                found[int(entry.pid)] = Process(int(entry.pid), used if known else None, kind)
        return tuple(sorted(found.values(), key=lambda p: p.pid)) if answered else None


def _sane(total: int, used: int, free: int, reserved: int | None) -> Memory:
    """Values that cannot be (wrapped below zero, larger than the card) become None."""

    def within(value: int | None) -> int | None:
        return value if value is not None and 0 <= value <= total else None

    if not 0 < total < 1 << 60:
        return Memory()
    return Memory(total, within(used), within(free), within(reserved), used_includes_reserved=reserved is None)


def _system_memory() -> Memory:
    """A GPU that shares the system's RAM has no numbers of its own (GB10, Jetson)."""
    import psutil

    memory = psutil.virtual_memory()
    return Memory(memory.total, memory.total - memory.available, memory.available, unified=True)


def _cuda_version(number: Any) -> str | None:
    return f"{number // 1000}.{number % 1000 // 10}" if isinstance(number, int) and number > 0 else None


_source: Nvml | None = None


def source() -> Nvml:
    """The process's one source."""
    global _source
    if _source is None:
        _source = Nvml()
    return _source


def forget() -> None:
    """Drop the process's source, so that the next one looks for the driver anew."""
    global _source
    _source = None
