"""Expandable segments for the repeat, if what is free in whole pages holds what the statement needs."""

from __future__ import annotations

from ...errors import CudaMagicError
from ...render.units import bytes_text
from ..situation import Situation
from . import Did, asked

__all__ = ["RUNG"]

PAGE = 20 << 20
"""Bytes by which an expandable segment for requests over 1 MiB grows (c10/cuda/CUDACachingAllocator.cpp)."""


class _Expandable:
    id = "expandable"
    again = False
    changes = False

    def skip(self, s: Situation) -> str:
        found = asked(s)
        if isinstance(found, str):
            return found
        on = found.allocator.expandable()
        if on or on is None:
            return "already in force" if on else "this allocator does not tell"
        need = found.need(s)
        whole = found.room.driver // PAGE * PAGE
        if whole < need:
            return f"the driver has {bytes_text(whole)} in whole pages, {bytes_text(need)} is needed"
        return ""

    def run(self, s: Situation) -> Did:
        assert s.allocator is not None and s.enter is not None
        try:
            s.enter(s.allocator.with_expandable())
        except (CudaMagicError, RuntimeError) as error:
            return Did("failed", str(error).split("\n", 1)[0])
        return Did("on", "segments that can grow, for the repeat", repeat=True)


RUNG = _Expandable()
