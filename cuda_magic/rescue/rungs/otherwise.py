"""``--else NAME=EXPR``: other values for the named variables, once."""

from __future__ import annotations

from ...memory.torch import distributed
from ..situation import Situation
from . import Did

__all__ = ["RUNG"]


class _Otherwise:
    id = "else"
    again = False
    changes = True

    def skip(self, s: Situation) -> str:
        if not s.options.otherwise:
            return "--else was not given"
        alone = distributed.alone()
        if alone:
            return alone
        read = [name for name, _ in s.options.otherwise if name in s.read_before]
        return f"an earlier statement of this cell already read {', '.join(read)}" if read else ""

    def run(self, s: Situation) -> Did:
        values = {}
        for name, expression in s.options.otherwise:
            try:
                values[name] = eval(expression, s.namespace)
            except Exception as error:  # noqa: BLE001 - whatever the user's expression raises
                return Did("failed", f"{name}={expression}: {type(error).__name__}: {error}")
        s.namespace.update(values)
        return Did("ran", ", ".join(f"{n}={e}" for n, e in s.options.otherwise), repeat=True)


RUNG = _Otherwise()
