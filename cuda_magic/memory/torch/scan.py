"""Every tensor that the garbage collector can reach. 14 ms for a kernel with torch imported (H200's host)."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

from ..allocator import Storage

__all__ = ["owners", "storages", "tensors"]

CONSUMERS = ("cupy", "jax", "numba", "cudf", "tensorflow", "warp", "paddle")
"""Libraries that can take a torch tensor's memory through DLPack and then remember its address."""


def tensors(torch: Any) -> Iterator[Any]:
    """CUDA tensors with memory of their own, gradients included; each object once."""
    # type(), not isinstance(): a hostile __class__ property must not run. Types first: there are few of them.
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, torch.Tensor)}
    for found in [o for o in objects if type(o) in kinds]:
        try:
            if found.is_cuda and found.layout is torch.strided:
                yield found
            if found.is_leaf and found.requires_grad and found.grad is not None and found.grad.is_cuda:
                yield found.grad
        except (RuntimeError, NotImplementedError, ReferenceError, TypeError):
            continue  # a subclass without storage, or one that is half torn down


def owners(torch: Any) -> Iterator[tuple[Any, int, int, int]]:
    """(tensor, device, storage key, bytes of the whole storage) of every reachable CUDA tensor."""
    seen: set[int] = set()
    for tensor in tensors(torch):
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        try:
            storage = tensor.untyped_storage()
            yield tensor, tensor.device.index, storage._cdata, storage.nbytes()
        except (RuntimeError, NotImplementedError):
            continue


def storages(torch: Any, device: int) -> list[Storage]:
    """Each reachable storage of `device` once, with the reason where it may not be moved."""
    exported = any(name in sys.modules for name in CONSUMERS)
    found: dict[int, Storage] = {}
    shared: set[int] = set()
    for tensor in tensors(torch):
        try:
            if tensor.device.index != device:
                continue
            handle = tensor.untyped_storage()
            key, address = handle._cdata, handle.data_ptr()
        except (RuntimeError, NotImplementedError):
            continue
        if not address:
            continue
        # an export by DLPack holds the tensor itself once more; the storage's own count does not show it
        if exported and tensor._use_count() > 1:
            shared.add(key)
        if key not in found:
            found[key] = Storage(key, device, address, handle.nbytes(), handle, _reason(torch, handle))
    if shared:
        reason = "another library may remember its address (DLPack)"
        for key in shared:
            old = found[key]
            found[key] = Storage(old.key, old.device, old.address, old.nbytes, old.handle, old.reason or reason)
    return list(found.values())


def _reason(torch: Any, handle: Any) -> str:
    standard = getattr(torch._C, "_has_Standard_Deleter", None)
    if standard is None:
        return "this torch does not tell who frees a storage"
    if not standard(handle._cdata):
        # sent or received by CUDA IPC, imported by DLPack, allocated with caching off, copy-on-write
        return "its memory is not the caching allocator's alone (CUDA IPC, DLPack, or allocated uncached)"
    return "" if handle.resizable() else "its storage cannot be resized"
