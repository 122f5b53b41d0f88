"""``--checkpoint NAME,...``: the state of these objects on the host before a statement, and back after its failure.

Objects are taken by what they offer: optimizers (``param_groups`` and ``state``), modules (``named_parameters`` and
``named_buffers``, their gradients too), anything with ``state_dict`` and ``load_state_dict``, tensors, containers.
Tensors are copied to the host and copied back in place, in their own dtype.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any

from ..errors import Refused

__all__ = ["save", "uses"]

PutBack = Callable[[], None]


def uses(name: str, read: Iterable[str], namespace: Mapping[str, Any], always: bool = False, depth: int = 5) -> bool:
    """Whether a statement that reads these names uses `name`, itself or through the notebook's own functions."""
    names = set(read)
    if always or name in names:
        return True
    if depth == 0:
        return False
    for one in names:
        value = namespace.get(one)
        if (
            isinstance(value, FunctionType)
            and value.__globals__ is namespace
            and uses(name, value.__code__.co_names, namespace, depth=depth - 1)
        ):
            return True
    return False


def _is_tensor(value: Any) -> bool:
    return all(hasattr(type(value), part) for part in ("detach", "copy_", "cpu"))


def _host(tensor: Any) -> Any:
    return tensor.detach().to("cpu", copy=True)


def _tensor(tensor: Any) -> PutBack:
    saved = _host(tensor)
    return lambda: tensor.detach().copy_(saved)


def _gradient(tensor: Any) -> PutBack:
    saved = None if tensor.grad is None else _host(tensor.grad)

    def back() -> None:
        if saved is None:
            tensor.grad = None
        elif tensor.grad is not None:
            tensor.grad.detach().copy_(saved)
        else:
            tensor.grad = saved.to(tensor.device)

    return back


def _module(module: Any) -> list[PutBack]:
    parameters = [p for _, p in module.named_parameters()]
    buffers = [b for _, b in module.named_buffers()]
    return [*map(_tensor, parameters), *map(_gradient, parameters), *map(_tensor, buffers)]


def _optimizer(optimizer: Any) -> list[PutBack]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    groups = [{k: copy.deepcopy(v) for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    states = {
        p: {k: _host(v) if _is_tensor(v) else copy.deepcopy(v) for k, v in state.items()}
        for p, state in optimizer.state.items()
    }

    def back() -> None:
        for group, saved in zip(optimizer.param_groups, groups, strict=True):
            group.update(copy.deepcopy(saved))
        for parameter in list(optimizer.state):
            if parameter not in states:
                del optimizer.state[parameter]
        for parameter, saved in states.items():
            state = optimizer.state[parameter]
            for key in list(state):
                if key not in saved:
                    del state[key]
            for key, value in saved.items():
                live = state.get(key)
                if not _is_tensor(value):
                    state[key] = copy.deepcopy(value)
                elif _is_tensor(live) and live.shape == value.shape and live.dtype == value.dtype:
                    live.detach().copy_(value)
                else:  # a step count may live on the host; everything else beside its parameter
                    state[key] = value.to(parameter.device) if value.dim() else value.clone()

    return [*map(_tensor, parameters), *map(_gradient, parameters), back]


def _container(value: Any) -> list[PutBack]:
    inner: list[PutBack] = []
    parts = list(value.values()) if isinstance(value, dict) else list(value)
    for part in parts:
        if not isinstance(part, (int, float, complex, str, bytes, bool, type(None), tuple)):
            inner += _one(part)
    if isinstance(value, dict):
        kept = dict(value)

        def back() -> None:
            value.clear()
            value.update(kept)

    elif isinstance(value, list):

        def back() -> None:
            value[:] = parts

    else:

        def back() -> None:
            value.clear()
            value.update(parts)

    return [back, *inner]


BESIDE = ("_per_optimizer_states",)
"""Attributes that state_dict leaves out and a repeat needs: torch's GradScaler notes there that unscale_ was called
(torch/amp/grad_scaler.py)."""


def _beside(value: Any) -> list[PutBack]:
    kept = {name: copy.deepcopy(vars(value)[name]) for name in BESIDE if name in getattr(value, "__dict__", ())}
    return [lambda: vars(value).update(copy.deepcopy(kept))] if kept else []


def _one(value: Any) -> list[PutBack]:
    kind = type(value)
    if _is_tensor(value):
        return [_tensor(value), *([_gradient(value)] if value.is_leaf and value.requires_grad else [])]
    if hasattr(value, "param_groups") and hasattr(value, "state"):
        return _optimizer(value)
    if hasattr(kind, "named_parameters") and hasattr(kind, "named_buffers"):
        return _module(value)
    if hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict"):
        saved = copy.deepcopy(value.state_dict())
        return [lambda: value.load_state_dict(copy.deepcopy(saved)), *_beside(value)]
    if isinstance(value, (list, dict, set)):
        return _container(value)
    try:
        fields = copy.deepcopy(vars(value))
    except Exception as error:  # noqa: BLE001 - whatever a copy of the user's object raises
        raise Refused(f"a {kind.__name__} cannot be kept by --checkpoint ({type(error).__name__})") from None

    def back() -> None:
        vars(value).clear()
        vars(value).update(copy.deepcopy(fields))

    return [back]


def save(names: Iterable[str], namespace: Mapping[str, Any]) -> list[PutBack]:
    """Keep the state of these names; the calls that put it back.

    Raises
    ------
    Refused
        If an object can be neither asked for its state nor copied.
    """
    back: list[PutBack] = []
    for name in names:
        value = namespace.get(name)
        if not isinstance(value, (int, float, complex, str, bytes, bool, type(None))):  # names themselves go back
            back += _one(value)
    return back
