"""When nothing may be moved, because a raw pointer may be remembered where no scan sees it (seen on an H200)."""

from __future__ import annotations

import gc
import sys
from typing import Any

__all__ = ["graphs_alive", "refusal"]

_VIEWS = {"UnownedMemory": "cupy", "MemoryPointer": "numba"}
"""Types that hold the address of somebody else's CUDA memory: made by cupy.asarray, numba.cuda.as_cuda_array."""


def graphs_alive(torch: Any) -> bool:
    """Whether a captured CUDA graph exists: it replays with the addresses of its capture."""
    return torch.cuda.CUDAGraph in set(map(type, gc.get_objects()))


def refusal(torch: Any, device: int) -> str:
    """One sentence why no storage of `device` may be moved now, or an empty string."""
    backend = getattr(torch.cuda, "get_allocator_backend", None)
    if backend is not None and backend() != "native":
        return f"the allocator is {backend()}, whose addresses cannot be planned"
    if torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured"
    types = set(map(type, gc.get_objects()))
    if torch.cuda.CUDAGraph in types:
        return "a captured CUDA graph remembers the addresses of its tensors"
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        ranks = distributed.get_world_size()
        if ranks > 1:
            return f"{ranks} ranks may have registered buffers with each other"
    for kind in types:
        library = _VIEWS.get(kind.__name__)
        if library and kind.__module__.split(".", 1)[0] == library:
            return f"{library} holds the address of memory that it does not own"
    return ""
