"""torch's own memory snapshot: read as our records, and written as a file for the viewer at pytorch.org/memory_viz."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import Refused
from ..allocator import Block, Segment

__all__ = ["dump", "read", "segment"]

_STATES = {"active_allocated": "live", "inactive": "free"}
"""Block states of torch's memory_snapshot; every other (active_awaiting_free, active_pending_free) is pending."""


def read(torch: Any) -> dict[str, Any]:
    """The snapshot, without recorded traces where torch can leave them out: ``segments``, ``allocator_settings``.

    Raises
    ------
    RuntimeError
        If the allocator in use has none.
    """
    known = getattr(getattr(torch.cuda.memory, "memory_snapshot", None), "__code__", None)
    if known is not None and "include_traces" in known.co_varnames:  # a recent torch can leave them out
        return dict(torch._C._cuda_memorySnapshot((0, 0, False)))
    return dict(torch.cuda.memory._snapshot())


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


def segment(raw: dict[str, Any]) -> Segment:
    """One segment of torch's snapshot as our record."""
    blocks = []
    address = raw["address"]
    for block in raw["blocks"]:
        state = _STATES.get(block["state"], "pending")
        # releases before 2.2 give no address of a block: blocks lie one behind the other
        at = block.get("address", address)
        # a free block still carries the size that its last owner asked for
        blocks.append(Block(at, block["size"], state, block.get("requested_size") if state == "live" else None))
        address = at + block["size"]
    return Segment(
        device=raw["device"],
        address=raw["address"],
        size=raw["total_size"],
        blocks=tuple(blocks),
        pool=raw["segment_type"],
        stream=raw["stream"],
        pool_id=tuple(raw.get("segment_pool_id", (0, 0))),
        expandable=bool(raw.get("is_expandable", False)),
    )
