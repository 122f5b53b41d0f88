"""The caching allocator bypassed for the repeat: no segment of 20 MiB for a request of 5."""

from __future__ import annotations

from ...errors import CudaMagicError
from ...render.units import bytes_text
from ..situation import Situation
from . import Did

__all__ = ["RUNG"]

GRANULE = 2 << 20
"""Bytes in which the driver gives memory (cudaMalloc on an H200)."""


class _CudaMalloc:
    id = "cudamalloc"
    again = False
    changes = False

    def skip(self, s: Situation) -> str:
        room = s.room()
        if s.allocator is None or s.device is None or room is None:
            return "the allocator cannot be asked"
        if not s.fault.torch_allocator or s.request is None:
            return "the request was not the caching allocator's"
        # a request from 1 to 10 MiB makes a segment of 20: the message tells the segment
        smallest = GRANULE if s.request <= 20 << 20 else s.request
        taken = (s.need or s.request) - s.request
        if room.driver < smallest + taken:
            need = smallest + taken
            return f"the driver has {bytes_text(room.driver)} for this process, {bytes_text(need)} is needed"
        return ""

    def run(self, s: Situation) -> Did:
        assert s.allocator is not None and s.enter is not None
        try:
            s.enter(s.allocator.uncached())
        except (CudaMagicError, RuntimeError) as error:
            return Did("failed", f"not possible in this kernel: {str(error).splitlines()[0]}")
        return Did("on", repeat=True)


RUNG = _CudaMalloc()
