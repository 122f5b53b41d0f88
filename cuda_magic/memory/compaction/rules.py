"""The sizes that torch's caching allocator uses (c10/cuda/CUDACachingAllocator.cpp, unchanged from 1.13 to 2.15)."""

from __future__ import annotations

__all__ = ["LARGE_SEGMENT", "MIB", "MIN_LARGE", "ROUND_LARGE", "SMALL", "SMALL_SEGMENT", "block_size", "segment_size"]

MIB = 1 << 20
SMALL = MIB
"""Requests up to this are served from the small pool; in the large pool a rest above it is split off."""
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
MIN_LARGE = 10 * MIB
ROUND_LARGE = 2 * MIB
_ROUND = 512


def block_size(nbytes: int) -> int:
    """Bytes of the block that serves a request of `nbytes`."""
    return max(_ROUND, (nbytes + _ROUND - 1) // _ROUND * _ROUND)


def segment_size(nbytes: int) -> int:
    """Bytes that are asked of the driver when no cached block fits a request of `nbytes`."""
    if nbytes <= SMALL:
        return SMALL_SEGMENT
    if nbytes < MIN_LARGE:
        return LARGE_SEGMENT
    return (nbytes + ROUND_LARGE - 1) // ROUND_LARGE * ROUND_LARGE
