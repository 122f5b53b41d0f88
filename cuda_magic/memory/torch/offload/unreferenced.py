"""Which storages nobody but idle tensors can reach: autograd's graphs and C++ code hold tensors below Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ...allocator import Storage
from .. import safety, scan
from ..gc_objects import reach

__all__ = ["held_below", "parts_below", "unused"]


def held_below(torch: Any, value: Any) -> int:
    """1 for a tensor that C++ holds too: from torch 2.10 on that holds the Python object once more."""
    if not issubclass(type(value), torch.Tensor):
        return 0
    try:
        return int(torch.Tensor._use_count(value) > 1)
    except (RuntimeError, TypeError, AttributeError):
        return 0


def parts_below(torch: Any, value: Any) -> tuple[Any, ...]:
    """A tensor's gradient and, for a view, the tensor that it is a view of. No code of a subclass runs."""
    if not issubclass(type(value), torch.Tensor):
        return ()
    found = []
    base = torch._C.TensorBase
    with torch._C.DisableTorchFunctionSubclass():
        try:
            if base.is_leaf.__get__(value) and base.requires_grad.__get__(value):
                found.append(base.grad.__get__(value))
            found.append(base._base.__get__(value))
        except (RuntimeError, TypeError, NotImplementedError):
            pass  # a subclass without storage
    return tuple(part for part in found if part is not None)


class _Group(NamedTuple):
    """The tensors of one storage."""

    tensors: dict[int, Any]
    """By the address of their C++ part, alive while this is."""


def unused(torch: Any, device: int, idle: Callable[[Any], bool]) -> tuple[list[tuple[Storage, Any]], dict[str, int]]:
    """Storages of `device` that may be parked for a while, each with one of its tensors.

    Returns
    -------
    list of (Storage, tensor)
        Those that only idle tensors reach and that may be parked, largest first.
    dict
        {reason: bytes} of those that only idle tensors reach and that may not.
    """
    tensors, others = reach(torch)
    consumers, viewed = bool(safety.consumers()), safety.viewed(torch, others)
    groups: dict[int, _Group] = {}
    gradients: set[int] = set()
    read = torch._C.TensorBase.untyped_storage  # past the doors, which would bring back what is parked
    with torch._C.DisableTorchFunctionSubclass():
        for tensor in scan._usable(torch, tensors):
            try:
                if tensor.device.index != device:
                    continue
                key = read(tensor)._cdata
            except (RuntimeError, NotImplementedError):
                continue
            groups.setdefault(key, _Group({})).tensors[tensor._cdata] = tensor
            if tensor.requires_grad and tensor.is_leaf and tensor.grad is not None:
                gradients.add(tensor.grad._cdata)
        found: list[tuple[Storage, Any]] = []
        kept: dict[str, int] = {}
        for key, group in groups.items():
            first = next(iter(group.tensors.values()))
            if not all(idle(tensor) for tensor in group.tensors.values()):
                continue
            handle = read(first)
            address, nbytes = handle.data_ptr(), handle.nbytes()
            if not address:
                continue
            reason = _held(torch, group, gradients, handle) or safety.storage(
                safety.Found(torch, handle, first, consumers, viewed), doing=safety.PARK
            )
            if reason:
                kept[reason] = kept.get(reason, 0) + nbytes
            else:
                found.append((Storage(key, device, address, nbytes, handle), first))
    return sorted(found, key=lambda pair: -pair[0].nbytes), kept


def _held(torch: Any, group: _Group, gradients: set[int], handle: Any) -> str:
    """Why somebody below Python may reach this storage, or an empty string."""
    views: dict[int, int] = {}
    tensors = dict(group.tensors)
    for tensor in group.tensors.values():
        base = tensor._base
        if base is not None:
            tensors.setdefault(base._cdata, base)
            views[base._cdata] = views.get(base._cdata, 0) + 1
    for cdata, tensor in tensors.items():
        if tensor._use_count() > 1 + views.get(cdata, 0) + (cdata in gradients):
            return "autograd's graph or a library holds it"
    # each tensor once, and once the Python object of the storage
    if torch._C._storage_Use_Count(handle._cdata) > len(tensors) + 1:
        return "autograd's graph or a library holds it"
    return ""
