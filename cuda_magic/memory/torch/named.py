"""The tensors that a variable leads to, as a user would write them.

Followed are tensors, modules and optimizers, in containers to a depth of two and in the attributes of an object that
stands under a name itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..parts import fields

__all__ = ["named"]

DEPTH = 2
MOST = 1000
"""Items of one container that are followed."""


def named(torch: Any, label: str, value: Any, depth: int = DEPTH) -> Iterator[tuple[str, Any]]:
    """(label, tensor) of what `value`, which stands under `label`, leads to."""
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        yield label, value
    elif issubclass(kind, torch.nn.Module):
        for part, tensor in (*value.named_parameters(), *value.named_buffers()):
            yield f"{label}.{part}", tensor
    elif issubclass(kind, torch.optim.Optimizer):
        for group in value.param_groups:
            yield from ((f"a parameter of {label}", tensor) for tensor in group["params"])
        for state in list(value.state.values()):
            parts = [one for one in state.values() if issubclass(type(one), torch.Tensor)]
            yield from ((f"the state of {label}", tensor) for tensor in parts)
    elif depth:
        for step, part in _parts(value, kind, depth):
            yield from named(torch, label + step, part, depth - 1)


def _parts(value: Any, kind: type, depth: int) -> Iterable[tuple[str, Any]]:
    if kind is list or kind is tuple:
        return [(f"[{i}]", part) for i, part in enumerate(value[:MOST])]
    if issubclass(kind, dict):
        items = list(dict.items(value))[:MOST]
        return [(f"[{key!r}]" if type(key) in (int, str, bool) else "[...]", part) for key, part in items]
    if depth < DEPTH:
        return ()
    return [(f".{name}", part) for name, part in list(fields(value).items()) if type(name) is str]
