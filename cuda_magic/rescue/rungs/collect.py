"""The garbage collector, outside of ``except``: inside, what the error's frames hold in a cycle survives."""

from __future__ import annotations

import gc

from ..owners import owner_types
from ..situation import Situation
from . import Did

__all__ = ["RUNG"]


class _Collect:
    id = "collect"
    again = True
    changes = False

    def skip(self, s: Situation) -> str:
        return ""

    def run(self, s: Situation) -> Did:
        known = s.allocator is not None and s.device is not None and s.device in s.allocator.devices()
        before = owner_types(s.allocator, s.device) if known and s.allocator and s.device is not None else {}
        gc.collect()
        if not before or s.allocator is None or s.device is None:
            return Did()
        alive = {(where, key) for _, where, key, _ in s.allocator.owners()}
        cycles: dict[str, int] = {}
        for storage, (holder, nbytes) in before.items():
            if storage not in alive:
                cycles[holder] = cycles.get(holder, 0) + nbytes
        return Did(cycles=tuple(sorted(cycles.items(), key=lambda c: -c[1])))


RUNG = _Collect()
