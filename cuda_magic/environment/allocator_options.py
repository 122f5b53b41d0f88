"""The options of PYTORCH_CUDA_ALLOC_CONF by torch release, as data. Adding one is adding a row.

Releases and ranges: the strings of the released wheels 1.13.1 to 2.15.0 and torch's C++ source
(c10/core/AllocatorConfig, c10/cuda/CUDAAllocatorConfig); the ranges of 2.13 are compared with its own parser.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BACKENDS", "OPTIONS", "TRAPS", "AllocatorOption", "known"]

BACKENDS = ("native", "cudaMallocAsync")


@dataclass(frozen=True)
class AllocatorOption:
    """One option.

    `kind` names its grammar: ``flag``, ``size`` (whole MB, at least `low`), ``split`` (size not below the large
    segment), ``open`` (number in (0, 1)), ``closed`` (number in [0, 1]), ``threads`` (power of two up to 128),
    ``roundup``, ``backend``, ``reserve`` and ``classes`` (never refused).
    """

    key: str
    kind: str
    since: tuple[int, int]
    meaning: str
    cuda: bool = False
    """Read by torch's CUDA parser, not by the one that all accelerators share (torch 2.10 and newer have two)."""
    low: int = 0
    native: bool = True
    """Without effect on the backend cudaMallocAsync."""
    values: tuple[str, ...] = ()
    """What TAB offers."""


_FLAG = ("True", "False")
OPTIONS: tuple[AllocatorOption, ...] = (
    AllocatorOption(
        "backend",
        "backend",
        (2, 0),
        "torch's own caching allocator, or CUDA's pool",
        True,
        native=False,
        values=BACKENDS,
    ),
    AllocatorOption(
        "expandable_segments", "flag", (2, 1), "segments that grow, against fragmentation", values=("True", "False")
    ),
    AllocatorOption("max_split_size_mb", "split", (1, 13), "larger blocks are not split", values=("128", "512")),
    AllocatorOption(
        "garbage_collection_threshold", "open", (1, 13), "share of the allowed memory above which unused blocks go"
    ),
    AllocatorOption(
        "roundup_power2_divisions", "roundup", (1, 13), "sizes are rounded up to a division of a power of two"
    ),
    AllocatorOption(
        "release_lock_on_cudamalloc", "flag", (2, 2), "the lock is free during cudaMalloc", True, values=_FLAG
    ),
    AllocatorOption("release_lock_on_hipmalloc", "flag", (2, 2), "the same, by its ROCm name", True, values=_FLAG),
    AllocatorOption(
        "pinned_use_cuda_host_register", "flag", (2, 2), "pinned memory through cudaHostRegister", True, values=_FLAG
    ),
    AllocatorOption("pinned_use_hip_host_register", "flag", (2, 2), "the same, by its ROCm name", True, values=_FLAG),
    AllocatorOption("pinned_num_register_threads", "threads", (2, 2), "threads that register pinned memory", True),
    AllocatorOption("max_non_split_rounding_mb", "split", (2, 6), "how much larger a block may be and stay whole"),
    AllocatorOption(
        "pinned_use_background_threads", "flag", (2, 6), "events of pinned memory in a thread", values=_FLAG
    ),
    AllocatorOption(
        "graph_capture_record_stream_reuse", "flag", (2, 9), "reuse across streams while capturing", True, values=_FLAG
    ),
    AllocatorOption("pinned_reserve_segment_size_mb", "size", (2, 10), "pinned memory reserved at start", True, low=1),
    AllocatorOption("per_process_memory_fraction", "closed", (2, 10), "share of the card this process may use", True),
    AllocatorOption("large_segment_size_mb", "size", (2, 11), "size of a large segment", low=11),
    AllocatorOption("pinned_free_catch_all", "flag", (2, 12), "free every pinned pointer", True, values=_FLAG),
    AllocatorOption(
        "throw_on_cudamalloc_oom", "flag", (2, 12), "out of memory before cudaMalloc is tried", True, values=_FLAG
    ),
    AllocatorOption("pinned_max_round_threshold_mb", "size", (2, 13), "larger pinned requests are not rounded up"),
    AllocatorOption("pinned_max_cached_size_mb", "size", (2, 13), "larger pinned blocks are not cached"),
    AllocatorOption("expandable_segments_reserve", "reserve", (2, 15), "address space of a growing segment", True),
    AllocatorOption("expandable_segments_reserve_by_class", "classes", (2, 15), "the same, by class of stream", True),
)

TRAPS = {
    "expandable_segments_handle_type": "an error text of torch recommends it, and no release accepts it",
}
"""Options that circulate and do not exist."""

_BY_KEY = {option.key: option for option in OPTIONS}


def known(key: str) -> AllocatorOption | None:
    """The row of `key`, or None."""
    return _BY_KEY.get(key)
