"""Give back what ``--reserve`` has set aside: it has served what it could, now the whole heap may have it."""

from __future__ import annotations

from ...render.units import bytes_text
from ..situation import Situation
from . import Did

__all__ = ["RUNG"]


class _Reserve:
    id = "reserve"
    again = True
    changes = False

    def skip(self, s: Situation) -> str:
        if not s.options.reserve:
            return "--reserve was not given"
        return "" if s.reserve is not None and s.reserve.active else "nothing is set aside"

    def run(self, s: Situation) -> Did:
        assert s.reserve is not None
        left = s.reserve.release(not s.options.no_move)
        return Did(reason=f"{bytes_text(left)} of it are in use" if left else "")


RUNG = _Reserve()
