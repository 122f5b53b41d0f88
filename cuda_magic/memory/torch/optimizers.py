"""torch's own optimizers: whether a step is theirs alone, and what tells that it has begun.

A step goes over the parameters of one device and type in their order, group by group, and counts a parameter's steps
before it changes anything else of it (torch/optim/*.py: ``step_t += 1``, ``_foreach_add_(device_state_steps, 1)``); SGD
changes the momentum first, and then the parameter.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from ..parts import fields
from .pure import is_torchs

__all__ = ["MAY_HAVE_STEPPED", "Stepped", "Zeroed", "before_call", "counted", "first", "uncounted"]

_FIRST = {
    "step": (
        "Adam",
        "AdamW",
        "NAdam",
        "RAdam",
        "Adamax",
        "Adadelta",
        "Adagrad",
        "Adafactor",
        "RMSprop",
        "Rprop",
        "ASGD",
    ),
    "momentum_buffer": ("SGD",),
}
"""What a step changes first of a parameter's state, by torch's classes."""

_module = vars(type)["__module__"].__get__
_keys: dict[int, tuple[type, str]] = {}
"""What is known of torch's own classes, by their ids."""


def _key(torch: Any, optimizer: Any) -> str | None:
    """The key of what is changed first; None where it is not one of torch's own."""
    kind = type(optimizer)
    known = _keys.get(id(kind))
    if known is not None and known[0] is kind:
        return known[1]
    if not f"{_module(kind)}.".startswith("torch.optim.") or type(kind) is not type:
        return None
    for key, names in _FIRST.items():
        if kind.__name__ in names and getattr(torch.optim, kind.__name__, None) is kind:
            _keys[id(kind)] = (kind, key)
            return key
    return None


def first(torch: Any, optimizer: Any) -> list[Any] | None:
    """Of each parameter's state, what a step changes first; None where all of it is to be read.

    Of SGD alone: inside a mode of dispatch torch's lists of the others' steps count no change, seen with torch 2.11.
    """
    states = optimizer.state
    if _key(torch, optimizer) != "momentum_buffer" or not states or not is_plain(optimizer):
        return None
    return [state.get("momentum_buffer") for state in states.values()]


def _calls_its_own(optimizer: Any, name: str) -> bool:
    """Whether the method is that of torch's class; a scheduler's count of steps around it is torch's, too."""
    mine = fields(optimizer).get(name)
    if mine is not None and not (getattr(mine, "_wrapped_by_lr_sched", False) and is_torchs(mine)):
        return False
    return is_torchs(getattr(type(optimizer), name))


def is_plain(optimizer: Any) -> bool:
    """Whether ``optimizer.step()`` runs nothing but torch's own step."""
    own = fields(optimizer)
    hooks = sys.modules.get("torch.optim.optimizer")
    return not (
        own.get("_optimizer_step_pre_hooks")
        or own.get("_optimizer_step_post_hooks")
        or getattr(hooks, "_global_optimizer_pre_hooks", None)
        or getattr(hooks, "_global_optimizer_post_hooks", None)
    ) and _calls_its_own(optimizer, "step")


def before_call(torch: Any, value: Any, method: str) -> Zeroed | Stepped | None:
    """The mark before a statement that does nothing but call this method without arguments; None: all is to be marked.

    Nothing else can change then: no hook runs, no code but torch's.
    """
    if _key(torch, value) is None:
        return None
    if method == "zero_grad":
        return Zeroed(value) if _calls_its_own(value, method) else None
    if method == "step" and is_plain(value) and not getattr(value, "grad_scale", None):
        return Stepped(value)
    return None


MAY_HAVE_STEPPED = "an optimizer may have stepped: SGD(fused=True), whose steps torch does not count"


def uncounted(optimizer: Any) -> bool:
    """Whether nothing tells that it has stepped: torch's fused operations count no changes, and SGD counts no steps."""
    return type(optimizer).__name__ == "SGD" and any(group.get("fused") for group in optimizer.param_groups)


def counted(state: Any) -> bool:
    """Whether a parameter's state, new since the marks, is of one that has stepped. Asked after a failure."""
    steps = state.get("step") if isinstance(state, dict) else None
    return hasattr(steps, "_version") and bool(steps)


