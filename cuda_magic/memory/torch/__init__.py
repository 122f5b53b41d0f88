"""The only place that knows torch. Through ``sys.modules``: torch is never imported by us in the user's kernel."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..allocator import Allocator
    from .caching import TorchAllocator

__all__ = ["allocator"]


def allocator() -> Allocator | None:
    """torch's caching allocator, or None where torch is not imported."""
    torch = sys.modules.get("torch")
    if _made and _made[0].torch is torch:
        return _made[0]
    if getattr(torch, "cuda", None) is None:
        return None
    from .caching import TorchAllocator

    _made[:] = [TorchAllocator()]
    return _made[0]


_made: list[TorchAllocator] = []
"""Of the torch that was asked for last: it is asked for before every guarded statement."""
