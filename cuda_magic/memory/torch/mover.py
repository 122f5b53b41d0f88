"""What compaction needs of torch: one reading of everything, the right stream, and contents over the host and back."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ..allocator import Survey
from ..compaction.rules import HEADROOM, Rules
from . import safety, scan, settings, snapshot
from .gc_objects import reach
from .offload.host_pool import shared

if TYPE_CHECKING:
    from ..allocator import Storage
    from .caching import TorchAllocator

__all__ = ["copy_in", "copy_out", "current", "host_room", "survey"]


_AS_IT_IS: AbstractContextManager[None] = nullcontext()


def current(torch: Any, device: int, stream: int) -> AbstractContextManager[None]:
    """Inside, `stream` (its address; 0 is the default one) of `device` is current: blocks come from its pools."""
    if torch._C._cuda_getDevice() == device and torch._C._cuda_getCurrentRawStream(device) == stream:
        return _AS_IT_IS
    cuda = torch.cuda
    chosen = cuda.ExternalStream(stream, device=device) if stream else cuda.default_stream(device)
    inside: AbstractContextManager[None] = cuda.stream(chosen)  # the device too
    return inside


def survey(allocator: TorchAllocator, device: int) -> Survey:
    """One pass over the collector's objects and one snapshot; the device is waited for, so that nothing is pending."""
    torch = allocator.torch
    reached, others = reach(torch)
    refused = safety.refusals(torch, device, reached=others)
    if not refused and not allocator.healthy(device):
        refused = "the CUDA context is lost"
    if refused:
        return Survey(refused, Rules())
    torch.cuda.empty_cache()  # whole free segments and pages go back to the driver
    storages = scan.storages_of(torch, device, reached, others)
    del reached
    taken = snapshot.read(torch)
    raw = [s for s in taken["segments"] if s["device"] == device]
    now = torch.cuda.current_stream(device).cuda_stream
    # a stream that nobody holds any more may have been destroyed: nothing can be moved on it
    streams = {0, now, *(s.cuda_stream for s in others.get("stream", ()))}
    if any(s.get("segment_pool_id", (0, 0))[0] > 0 for s in raw):
        return Survey("a CUDA graph's pool is alive, and the graph remembers addresses", Rules())
    driver = allocator.driver_memory(device)
    free = driver[0] - HEADROOM if driver else 0
    limit = allocator.memory_limit(device)
    if limit is not None:
        free = min(free, limit - sum(s["total_size"] for s in raw))
    segments = tuple(snapshot.segment(s) for s in raw if s["stream"] in streams)
    rules = settings.rules_of(taken.get("allocator_settings", {}))
    return Survey("", rules, segments, tuple(storages), max(0, free), now)


def host_room(torch: Any) -> int:
    """Bytes that the host can keep for a while."""
    return int(shared(torch).room())


def copy_out(torch: Any, storage: Storage) -> Any:
    """The contents in the host pool, finished on return. The device is idle: nothing writes to them meanwhile."""
    buffer = shared(torch).take(storage.nbytes)
    for event in buffer.events:
        event.synchronize()
    try:
        with torch.cuda.device(storage.device):
            buffer.data.copy_(_bytes(torch, storage), non_blocking=True)
            torch.cuda.synchronize(storage.device)
    except BaseException:
        shared(torch).give(buffer)
        raise
    return buffer


def copy_in(torch: Any, storage: Storage, copy: Any, stream: int) -> int:
    """Memory again, and the contents into it. Nothing is lost where it fails: call again."""
    with current(torch, storage.device, stream):
        if storage.handle.nbytes() == 0:
            storage.handle.resize_(storage.nbytes)
        _bytes(torch, storage).copy_(copy.data, non_blocking=True)
        torch.cuda.synchronize(storage.device)
    shared(torch).give(copy)
    return int(storage.handle.data_ptr())


def _bytes(torch: Any, storage: Storage) -> Any:
    return torch.empty(0, dtype=torch.uint8, device=f"cuda:{storage.device}").set_(storage.handle)