class Zeroed:
    """Before ``optimizer.zero_grad()``: done twice it does the same, if the parameters are torch's own kind."""

    __slots__ = ("optimizer",)

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = weakref.ref(optimizer)

    def changed(self) -> list[str]:
        """A sentence where that is not so."""
        optimizer = self.optimizer()
        if optimizer is not None:
            for group in optimizer.param_groups:
                for one in group["params"]:
                    grad = one.grad if one.is_leaf else None
                    if not _is_plain_tensor(one) or not (grad is None or _is_plain_tensor(grad)):
                        return ["what zero_grad() changed is not known: parameters of a class of their own"]
        return []

    def undo(self) -> None:
        """There is nothing to be put back."""


def _is_plain_tensor(value: Any) -> bool:
    kind = type(value)
    return (kind.__name__, _module(kind)) in (("Tensor", "torch"), ("Parameter", "torch.nn.parameter"))


_firsts: dict[int, tuple[Any, list[tuple[int, int]]]] = {}
"""By the id of an optimizer: a reference to it, and where the first parameters are that its step changes."""


class Stepped:
    """Before ``optimizer.step()``: it goes over the parameters of one device and type in their order, group by group.

    The first of each with a gradient, and their state, tell whether it has begun.
    """

    __slots__ = ("counts", "marks", "optimizer", "places", "size")

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.size = len(optimizer.state)
        last = _firsts.get(id(optimizer))
        places = last[1] if last is not None and last[0]() is optimizer else None
        if places is None or not _lead(optimizer, places):
            places = _first_places(optimizer)
            if len(_firsts) >= 20:
                _firsts.clear()
            _firsts[id(optimizer)] = (self.optimizer, places)
        self.places = places
        self.counts = _counts(optimizer, places)
        self.marks = [(weakref.ref(one), one._version) for one in _touched(optimizer, places)]

    def changed(self) -> list[str]:
        """A sentence where the step has begun, or where that cannot be told."""
        optimizer = self.optimizer()
        if optimizer is None:
            return ["an optimizer has gone"]
        if not set(_first_places(optimizer)).issubset(self.places):
            return ["an optimizer may have stepped: its parameters are of several devices or types"]
        if uncounted(optimizer):
            return [MAY_HAVE_STEPPED]
        name = type(optimizer).__name__
        for ref, version in self.marks:
            one = ref()
            if one is None or one._version != version:
                return [f"an optimizer stepped: {name}"]
        if _counts(optimizer, self.places) != self.counts:
            return [f"an optimizer stepped: {name}"]
        new = list(optimizer.state.values())[self.size :]
        return [f"an optimizer stepped: {name}"] if any(map(counted, new)) else []

    def undo(self) -> None:
        """Take away state that the failed step made."""
        optimizer = self.optimizer()
        if optimizer is not None:
            for one in list(optimizer.state)[self.size :]:
                del optimizer.state[one]


def _lead(optimizer: Any, places: list[tuple[int, int]]) -> bool:
    """Whether these parameters are there and have gradients."""
    groups = optimizer.param_groups
    try:
        return bool(places) and all(groups[i]["params"][j].grad is not None for i, j in places)
    except IndexError:
        return False


def _first_places(optimizer: Any) -> list[tuple[int, int]]:
    found: dict[Any, tuple[int, int]] = {}
    for i, group in enumerate(optimizer.param_groups):
        for j, one in enumerate(group["params"]):
            if one.grad is not None:
                found.setdefault((i, one.device, one.dtype, one.grad.device, one.grad.dtype), (i, j))
    return list(found.values())


def _counts(optimizer: Any, places: list[tuple[int, int]]) -> list[float]:
    """How many steps these parameters count, where that is on the host: to read it is no CUDA call."""
    found: list[float] = []
    for i, j in places:
        steps = optimizer.state.get(optimizer.param_groups[i]["params"][j], {}).get("step")
        found.append(float(steps) if hasattr(steps, "device") and steps.device.type == "cpu" else 0.0)
    return found


def _touched(optimizer: Any, places: list[tuple[int, int]]) -> list[Any]:
    found = []
    for i, j in places:
        one = optimizer.param_groups[i]["params"][j]
        found.append(one)
        found += [part for part in optimizer.state.get(one, {}).values() if hasattr(part, "_version")]
    return found
