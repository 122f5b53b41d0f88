"""What can be asked of an imported torch without starting CUDA."""

from __future__ import annotations

import sys

__all__ = ["in_bad_fork"]


def in_bad_fork() -> bool:
    """True in a child that was forked after its parent had started CUDA: torch refuses to start it here."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    asked = getattr(cuda, "_is_in_bad_fork", None)
    return bool(asked()) if asked is not None else False
