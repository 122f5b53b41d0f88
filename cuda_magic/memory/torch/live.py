"""The allocator's settings as the torch of this process uses them. Asks only a torch that has started CUDA itself."""

from __future__ import annotations

import sys
from typing import Any

from .settings import live

__all__ = ["backend", "settings"]


def settings() -> dict[str, Any]:
    """``allocator_settings`` of torch's snapshot; empty before CUDA is up and where the allocator does not tell."""
    torch = sys.modules.get("torch")
    if not getattr(getattr(torch, "cuda", None), "_initialized", False):
        return {}
    return live(torch)


def backend() -> str | None:
    """The backend that torch loaded when it was imported; None where torch is not imported or has no CUDA."""
    torch = sys.modules.get("torch")
    try:
        return str(torch.cuda.get_allocator_backend()) if torch is not None else None
    except (AttributeError, RuntimeError, AssertionError):
        return None
