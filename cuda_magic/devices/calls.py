"""NVML's calls that every reading makes, with buffers made once: a pass over a device takes some 30 us.

pynvml's own functions build a structure at each call and ask for processes twice, which alone takes longer than the
driver needs to answer. Latencies on an H200: memory v2 8.8 us, processes 8.7 us, utilisation 1.8 us.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from .codes import FOR_EVER
from .model import THROTTLED, Memory, Process

__all__ = ["Calls", "NvmlFailed", "system_memory"]

_VERSION_2 = 0x02000028
"""nvmlMemory_v2: the structure's size, and 2 in the top byte."""
_SOME = 32
"""Room for so many processes at first."""
_ENOUGH = 1 << 60
"""No card has so many bytes: larger values are wrapped ones."""

_TROUBLE = sum(THROTTLED)


class NvmlFailed(Exception):
    """A call on a device failed with `code`."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class _Memory2(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        *((name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")),
    ]


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class _Rates(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Calls:
    """The calls on one device. `shared` says whether a card without memory numbers uses the system's RAM."""

    def __init__(self, library: Any, handle: Any, shared: bool) -> None:
        self.library, self.handle, self.shared = library, handle, shared
        self._memory, self._memory2, self._rates = _Memory(), _Memory2(), _Rates()
        self._number, self._count, self._bits = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_ulonglong()
        self._memory2.version = _VERSION_2
        self._at_memory2, self._at_rates = ctypes.byref(self._memory2), ctypes.byref(self._rates)
        self._at_count = ctypes.byref(self._count)
        self._rooms: dict[str, Any] = {}
        self._missing: set[str] = set()
        self._names: dict[str, Callable[..., int] | None] = {}
        self._plain_memory = False

    def _ask(self, name: str, *arguments: Any) -> int:
        """One call; its code. A call that is unsupported for good is not made again.

        Raises
        ------
        NvmlFailed
            Where the device, or NVML itself, is not there any more.
        """
        function = self._names.get(name)
        if function is None:
            if name in self._missing:
                return 3
            try:
                function = self._names[name] = getattr(self.library, name)
            except AttributeError:
                self._missing.add(name)
                return 13
        code = function(self.handle, *arguments)
        if code == 0:
            return 0
        if code in FOR_EVER:
            self._missing.add(name)
            self._names[name] = None
        elif code in (1, 15, 16):
            raise NvmlFailed(code)
        return code

    def memory(self) -> Memory:
        """The device's memory; the system's where the device shares it.

        Raises
        ------
        NvmlFailed
            With the code, where there is no answer.
        """
        if not self._plain_memory:
            raw = self._memory2
            code = self._ask("nvmlDeviceGetMemoryInfo_v2", self._at_memory2)
            if code == 0:
                return _sane(raw.total, raw.used, raw.free, raw.reserved)
            if code not in FOR_EVER:
                raise NvmlFailed(code)
            self._plain_memory = True  # an old driver: version 1 counts the driver's reserve as used
        old = self._memory
        code = self._ask("nvmlDeviceGetMemoryInfo", ctypes.byref(old))
        if code == 0:
            return _sane(old.total, old.used, old.free, None)
        if code == 3 and self.shared:
            return system_memory()
        raise NvmlFailed(code)

    def utilization(self) -> int | None:
        """Percent."""
        rates = self._rates
        code = self._ask("nvmlDeviceGetUtilizationRates", self._at_rates)
        return rates.gpu if code == 0 and rates.gpu <= 100 else None

    def temperature(self) -> int | None:
        """Degrees Celsius."""
        number = self._number
        code = self._ask("nvmlDeviceGetTemperature", 0, ctypes.byref(number))
        return number.value if code == 0 and number.value < 200 else None

    def watts(self, name: str) -> float | None:
        """What a call that answers in milliwatts says."""
        number = self._number
        code = self._ask(name, ctypes.byref(number))
        return number.value / 1000 if code == 0 and number.value < 1 << 24 else None

    def temperature_limit(self) -> int | None:
        """Degrees Celsius at which the card slows itself down (NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)."""
        number = self._number
        code = self._ask("nvmlDeviceGetTemperatureThreshold", 1, ctypes.byref(number))
        return number.value if code == 0 and 0 < number.value < 200 else None

    def clock(self, name: str) -> int | None:
        """MHz of the multiprocessors (NVML_CLOCK_SM), now or at most, as the call's `name` says."""
        number = self._number
        code = self._ask(name, 1, ctypes.byref(number))
        return number.value if code == 0 and number.value < 1 << 16 else None

    def throttled(self) -> int | None:
        """Reasons for which the clock is held down, as bits; the older name of the call is the same call."""
        bits = self._bits
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            if self._ask(name, ctypes.byref(bits)) == 0:
                return bits.value & _TROUBLE
        return None

    def processes(self, kind: str, total: int | None) -> list[Process] | None:
        """Processes of one `kind` (``Compute`` or ``Graphics``), None where they cannot be read."""
        name = f"nvmlDeviceGet{kind}RunningProcesses_v3"
        if name in self._missing:
            name = f"nvmlDeviceGet{kind}RunningProcesses_v2"  # the same structure, of older drivers
        count = self._count
        for _ in range(3):
            room = self._rooms.get(kind)
            if room is None:
                room = self._rooms[kind] = (_Process * _SOME)()
            count.value = len(room)
            code = self._ask(name, self._at_count, room)
            if code == 0 and not count.value:
                return []
            if code == 7:
                self._rooms[kind] = (_Process * (2 * count.value + _SOME))()
                continue
            if code in FOR_EVER and name.endswith("_v3"):
                name = name[:-1] + "2"
                continue
            if code != 0:
                return None
            largest = total or _ENOUGH
            small = kind.lower()
            return [Process(p.pid, p.used if p.used <= largest else None, small) for p in room[: count.value]]
        return None


def _sane(total: int, used: int, free: int, reserved: int | None) -> Memory:
    """Values that cannot be (wrapped below zero, larger than the card) become None."""
    if not 0 < total < _ENOUGH:
        return Memory()
    memory = object.__new__(Memory)  # past the constructor of a frozen dataclass, which takes longer than the call
    vars(memory).update(
        total=total,
        used=used if used <= total else None,
        free=free if free <= total else None,
        reserved=reserved if reserved is not None and reserved <= total else None,
        used_includes_reserved=reserved is None,
        unified=False,
    )
    return memory


def system_memory() -> Memory:
    """A GPU that shares the system's RAM has no numbers of its own (GB10, Jetson)."""
    import psutil

    memory = psutil.virtual_memory()
    return Memory(memory.total, memory.total - memory.available, memory.available, unified=True)
