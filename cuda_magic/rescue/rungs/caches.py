"""Give cached memory back to the driver: torch's blocks, cuBLAS workspaces, cuFFT plans, other libraries' pools."""

from __future__ import annotations

import sys

from ..situation import Situation
from . import Did

__all__ = ["RUNG"]


def _cupy() -> list[str]:
    cupy = sys.modules.get("cupy")
    if cupy is None or not hasattr(cupy, "get_default_memory_pool"):
        return []
    cupy.get_default_memory_pool().free_all_blocks()
    return ["CuPy's pool"]


class _Caches:
    id = "caches"
    again = True
    changes = False

    def skip(self, s: Situation) -> str:
        if s.allocator is not None and s.allocator.devices():
            return ""
        return "" if "cupy" in sys.modules else "no library here has a cache on the device"

    def run(self, s: Situation) -> Did:
        if s.allocator is None or not s.allocator.devices():
            return Did(reason=", ".join(_cupy()))
        # workspaces first: they lie in the cache that is emptied then
        cleared = s.allocator.clear_workspaces()
        s.allocator.empty_cache()
        return Did(reason=", ".join(cleared))


RUNG = _Caches()
