"""torch's own optimizers: what of their state a step changes first, and whether a step is theirs alone.

Each of them counts a parameter's steps before it changes anything else of that parameter (torch/optim/*.py: ``step_t += 1``,
``_foreach_add_(device_state_steps, 1)``); SGD changes the momentum first, and then the parameter. So the first of each
parameter's state tells whether a step has begun there, and the rest of it need not be read before each statement.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ..parts import fields

__all__ = ["first", "is_plain", "zeroes"]

_FIRST = {
    "step": ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "Adagrad", "Adafactor", "RMSprop", "Rprop", "ASGD"),
    "momentum_buffer": ("SGD",),
}
"""What a step changes first of a parameter's state, by torch's classes."""

_module, _dict = (vars(type)[name].__get__ for name in ("__module__", "__dict__"))
_known: dict[int, tuple[Any, bool]] = {}
"""By the id of a function: it, and whether it is torch's own, with whatever it wraps."""


def _key(torch: Any, optimizer: Any) -> str | None:
    """The key of what is changed first; None where it is not one of torch's own."""
    kind = type(optimizer)
    if not str(_module(kind)).startswith("torch.optim."):
        return None
    for key, names in _FIRST.items():
        if kind.__name__ in names and getattr(torch.optim, kind.__name__, None) is kind:
            return key
    return None


def first(torch: Any, optimizer: Any) -> list[Any] | None:
    """Of each parameter's state, what a step changes first; None where that is not known."""
    key = _key(torch, optimizer)
    states = optimizer.state
    if key is None or not states or not is_plain(optimizer):
        return None
    if key == "step":
        found = [state.get("step") for state in states.values()]
        return None if float in map(type, found) or int in map(type, found) else found
    return [state.get(key) for state in states.values()]


def _is_torchs(function: Any) -> bool:
    """Whether a function is from torch.optim, and all that it wraps."""
    known = _known.get(id(function))
    if known is not None and known[0] is function:
        return known[1]
    inner, own = function, True
    while inner is not None and own:
        code = getattr(inner, "__code__", None)
        own = code is not None and os.path.basename(os.path.dirname(code.co_filename)) == "optim"
        own = own and inner.__module__.startswith("torch.optim.")
        inner = getattr(inner, "__wrapped__", None)
    if len(_known) >= 100:
        _known.clear()
    _known[id(function)] = (function, own)
    return own


def _calls_its_own(optimizer: Any, name: str) -> bool:
    """Whether the method is that of torch's class; a scheduler's count of steps around it is torch's, too."""
    mine = fields(optimizer).get(name)
    if mine is not None and not (getattr(mine, "_wrapped_by_lr_sched", False) and _is_torchs(mine)):
        return False
    for base in type(optimizer).__mro__:
        method = _dict(base).get(name)
        if method is not None:
            return _is_torchs(method)
    return False


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


def zeroes(torch: Any, optimizer: Any) -> bool:
    """Whether ``optimizer.zero_grad()`` is torch's own, which does the same when it is done twice."""
    return _key(torch, optimizer) is not None and _calls_its_own(optimizer, "zero_grad")
