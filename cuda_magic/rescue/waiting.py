"""What found no room when its statement had ended waits elsewhere, safe to touch, and comes back at the next chance."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from ..machine import machine
from ..render.units import bytes_text

__all__ = ["bring_back", "note"]


def _settle(ended: bool = False) -> int:
    """Bytes that still wait."""
    allocator = machine().allocator()
    return allocator.settle(ended) if allocator is not None else 0


def _names(namespace: Mapping[str, Any]) -> str:
    """Names that reach what waits, in brackets; empty where none is known."""
    allocator = machine().allocator()
    ops = allocator.ops() if allocator is not None else None
    names = list(dict.fromkeys(ops.parked(namespace)[1])) if ops is not None else []
    if not names:
        return ""
    return f" ({', '.join(names[:4])}" + (f" and {len(names) - 4} more)" if len(names) > 4 else ")")


def note(shell: Any = None, namespace: Mapping[str, Any] | None = None, ended: bool = True) -> str:
    """At the end of a guarded cell: bring back what waits; a sentence if some must wait on, tried after each cell."""
    left = _settle(ended)
    if not left:
        return ""
    if shell is not None:
        from ..kernel.later import after_each_cell

        after_each_cell(shell, lambda: not _settle())
    names = _names(namespace or {})
    return (
        f"{bytes_text(left)} of this kernel's tensors wait on the host, since the card is full{names}; "
        "they can be used as they are, more slowly, and come back when there is room"
    )


def bring_back() -> None:
    """On unloading: bring back what waits, or say that it cannot; host memory kept for parking is given back."""
    from ..kernel.later import forget

    forget()
    left = _settle()
    allocator = machine().allocator()
    if allocator is not None:
        allocator.release_host()
    if left:
        sys.stderr.write(
            f"cuda_magic: {bytes_text(left)} of tensors still wait elsewhere, since the card is full; they are safe to "
            "use and come back when they are used\n"
        )
