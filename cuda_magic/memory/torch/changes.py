"""What a failed attempt changed in place and a repeat would do twice: steps, buffers, gradients, tensors.

A tensor counts its in-place changes in ``_version``; reading it is cheap. Optimizers' parameters and state, modules'
parameters, buffers and gradients are followed; containers to a depth of two.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

__all__ = ["changed", "undo", "watch"]


class _Seen(NamedTuple):
    """One tensor before the statement."""

    name: str
    kind: str
    tensor: weakref.ref[Any]
    version: int
    grad: int | None
    """id of .grad"""
    grad_version: int


def watch(torch: Any, namespace: Iterable[Any]) -> list[_Seen]:
    """Marks of the tensors that the namespace's values hold; `namespace` maps names to values, or is values."""
    items = (
        namespace.items() if isinstance(namespace, Mapping) else ((f"value {i}", v) for i, v in enumerate(namespace))
    )
    marks: list[_Seen] = []
    seen: set[int] = set()
    for name, value in list(items):
        for label, kind, tensor in _tensors(torch, str(name), value, 2):
            if id(tensor) in seen:
                continue
            seen.add(id(tensor))
            try:
                grad = tensor.grad if tensor.is_leaf else None
                marks.append(
                    _Seen(
                        label,
                        kind,
                        weakref.ref(tensor),
                        tensor._version,
                        None if grad is None else id(grad),
                        0 if grad is None else grad._version,
                    )
                )
            except (RuntimeError, TypeError):
                continue  # inference tensors keep no version
    return marks


def _tensors(torch: Any, name: str, value: Any, depth: int) -> Iterator[tuple[str, str, Any]]:
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        yield name, "tensor", value
    elif issubclass(kind, torch.nn.Module):
        for part, tensor in value.named_parameters():
            yield f"{name}.{part}", "parameter", tensor
        for part, tensor in value.named_buffers():
            yield f"{name}.{part}", "buffer", tensor
    elif issubclass(kind, torch.optim.Optimizer):
        for group in value.param_groups:
            for tensor in group["params"]:
                yield f"a parameter of {name}", "parameter", tensor
        for state in list(value.state.values()):
            for tensor in state.values():
                if issubclass(type(tensor), torch.Tensor):
                    yield f"the state of {name}", "state", tensor
    elif depth and kind in (list, tuple):
        for i, part in enumerate(value[:1000]):
            yield from _tensors(torch, f"{name}[{i}]", part, depth - 1)
    elif depth and kind is dict:
        for key, part in list(value.items())[:1000]:
            yield from _tensors(torch, f"{name}[{key!r}]", part, depth - 1)


def changed(marks: list[_Seen]) -> list[str]:
    """One sentence for each kind of change since `watch`; empty when nothing changed."""
    found: dict[str, list[str]] = {}
    for mark in marks:
        tensor = mark.tensor()
        if tensor is None:
            continue
        if tensor._version != mark.version:
            found.setdefault(mark.kind, []).append(mark.name)
        grad = tensor.grad if tensor.is_leaf else None
        # one that was not there before can be put back: see `undo`
        if mark.grad is not None and grad is not None and (id(grad) != mark.grad or grad._version != mark.grad_version):
            found.setdefault("gradient", []).append(mark.name)
    return [_SENTENCES[kind].format(_some(names)) for kind, names in found.items()]


def undo(marks: list[_Seen]) -> None:
    """Take away gradients that were not there at `watch`: a backward pass that failed half way left them."""
    for mark in marks:
        tensor = mark.tensor()
        if tensor is not None and mark.grad is None and tensor.is_leaf and tensor.grad is not None:
            tensor.grad = None


_SENTENCES = {
    "tensor": "changed in place: {}",
    "parameter": "parameters were updated: {}",
    "buffer": "buffers were updated: {}",
    "state": "an optimizer stepped: {}",
    "gradient": "gradients were accumulated: {}",
}


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
