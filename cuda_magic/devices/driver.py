"""The CUDA driver that this process has already loaded: what it answers without being started, and without a context.

Only passive calls: none of them calls cuInit, creates a context or changes the current one.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

__all__ = ["contexts", "default_pool", "device_count", "loaded", "started", "trim_default_pool", "uuids"]

NOT_INITIALISED = 3
"""CUDA_ERROR_NOT_INITIALIZED: what cuDeviceGetCount answers until somebody called cuInit (seen on an H200)."""
RESERVED_NOW, USED_NOW = 5, 7
"""CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT and CU_MEMPOOL_ATTR_USED_MEM_CURRENT (cuda.h, since CUDA 11.3)."""


def loaded() -> Any:
    """The libcuda that this process has already loaded; None where there is none, and then none is loaded."""
    try:
        with Path("/proc/self/maps").open() as maps:
            path = next((line.split()[-1] for line in maps if "/libcuda.so" in line), "")
        return ctypes.CDLL(path) if path else None
    except OSError:
        return None


def device_count() -> int | None:
    """How many devices the CUDA of this process sees; None until it is started."""
    count = ctypes.c_int()
    try:
        cuda = loaded()
        return count.value if cuda is not None and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 else None
    except (OSError, AttributeError):
        return None


def uuids() -> list[str] | None:
    """The UUIDs of the devices of this process's CUDA, in its order; None until it is started. Needs no context."""
    count = device_count()
    if count is None:
        return None
    found = []
    handle, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    try:
        cuda = loaded()
        ask = getattr(cuda, "cuDeviceGetUuid_v2", None) or cuda.cuDeviceGetUuid
        for index in range(count):
            if cuda.cuDeviceGet(ctypes.byref(handle), index) or ask(uuid, handle):
                return None
            text = bytes(uuid).hex()
            found.append("gpu-" + "-".join([text[:8], text[8:12], text[12:16], text[16:20], text[20:]]))
    except (OSError, AttributeError):
        return None
    return found


def started() -> bool:
    """Whether somebody in this process has called cuInit."""
    try:
        cuda = loaded()
        return cuda is not None and int(cuda.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))) != NOT_INITIALISED
    except (OSError, AttributeError):
        return False


def contexts() -> tuple[int, ...]:
    """Indices of the devices whose primary context is active: torch's, CuPy's or another library's."""
    flags, active = ctypes.c_uint(), ctypes.c_int()
    found = []
    try:
        cuda = loaded()
        for device in range(device_count() or 0):
            answer = cuda.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
            if answer == 0 and active.value:
                found.append(device)
    except (OSError, AttributeError):
        pass
    return tuple(found)


def _default_pool(cuda: Any, device: int) -> ctypes.c_void_p | None:
    pool = ctypes.c_void_p()
    return pool if cuda.cuDeviceGetDefaultMemPool(ctypes.byref(pool), device) == 0 else None


def default_pool(device: int) -> tuple[int, int] | None:
    """(reserved, used) bytes of the device's stream-ordered pool (cudaMallocAsync); None where there is none."""
    reserved, used = ctypes.c_uint64(), ctypes.c_uint64()
    try:
        cuda = loaded()
        pool = None if cuda is None else _default_pool(cuda, device)
        if pool is None or cuda.cuMemPoolGetAttribute(pool, RESERVED_NOW, ctypes.byref(reserved)):
            return None
        if cuda.cuMemPoolGetAttribute(pool, USED_NOW, ctypes.byref(used)):
            return None
        return reserved.value, used.value
    except (OSError, AttributeError):
        return None


def trim_default_pool(device: int) -> bool:
    """Give what lies unused in the device's stream-ordered pool back to the driver; False where that failed."""
    try:
        cuda = loaded()
        pool = None if cuda is None else _default_pool(cuda, device)
        return pool is not None and cuda.cuMemPoolTrimTo(pool, ctypes.c_size_t(0)) == 0
    except (OSError, AttributeError):
        return False
