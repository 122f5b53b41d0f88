"""torch's own memory snapshot as a file, for the viewer at pytorch.org/memory_viz."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import Refused

__all__ = ["dump"]


def dump(torch: Any, path: Path) -> int:
    """Write the snapshot; gives the bytes written. Traces are in it where the user has switched their recording on.

    Raises
    ------
    Refused
        If this torch, or the allocator in use, has no snapshot.
    """
    write = getattr(getattr(torch.cuda, "memory", None), "_dump_snapshot", None)  # since torch 2.0
    if write is None:
        raise Refused(f"torch {torch.__version__} writes no memory snapshot; torch 2.1 and later do.")
    try:
        write(str(path))
    except RuntimeError as error:
        raise Refused(f"the allocator in use gives no snapshot: {str(error).splitlines()[0]}") from None
    return path.stat().st_size
