"""Give cached memory back to the driver: torch's blocks, cuBLAS workspaces, cuFFT plans, other libraries' pools."""

from __future__ import annotations

from ...memory.pools import pools, release, unread
from ...render.units import bytes_text
from ..situation import Situation
from . import Did

__all__ = ["RUNG"]


def _said(cleared: list[str], s: Situation) -> str:
    """What was cleared, and what a library keeps although nothing uses it."""
    kept = [
        f"{bytes_text(pool.free)} lie unused in {pool.owner}'s pool: {pool.kept}"
        for pool in pools()
        if pool.kept and pool.free and s.device in (None, pool.device)
    ]
    return "; ".join(filter(None, [", ".join(cleared), *kept, unread()]))


class _Caches:
    id = "caches"
    again = True
    changes = False

    def skip(self, s: Situation) -> str:
        if s.allocator is not None and s.allocator.devices():
            return ""
        return "" if pools() else "no library here has a cache on the device"

    def run(self, s: Situation) -> Did:
        if s.allocator is None or not s.allocator.devices():
            return Did(reason=_said(release(), s))
        # workspaces first: they lie in the cache that is emptied then
        cleared = s.allocator.clear_workspaces()
        s.allocator.empty_cache()
        return Did(reason=_said(cleared, s))


RUNG = _Caches()
