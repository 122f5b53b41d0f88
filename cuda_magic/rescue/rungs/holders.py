"""Let go of IPython's and Python's references to earlier failures and, if asked, to shown values."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ...kernel import holders as kernel
from ...memory.variables import SECONDS, Root, Search, tracebacks, user_variables
from ...render.units import bytes_text
from ..situation import Situation
from . import Did

if TYPE_CHECKING:
    from ...memory.allocator import Allocator

__all__ = ["RUNG", "let_go"]


class _Holders:
    id = "holders"
    again = True
    changes = False

    def skip(self, s: Situation) -> str:
        errors = kernel.earlier_errors(s.shell)
        outputs = s.options.free_outputs and kernel.outputs(s.shell)
        return "" if errors or outputs else "no earlier failure is kept"

    def run(self, s: Situation) -> Did:
        said = _tracebacks(s.allocator, s.device, s.namespace, s.shell)
        dropped = kernel.forget_errors(s.shell)
        s.memory["let go"] = bool(said)
        parts = []
        if dropped:
            parts.append(f"{dropped} references to earlier failures" + (f": {', '.join(said)}" if said else ""))
        shown = _outputs(s.allocator, s.namespace, s.shell) if s.options.free_outputs else []
        if shown:
            parts.append(f"shown values: {', '.join(shown)}")
        return Did(reason="let go of " + "; ".join(parts) if parts else "")


def let_go(
    allocator: Allocator | None, device: int | None, namespace: dict[str, Any], shell: Any, outputs: bool = False
) -> str:
    """Let go of earlier failures, and of shown values if asked; which of them held memory, or how many there were."""
    parts = []
    if kernel.earlier_errors(shell):
        said = _tracebacks(allocator, device, namespace, shell)
        dropped = kernel.forget_errors(shell)
        if dropped:
            parts.append(f"{dropped} references to earlier failures" + (f": {', '.join(said)}" if said else ""))
    shown = _outputs(allocator, namespace, shell) if outputs else []
    if shown:
        parts.append(f"shown values: {', '.join(shown)}")
    return "; ".join(parts)


def _tracebacks(allocator: Allocator | None, device: int | None, namespace: dict[str, Any], shell: Any) -> list[str]:
    """The earlier failures that alone hold memory of the device, each with its cell and its bytes."""
    if allocator is None or device is None or device not in allocator.devices():
        return []
    roots = user_variables(namespace, shell)
    roots += [Root("output", name, value) for name, value in kernel.outputs(shell).items()]
    search = Search(allocator, namespace, device, SECONDS / 2, allocator.stats(device).allocated)
    rows = search.held(roots + tracebacks(shell))
    return [f"the {row.name} ({bytes_text(row.nbytes)})" for row in rows if row.kind == "traceback"]


def _outputs(allocator: Allocator | None, namespace: dict[str, Any], shell: Any) -> list[str]:
    """Let go of the shown values that hold memory; each once, by its first name."""
    if allocator is None:
        return []
    held: dict[int, tuple[str, object]] = {}
    ends = time.perf_counter() + SECONDS
    for name, value in kernel.outputs(shell).items():
        left = ends - time.perf_counter()
        rows = Search(allocator, namespace, seconds=left).held([Root("output", name, value)]) if left > 0 else []
        if rows:
            held.setdefault(id(value), (f"{name} ({bytes_text(sum(row.nbytes for row in rows))})", value))
    freed = kernel.forget_outputs(shell, [value for _, value in held.values()])
    return [said for said, _ in held.values()] if freed else []


RUNG = _Holders()
