"""Move live tensors together on the card itself, if a plan says that the request will fit afterwards."""

from __future__ import annotations

from ...render.units import bytes_text
from ..situation import Situation
from . import Did

__all__ = ["RUNG"]


class _Compact:
    id = "compact"
    again = False
    changes = False

    def skip(self, s: Situation) -> str:
        if s.options.no_move:
            return "--no-move was given"
        room = s.room()
        if s.allocator is None or s.device is None or room is None:
            return "the heap cannot be read"
        if not s.fault.torch_allocator or s.request is None:
            return "the request was not the caching allocator's"
        need = max(s.need or 0, s.request)
        if room.total < need:
            return f"{bytes_text(room.total)} is free in all, {bytes_text(need)} is needed"
        anyway = s.options.move_anyway
        refused = s.allocator.moving_refused(s.device, anyway=anyway)
        if refused and not anyway and not s.allocator.moving_refused(s.device, anyway=True):
            return f"{refused}; --move-anyway moves nevertheless"
        return refused

    def run(self, s: Situation) -> Did:
        from ...memory.compaction import Outcome, compact

        assert s.allocator is not None and s.device is not None and s.request is not None
        # the message rounds what was asked: first all that the statement took, then the request, rounded up and as said
        sizes = sorted({s.need or s.request, s.request + s.fault.sizes.precision, s.request}, reverse=True)
        outcome = Outcome(False)
        for size in sizes:
            outcome = compact(s.allocator, s.device, size, anyway=s.options.move_anyway)
            if outcome.done:
                return Did(reason=f"moved {bytes_text(outcome.moved)} on the card", repeat=True, moved=outcome.moved)
        return Did("failed", outcome.reason, moved=outcome.moved)


RUNG = _Compact()
