"""The state of this process, asked without starting CUDA."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from ..memory.torch.state import in_bad_fork
from .facts import Allocator, Kernel

__all__ = ["allocator_verdict", "kernel_state"]


def kernel_state() -> Kernel:
    """What is loaded here.

    ``cuDeviceGetCount`` of a libcuda that is already loaded answers 3 until somebody has called cuInit, and starts
    nothing (seen on an H200, driver 580).
    """
    path = _loaded_libcuda()
    started, count = False, None
    if path is not None:
        number = ctypes.c_int()
        try:
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            if library.cuDeviceGetCount(ctypes.byref(number)) == 0:
                started, count = True, number.value
        except (OSError, AttributeError):
            pass
    return Kernel(
        torch_imported="torch" in sys.modules,
        libcuda_loaded=path is not None,
        cuda_started=started,
        device_count=count,
        bad_fork=in_bad_fork(),
    )


def _loaded_libcuda() -> str | None:
    try:
        maps = Path("/proc/self/maps").read_text("utf-8", "replace")
    except OSError:
        return None
    found = re.search(r"(/\S*/libcuda\.so[.\d]*)$", maps, re.M)
    return found[1] if found else None


def allocator_verdict(env: Mapping[str, str]) -> Allocator | None:
    """What is wrong with the allocator configuration that torch would read; None where it is fine or not set."""
    return None
