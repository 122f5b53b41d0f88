"""What a device held at most between two readings, where the allocator's own counter knows of more than was read.

The counter is the user's (``torch.cuda.max_memory_allocated()``) and is never restarted here. So it tells of a spike
only when it has risen, or was restarted, since the reading before: a spike below an earlier one of this kernel is not
seen, and nothing is claimed of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..devices.table import MemoryTable

__all__ = ["Peaks"]


class Peaks:
    """Asked once a reading; `ooms` counts the allocator's out-of-memory errors since the asking before."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[int, int]] = {}
        self._failed: dict[int, int] = {}
        self.ooms: list[int] = []
        """The cuda indices on which there were errors since the reading before."""

    def note(self, table: MemoryTable, allocator: Any) -> list[int | None]:
        """For each device of the table: bytes it held at most since the reading before, None where nothing is known."""
        found: list[int | None] = [None] * len(table.reading.devices)
        self.ooms = []
        if allocator is None or not allocator.started():
            self._before.clear()
            return found
        places = {part.cuda: i for i, part in enumerate(table.splits) if part.cuda is not None}
        for cuda in allocator.devices():
            stats = allocator.stats(cuda)
            peaks = stats.peak_allocated, stats.peak_reserved
            before = self._before.get(cuda)
            self._before[cuda] = peaks
            if stats.ooms > self._failed.setdefault(cuda, stats.ooms):
                self.ooms.append(cuda)
            self._failed[cuda] = stats.ooms
            place = places.get(cuda)
            if before is None or place is None:
                continue
            fresh = [now for now, then in zip(peaks, before, strict=True) if now != then]
            used = table.reading.devices[place].memory.used
            if fresh and used is not None:
                held = stats.reserved - stats.elsewhere
                most = used - held + max(fresh)
                found[place] = most if most > used else None
        return found
