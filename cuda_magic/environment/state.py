"""How far this process has come: torch absent, imported, CUDA started, a context exists. Read, never caused."""

from __future__ import annotations

import ctypes
import enum
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Moment", "Progress", "device_count", "now", "progress"]

NOT_INITIALISED = 3
"""CUDA_ERROR_NOT_INITIALIZED: what cuDeviceGetCount answers until somebody called cuInit (seen on an H200)."""


class Moment(enum.IntEnum):
    """Later moments are larger."""

    BEFORE_IMPORT = 0
    IMPORTED = 1
    STARTED = 2
    """cuInit was called (torch.cuda.is_available() does)."""
    CONTEXT = 3
    """torch has initialised CUDA, or a context exists."""


def _library() -> str:
    """Path of a libcuda that this process has already loaded, or an empty string."""
    try:
        with Path("/proc/self/maps").open() as maps:
            return next((line.split()[-1] for line in maps if "/libcuda.so" in line), "")
    except OSError:
        return ""


def _started() -> bool:
    path = _library()
    if not path:
        return False
    try:
        cuda = ctypes.CDLL(path)
        return int(cuda.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))) != NOT_INITIALISED
    except (OSError, AttributeError):
        return False


def device_count() -> int | None:
    """How many devices the CUDA of this process sees; None until it is started."""
    path = _library()
    count = ctypes.c_int()
    try:
        return count.value if path and ctypes.CDLL(path).cuDeviceGetCount(ctypes.byref(count)) == 0 else None
    except (OSError, AttributeError):
        return None


def _any_context() -> bool:
    """Whether a device's primary context is active: torch's, CuPy's or another library's. Creates none."""
    try:
        cuda = ctypes.CDLL(_library())
        flags, active = ctypes.c_uint(), ctypes.c_int()
        for device in range(device_count() or 0):
            answer = cuda.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
            if answer == 0 and active.value:
                return True
    except (OSError, AttributeError):
        pass
    return False


@dataclass(frozen=True)
class Progress:
    """How far torch has come and how far the driver has: another library may start CUDA before torch is imported."""

    imported: bool = False
    initialised: bool = False
    """torch has initialised CUDA."""
    started: bool = False
    """cuInit was called."""
    context: bool = False

    @property
    def moment(self) -> Moment:
        if self.context or self.initialised:
            return Moment.CONTEXT
        if self.started:
            return Moment.STARTED
        return Moment.IMPORTED if self.imported else Moment.BEFORE_IMPORT

    @property
    def words(self) -> str:
        """One sentence; whether torch is imported is always said."""
        torch = "torch is already imported" if self.imported else "torch is not imported yet"
        if self.initialised:
            return f"{torch} and uses CUDA in this process."
        if self.context:
            return f"{torch}; another library uses CUDA in this process."
        if self.started:
            return f"{torch}; CUDA is already started in this process (cuInit was called)."
        return f"{torch}; CUDA is not started." if self.imported else f"{torch}."


def progress() -> Progress:
    """How far this process has come."""
    torch = sys.modules.get("torch")
    initialised = bool(getattr(getattr(torch, "cuda", None), "_initialized", False))
    started = initialised or _started()
    return Progress(torch is not None, initialised, started, initialised or (started and _any_context()))


def now() -> Moment:
    """The moment that this process is at."""
    return progress().moment
