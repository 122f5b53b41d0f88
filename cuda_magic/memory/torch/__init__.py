"""The only place that knows torch. Through ``sys.modules``: torch is never imported by us in the user's kernel."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..allocator import Allocator

__all__ = ["allocator"]


def allocator() -> Allocator | None:
    """torch's caching allocator, or None where torch is not imported."""
    if getattr(sys.modules.get("torch"), "cuda", None) is None:
        return None
    from .caching import TorchAllocator

    return TorchAllocator()
