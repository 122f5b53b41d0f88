"""Every tensor that the garbage collector can reach, and the storages below them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..allocator import Storage
from . import safety
from .gc_objects import reach

__all__ = ["UNREADABLE", "kind_of", "owners", "storages", "storages_of", "tensors"]

UNREADABLE = (RuntimeError, NotImplementedError, ReferenceError, TypeError, ValueError)
"""What a subclass without storage raises, or one that is half torn down. What a class of the user's would do with these
questions (``__torch_function__``: the parameters of a lazy module that has not run raise there) is not run."""


def tensors(torch: Any) -> Iterator[Any]:
    """CUDA tensors with memory of their own, gradients included; an object may come twice."""
    return _usable(torch, reach(torch)[0])


def _on_card(tensor: Any) -> bool:
    return bool(tensor.is_cuda)


def _usable(torch: Any, reached: list[Any], wanted: Callable[[Any], bool] = _on_card) -> Iterator[Any]:
    strided = torch.strided
    for found in reached:
        try:
            with torch._C.DisableTorchFunction():
                one = found if wanted(found) and found.layout is strided else None
                # a gradient may have no Python object yet
                grad = found.grad if found.requires_grad and found.is_leaf else None
                grad = grad if grad is not None and wanted(grad) else None
        except UNREADABLE:
            continue
        if one is not None:
            yield one
        if grad is not None:
            yield grad


def owners(
    torch: Any, among: Iterable[Any] | None = None, wanted: Callable[[Any], bool] = _on_card
) -> Iterator[tuple[Any, int, int, int]]:
    """(tensor, device, storage key, bytes of the whole storage) of every reachable tensor that is `wanted`.

    With `among` only of the tensors in it, and their gradients.
    """
    seen: set[int] = set()
    read = _read(torch)
    known = torch._C.TensorBase
    reached = reach(torch)[0] if among is None else [one for one in among if issubclass(type(one), known)]
    for tensor in _usable(torch, reached, wanted):
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        try:
            with torch._C.DisableTorchFunction():
                storage = read(tensor)
                row = tensor, tensor.device.index or 0, storage._cdata, storage.nbytes()
        except UNREADABLE:
            continue
        yield row


def kind_of(torch: Any, value: Any) -> str:
    """``tensor``, ``graph`` where autograd keeps one behind it, ``module``, or empty. No code of a subclass runs."""
    kind = type(value)
    if issubclass(kind, torch._C.TensorBase):
        try:
            with torch._C.DisableTorchFunction():
                return "graph" if torch._C.TensorBase.grad_fn.__get__(value) is not None else "tensor"
        except UNREADABLE:
            return "tensor"
    return "module" if issubclass(kind, torch.nn.Module) else ""


def storages(torch: Any, device: int, *, doing: str = safety.MOVE) -> list[Storage]:
    """Each reachable storage of `device` once, with the reason where it may not be moved (or parked)."""
    reached, others = reach(torch)
    return storages_of(torch, device, reached, others, doing=doing)


def storages_of(
    torch: Any,
    device: int,
    reached: list[Any],
    others: dict[str, list[Any]],
    *,
    doing: str = safety.MOVE,
) -> list[Storage]:
    """The same from what `reach` gave."""
    consumers, viewed = bool(safety.consumers()), safety.viewed(torch, others)
    found: dict[int, Storage] = {}
    read = _read(torch)
    for tensor in _usable(torch, reached):
        try:
            with torch._C.DisableTorchFunction():
                if tensor.device.index != device:
                    continue
                handle = read(tensor)
                key, nbytes = handle._cdata, handle.nbytes()
        except UNREADABLE:
            continue
        known = found.get(key)
        if not nbytes or (known is not None and (known.reason or not consumers)):
            continue
        seen = safety.Found(torch, handle, tensor, consumers, viewed)
        reason = safety.storage(seen, doing=doing)
        # the address of a copy-on-write clone is not asked for: that alone would copy it
        address = 0 if reason and safety.foreign(torch, handle) else handle.data_ptr()
        found[key] = Storage(key, device, address, nbytes, handle, reason)
    return list(found.values())


def _read(torch: Any) -> Any:
    """Gives a tensor's storage, past the hooks that would bring back what is parked (offload/attribute_hooks.py)."""
    return getattr(torch._C, "TensorBase", torch.Tensor).untyped_storage
