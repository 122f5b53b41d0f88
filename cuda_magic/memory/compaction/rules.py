"""The sizes that torch's caching allocator uses, and the settings that change them.

c10/cuda/CUDACachingAllocator.cpp and c10/core/AllocatorConfig.h; the constants are unchanged from 1.13 to 2.15.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEFAULT", "HEADROOM", "MIB", "SMALL", "SMALL_SEGMENT", "UNLIMITED", "Rules", "block_size", "segment_size"]

MIB = 1 << 20
SMALL = MIB
"""Requests up to this are served from the small pool; in the large pool a rest above it is split off."""
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
MIN_LARGE = 10 * MIB
ROUND_LARGE = 2 * MIB
SMALLEST = 512
UNLIMITED = 1 << 62
HEADROOM = 16 << 20
"""Bytes of the driver's free memory that a plan leaves alone: kernels load lazily and need device memory (H200)."""


@dataclass(frozen=True)
class Rules:
    """What the allocator does with a size, in bytes, under its settings."""

    max_split: int = UNLIMITED
    """max_split_size_mb: blocks of this size and above are neither split nor used for smaller requests."""
    non_split_rounding: int = LARGE_SEGMENT
    """max_non_split_rounding_mb: how much larger such a block may be than the request."""
    divisions: tuple[int, ...] = ()
    """roundup_power2_divisions for each power of two from 1 MiB on; 0 and 1 mean off."""
    large_segment: int = LARGE_SEGMENT
    """large_segment_size_mb (torch 2.11): the segment of a request below 10 MiB, and the page of expandable ones."""
    expandable: bool = False

    @property
    def rounds(self) -> bool:
        """Whether sizes are rounded up to divisions of a power of two."""
        return any(d > 1 for d in self.divisions)

    def _divisions(self, nbytes: int) -> int:
        if not self.divisions:
            return 0
        return self.divisions[min(max(nbytes.bit_length() - 21, 0), len(self.divisions) - 1)]

    def block_size(self, nbytes: int) -> int:
        """Bytes of the block that serves a request of `nbytes`."""
        if nbytes < SMALLEST:
            return SMALLEST
        divisions = self._divisions(nbytes)
        if divisions > 1 and nbytes > SMALLEST * divisions:
            return self._up(nbytes, divisions)
        return -(-nbytes // SMALLEST) * SMALLEST

    @staticmethod
    def _up(nbytes: int, divisions: int) -> int:
        floor = 1 << (nbytes.bit_length() - 1)
        if nbytes == floor:
            return nbytes
        step = floor >> (divisions.bit_length() - 1)
        return -(-nbytes // step) * step if step else floor << 1

    def request(self, room: int, small: bool) -> int:
        """The largest request of this pool whose block is not larger than `room`; 0 where there is none."""
        least = SMALLEST if small else SMALL + SMALLEST
        if room < least:
            return 0
        size = min(room, SMALL) if small else room
        if not self.rounds:
            return size
        size = size // SMALLEST * SMALLEST
        if self.block_size(size) > size:
            floor = 1 << (size.bit_length() - 1)
            step = max(SMALLEST, floor >> (self._divisions(size).bit_length() - 1))
            size = size // step * step
        return size if size >= least and self.block_size(size) <= room else 0

    def segment_size(self, nbytes: int) -> int:
        """Bytes that are asked of the driver when no cached block fits a request of `nbytes`."""
        size = self.block_size(nbytes)
        if size <= SMALL:
            return SMALL_SEGMENT
        if size < MIN_LARGE:
            return self.large_segment
        return -(-size // ROUND_LARGE) * ROUND_LARGE

    def page(self, small: bool) -> int:
        """Bytes of a page of an expandable segment."""
        return SMALL_SEGMENT if small else self.large_segment

    def from_driver(self, nbytes: int) -> int:
        """Bytes that must be free for the driver to serve a request of `nbytes`."""
        size = self.segment_size(nbytes)
        if not self.expandable:
            return size
        page = self.page(self.block_size(nbytes) <= SMALL)
        return max(size, -(-self.block_size(nbytes) // page) * page)

    def rest(self, size: int, need: int, small: bool) -> int:
        """Bytes that are split off when a free block of `size` serves a block of `need`."""
        rest = size - need
        if small or self.expandable:
            return rest if rest >= SMALLEST else 0
        return rest if need < self.max_split and rest > SMALL else 0

    def takes(self, size: int, need: int) -> bool:
        """Whether a free block of `size`, which is large enough, may serve a block of `need`."""
        if need < self.max_split:
            return size < self.max_split
        return size < need + self.non_split_rounding


DEFAULT = Rules()


def block_size(nbytes: int) -> int:
    """Bytes of the block that serves a request of `nbytes` with no setting changed."""
    return DEFAULT.block_size(nbytes)


def segment_size(nbytes: int) -> int:
    """Bytes that are asked of the driver for a request of `nbytes` with no setting changed."""
    return DEFAULT.segment_size(nbytes)
