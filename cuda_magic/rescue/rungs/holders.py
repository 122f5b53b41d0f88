"""Let go of IPython's and Python's references to earlier failures and, if asked, to shown values."""

from __future__ import annotations

import time

from ...kernel import holders as kernel
from ...memory.variables import SECONDS, Root, Search, tracebacks, user_variables
from ...render.units import bytes_text
from ..situation import Situation
from . import Did

__all__ = ["RUNG"]


class _Holders:
    id = "holders"
    again = True
    changes = False

    def skip(self, s: Situation) -> str:
        errors = kernel.earlier_errors(s.shell)
        outputs = s.options.free_outputs and kernel.outputs(s.shell)
        return "" if errors or outputs else "no earlier failure is kept"

    def run(self, s: Situation) -> Did:
        said = _tracebacks(s)
        dropped = kernel.forget_errors(s.shell)
        s.memory["let go"] = bool(said)
        parts = []
        if dropped:
            parts.append(f"{dropped} references to earlier failures" + (f": {', '.join(said)}" if said else ""))
        shown = _outputs(s) if s.options.free_outputs else []
        if shown:
            parts.append(f"shown values: {', '.join(shown)}")
        return Did(reason="let go of " + "; ".join(parts) if parts else "")


def _tracebacks(s: Situation) -> list[str]:
    """The earlier failures that alone hold memory of the device, each with its cell and its bytes."""
    if s.allocator is None or s.device is None or s.device not in s.allocator.devices():
        return []
    roots = user_variables(s.namespace, s.shell)
    roots += [Root("output", name, value) for name, value in kernel.outputs(s.shell).items()]
    search = Search(s.allocator, s.namespace, s.device, SECONDS / 2, s.allocator.stats(s.device).allocated)
    rows = search.held(roots + tracebacks(s.shell))
    return [f"the {row.name} ({bytes_text(row.nbytes)})" for row in rows if row.kind == "traceback"]


def _outputs(s: Situation) -> list[str]:
    """Let go of the shown values that hold memory; each once, by its first name."""
    if s.allocator is None:
        return []
    held: dict[int, tuple[str, object]] = {}
    ends = time.perf_counter() + SECONDS
    for name, value in kernel.outputs(s.shell).items():
        left = ends - time.perf_counter()
        rows = Search(s.allocator, s.namespace, seconds=left).held([Root("output", name, value)]) if left > 0 else []
        if rows:
            held.setdefault(id(value), (f"{name} ({bytes_text(sum(row.nbytes for row in rows))})", value))
    freed = kernel.forget_outputs(s.shell, [value for _, value in held.values()])
    return [said for said, _ in held.values()] if freed else []


RUNG = _Holders()
