"""How far this process has come: torch absent, imported, CUDA started, a context exists. Read, never caused."""

from __future__ import annotations

import ctypes
import enum
import sys
from pathlib import Path

__all__ = ["Moment", "device_count", "now"]

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


def _context() -> bool:
    torch = sys.modules.get("torch")
    return bool(getattr(getattr(torch, "cuda", None), "_initialized", False))


def now() -> Moment:
    """The moment that this process is at."""
    if _context():
        return Moment.CONTEXT
    if _started():
        return Moment.STARTED
    return Moment.IMPORTED if "torch" in sys.modules else Moment.BEFORE_IMPORT
