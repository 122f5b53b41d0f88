"""Tensors' contents in another place for a while: the host arena, and what parks there."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .session import Session

__all__ = ["release", "session_if_any"]


def release() -> int:
    """Give back what the shared arena holds and nobody uses; bytes of host memory, 0 where nothing was ever parked."""
    arena = sys.modules.get(f"{__name__}.arena")  # not imported for this
    return sum(one.release() for one in arena.existing()) if arena is not None else 0


def session_if_any() -> Session | None:
    """The session of what is parked, if there ever was one."""
    module = sys.modules.get(f"{__name__}.session")  # not imported for this
    return module.existing() if module is not None else None
