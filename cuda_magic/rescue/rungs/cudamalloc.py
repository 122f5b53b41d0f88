"""The caching allocator bypassed for the repeat: no segment of 20 MiB for a request of 5."""

from __future__ import annotations

from ...errors import CudaMagicError
from ...render.units import bytes_text
from ..situation import Situation
from . import Did, asked

__all__ = ["RUNG"]

GRANULE = 2 << 20
"""Bytes in which the driver gives memory (cudaMalloc on an H200)."""


class _CudaMalloc:
    id = "cudamalloc"
    again = False
    changes = False

    def skip(self, s: Situation) -> str:
        found = asked(s)
        if isinstance(found, str):
            return found
        # a request from 1 to 10 MiB makes a segment of 20: the message tells the segment
        smallest = GRANULE if found.request <= 20 << 20 else found.request
        need = smallest + found.need(s) - found.request
        if found.room.driver < need:
            return f"the driver has {bytes_text(found.room.driver)}, {bytes_text(need)} is needed"
        return ""

    def run(self, s: Situation) -> Did:
        assert s.allocator is not None and s.enter is not None
        try:
            s.enter(s.allocator.uncached())
        except (CudaMagicError, RuntimeError) as error:
            return Did("failed", f"not possible in this kernel: {str(error).splitlines()[0]}")
        return Did("on", "past torch's cache, from the driver", repeat=True)


RUNG = _CudaMalloc()
