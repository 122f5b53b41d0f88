"""Virtual memory for tensors: during the repeat, those used last of all leave for the host when an op finds no room."""

from __future__ import annotations

from ...errors import CudaMagicError
from ...render.units import bytes_text
from ..situation import Situation
from . import Did

__all__ = ["RUNG"]


SMALLEST = 1 << 20
"""Bytes of the smallest storage that leaves."""


class _Page:
    id = "page"
    again = False
    changes = False

    def skip(self, s: Situation) -> str:
        if s.options.no_move:
            return "--no-move was given"
        if s.allocator is None or s.device is None:
            return "the allocator cannot be asked"
        ops = s.allocator.ops()
        if ops is None:
            return "this library has no ops that can be watched"
        if not s.fault.torch_allocator:
            return "the request was not the caching allocator's"
        device = s.device
        refused = ops.page_refused(device)
        if refused:
            return refused
        room = s.room()
        if room is not None and s.request is not None and room.total < s.request:
            listed = s.allocator.storages(s.device, doing="park")
            could = sum(x.nbytes for x in listed if not x.reason and x.nbytes >= SMALLEST)
            del listed
            if room.total + could < s.request:
                return f"only {bytes_text(could)} could leave, {bytes_text(s.request - room.total)} more is needed"
        whole = room.total + room.allocated if room is not None else None
        if whole is not None and s.request is not None and s.request > whole:
            return f"one operation asks for {bytes_text(s.request)}, of {bytes_text(whole)} for this process"
        return ""

    def run(self, s: Situation) -> Did:
        assert s.allocator is not None and s.device is not None and s.enter is not None
        ops = s.allocator.ops()
        assert ops is not None
        try:
            s.enter(ops.paging(s.device, place=s.options.park))
        except (CudaMagicError, RuntimeError) as error:
            return Did("failed", str(error).split("\n", 1)[0])
        return Did("on", repeat=True)


RUNG = _Page()
