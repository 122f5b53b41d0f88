"""The only place that knows pynvml (distribution nvidia-ml-py). Starts no CUDA, never raises, prints nothing.

Names, UUIDs and the MIG layout are asked once (MIG mode takes 79 us on an H200), temperature, power and graphics
processes only in slow readings, PCIe throughput never: that call sleeps for 20 ms.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

from .calls import Calls, NvmlFailed
from .codes import LOST, RESTART, sentence, status
from .model import Device, Memory, Process, Reading, Status

__all__ = ["Nvml", "forget", "source"]

COMPUTE_MODES = {0: "default", 1: "exclusive-thread", 2: "prohibited", 3: "exclusive-process"}
AGAIN = 5.0
"""Seconds after which a driver or a device that was not there is looked for again."""


_NOTHING: dict[str, Any] = dict.fromkeys(Device.__dataclass_fields__)


@dataclass
class _Known:
    """One device: what does not change, and what the last slow reading gave."""

    device: Device
    calls: Calls | None
    fields: dict[str, Any] = field(default_factory=dict)
    slow: dict[str, Any] = field(default_factory=dict)
    graphics: list[Process] | None = None
    asked: dict[str, Any] = field(default_factory=dict)
    """Limits, asked once."""

    def limits(self) -> dict[str, Any]:
        """The temperature and the clock that the card is made for."""
        if not self.asked and self.calls is not None:
            self.asked = {
                "temperature_limit": self.calls.temperature_limit(),
                "clock_limit": self.calls.clock("nvmlDeviceGetMaxClockInfo"),
            }
        return self.asked

    def __post_init__(self) -> None:
        names = ("index", "name", "uuid", "bus_id", "compute_capability", "compute_mode", "parent", "mig_mode")
        self.fields = {**_NOTHING, **{name: getattr(self.device, name) for name in names}}


class Nvml:
    """A DeviceSource over NVML, one for each process; a forked child starts NVML anew."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._known: list[_Known] = []
        self._names: dict[tuple[int | None, int], Device] = {}
        """Devices seen before, so that a lost one can still be named."""
        self._looked = float("-inf")
        self._status = Status(False, None, "NVML was not asked yet.")
        self._versions: tuple[str | None, str | None] = (None, None)
        self._nvml: Any = None

    @property
    def well(self) -> bool:
        """Whether the last reading was had."""
        return self._status.ok

    def read(self, *, processes: bool = True, slow: bool = True) -> Reading:
        """One reading. What cannot be read is None, and why is a sentence; without `slow` the last slow values stay."""
        with self._lock:
            for last in (False, True):
                if not self._start():
                    return Reading(time.time(), status=self._status)
                try:
                    devices = tuple([self._device(known, processes, slow) for known in self._known])
                except NvmlFailed as error:  # somebody shut NVML down
                    self._status = Status(False, error.code, sentence(error.code))
                    self._pid, self._looked = 0, float("-inf") if not last else time.monotonic()
                    continue
                except Exception as error:  # noqa: BLE001 - a reading never raises, whatever a driver gives
                    self._pid, self._looked = 0, time.monotonic()
                    self._status = Status(False, None, f"NVML could not be read ({type(error).__name__}).")
                    break
                return Reading(time.time(), devices, self._status, *self._versions)
            return Reading(time.time(), status=self._status)

    # -- starting
    def _start(self) -> bool:
        if self._pid == os.getpid():
            return True
        if self._pid:  # a forked child: the parent's failures are not its own
            self._pid, self._looked = 0, float("-inf")
        if time.monotonic() - self._looked < AGAIN:
            return False
        self._looked = time.monotonic()
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
            self._known = [known for i in range(count) for known in self._find(i)]
        except Exception as error:  # noqa: BLE001 - see read
            self._status = status(error)
            return False
        self._pid = os.getpid()
        self._status = Status(True, 0, "" if self._known else "The driver is loaded and has no GPU.")
        return True

    def _ask(self, name: str, *arguments: Any) -> Any:
        """One of pynvml's functions; None where it fails or this binding lacks it."""
        call = getattr(self._nvml, name, None)
        if call is None:
            return None
        try:
            return call(*arguments)
        except (self._nvml.NVMLError, UnicodeDecodeError):
            return None

    def _find(self, index: int) -> list[_Known]:
        """A card and its MIG instances."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            before = self._names.get((None, index), Device(index))
            return [_Known(replace(before, error=sentence(getattr(error, "value", 999))), None)]
        mig = self._ask("nvmlDeviceGetMigMode", handle)
        capability = self._ask("nvmlDeviceGetCudaComputeCapability", handle)
        card = Device(
            index=index,
            name=_text(self._ask("nvmlDeviceGetName", handle)),
            uuid=_text(self._ask("nvmlDeviceGetUUID", handle)),
            bus_id=_text(getattr(self._ask("nvmlDeviceGetPciInfo", handle), "busId", None)),
            compute_capability=tuple(capability) if capability else None,
            compute_mode=COMPUTE_MODES.get(self._ask("nvmlDeviceGetComputeMode", handle)),
            mig_mode=bool(mig[0]) if mig else None,
        )
        self._names[None, index] = card
        found = [_Known(card, Calls(nvml.nvmlLib, handle, shared=not card.mig_mode))]
        for i in range(self._ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0 if card.mig_mode else 0):
            instance = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, i)
            if instance is not None:
                name = _text(self._ask("nvmlDeviceGetName", instance)) or f"MIG instance {i}"
                one = Device(i, name, _text(self._ask("nvmlDeviceGetUUID", instance)), parent=index)
                found.append(_Known(one, Calls(nvml.nvmlLib, instance, shared=False)))
        return found

    # -- each time
    def _device(self, known: _Known, processes: bool, slow: bool) -> Device:
        if known.calls is None:
            self._look_again()
            return known.device
        calls = known.calls
        error = None
        memory = Memory()
        try:
            memory = calls.memory()
        except NvmlFailed as failed:
            if failed.code == 1:
                raise
            if failed.code in LOST:
                self._look_again(failed.code)
                return replace(known.device, error=sentence(failed.code))
            # a card cut into MIG instances may be closed to a container: its instances have numbers of their own
            error = None if failed.code == 4 and known.device.mig_mode else sentence(failed.code)
        try:
            utilization = calls.utilization()
            found = self._processes(known, memory, slow) if processes else None
            if slow:
                known.slow = {
                    "temperature": calls.temperature(),
                    "power": calls.watts("nvmlDeviceGetPowerUsage"),
                    "power_limit": calls.watts("nvmlDeviceGetEnforcedPowerLimit"),
                    "clock": calls.clock("nvmlDeviceGetClockInfo"),
                    "throttled": calls.throttled(),
                    **known.limits(),
                }
        except NvmlFailed as failed:
            if failed.code == 1:
                raise
            return replace(known.device, error=sentence(failed.code))
        # past the constructor of a frozen dataclass, which takes 5 us for so many fields
        device = object.__new__(Device)
        vars(device).update(
            known.fields, memory=memory, utilization=utilization, processes=found, error=error, **known.slow
        )
        return device

    def _look_again(self, code: int = 15) -> None:
        """From time to time NVML is started anew: a lost device may be back, or the driver loaded again."""
        wait = AGAIN if code in RESTART else 2 * AGAIN
        if time.monotonic() - self._looked > wait:
            self._pid = 0
            # the next reading starts anew; others' use of NVML goes on, since starts are counted

    def _processes(self, known: _Known, memory: Memory, slow: bool) -> tuple[Process, ...] | None:
        assert known.calls is not None
        total = None if memory.unified else memory.total
        compute = known.calls.processes("Compute", total)
        if slow or known.graphics:
            known.graphics = known.calls.processes("Graphics", total)
        if compute is None:
            return None  # a part of the list would look like the whole
        if not known.graphics and len(compute) < 2:
            return tuple(compute)
        found = {p.pid: p for p in (*(known.graphics or ()), *compute)}  # one in both lists is compute
        return tuple(sorted(found.values(), key=lambda p: p.pid))


def _text(value: Any) -> str | None:
    """NVML's strings are bytes in old bindings and str in new ones."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None


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


def _after_fork() -> None:
    if _source is not None:
        _source._lock = threading.Lock()  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
