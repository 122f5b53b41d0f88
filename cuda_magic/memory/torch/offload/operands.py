"""The storages that one op names, and ops that write to what their schema does not tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["UNTOLD", "storages"]

UNTOLD = {
    "aten::native_batch_norm": "its running statistics",
    "aten::cudnn_batch_norm": "its running statistics",
    "aten::miopen_batch_norm": "its running statistics",
    "aten::batch_norm_update_stats": "its running statistics",
    "aten::batch_norm_gather_stats": "its running statistics",
    "aten::batch_norm_gather_stats_with_counts": "its running statistics",
    "aten::_cudnn_rnn": "the state of its dropout",
    "aten::miopen_rnn": "the state of its dropout",
    "aten::_cudnn_rnn_flatten_weight": "where its weights lie",
    "aten::cudnn_batch_norm_backward": "its reserve",
    "aten::_cudnn_rnn_backward": "its reserve",
}
"""Ops whose schema says that they change nothing, and what they change (native_functions.yaml and their kernels)."""


_ATOMS = frozenset({int, float, bool, str, complex, type(None)})


def storages(torch: Any, values: Any) -> list[Any]:
    """The storage of each tensor in `values`, lists and dicts looked into; one may come twice."""
    found: list[Any] = []
    _collect(torch, values, found, 8)
    return found


def _collect(torch: Any, value: Any, found: list[Any], depth: int) -> None:
    kind = type(value)
    if kind in _ATOMS:
        return
    if issubclass(kind, torch.Tensor):
        if hasattr(kind, "__tensor_flatten__"):  # a wrapper around other tensors
            for name in value.__tensor_flatten__()[0]:
                _collect(torch, getattr(value, name), found, depth - 1)
        elif value.layout is torch.strided:
            try:
                found.append(torch._C.TensorBase.untyped_storage(value))
            except (RuntimeError, NotImplementedError):
                return  # without storage: a subclass, or functorch's wrapper
        else:
            found += _sparse(torch, value)
    elif depth and issubclass(kind, (list, tuple)):
        for part in value:
            _collect(torch, part, found, depth - 1)
    elif depth and issubclass(kind, dict):
        for part in value.values():
            _collect(torch, part, found, depth - 1)


def _sparse(torch: Any, tensor: Any) -> Iterator[Any]:
    names = {
        torch.sparse_coo: ("_indices", "_values"),
        torch.sparse_csr: ("crow_indices", "col_indices", "values"),
        torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
        torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
        torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
    }.get(tensor.layout, ())
    for name in names:
        yield from storages(torch, getattr(tensor, name)())
