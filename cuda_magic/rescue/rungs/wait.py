"""Wait for other processes that hold the card, at most ``--wait`` seconds; an interrupt ends it at once."""

from __future__ import annotations

import time

from ...render.units import bytes_text
from ..situation import CONTEXT, Situation
from . import Did

__all__ = ["RUNG"]

LOOK = 0.2
SAY = 5.0
"""Seconds between two looks, and between two lines."""


class _Wait:
    id = "wait"
    again = False
    changes = True

    def skip(self, s: Situation) -> str:
        if s.options.wait <= 0:
            return "--wait was not given"
        others = s.others()
        if others is None:
            return "who holds the card cannot be read"
        if others == 0 and not _free(s):  # where there is room by now, they have left meanwhile
            return "no other process holds memory of this card"
        return ""

    def run(self, s: Situation) -> Did:
        began = time.monotonic()
        ends = began + s.options.wait
        spoke = 0.0
        while True:
            if _free(s):
                return Did(reason="another process gave memory back", repeat=True)
            now = time.monotonic()
            if now >= ends:
                return Did("failed", f"no process gave back enough in {s.options.wait:g} s")
            if now - spoke >= SAY:
                spoke = now
                others = s.others()
                so_far = f"{now - began:.0f} of {s.options.wait:g} s"
                s.say(f"cuda_guard: waiting for other processes, which hold {bytes_text(others)} ({so_far})")
            time.sleep(min(LOOK, max(0.0, ends - now)))


def _free(s: Situation) -> bool:
    enough = s.enough()
    if enough is not None:
        return enough
    room = s.room()
    if room is not None:
        return room.driver >= (s.request or CONTEXT)
    card = s.reading()
    free = card.memory.free if card is not None else None
    return free is not None and free >= CONTEXT + (s.request or 0)


RUNG = _Wait()
