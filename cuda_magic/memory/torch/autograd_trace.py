"""Whether autograd was recording where an attempt failed: told by the frames of its error, before they are gone."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

__all__ = ["reason"]

COMPILED = ("/torch/_dynamo/", "/torch/_inductor/", "/torch/_functorch/", "/torchinductor")
"""Parts of the file names of code that torch.compile or torch.func runs: neither lets hooks see what is saved."""
FEW = 50
"""Items of a local container that are looked at."""


def reason(torch: Any, error: BaseException) -> str:
    """Why hooks on what autograd saves cannot help, in one clause; empty where they may.

    A backward pass failed, or a forward pass that was recorded, if a frame has a tensor with a ``grad_fn``. Frames'
    locals are looked at through the garbage collector: ``f_locals`` would make a dictionary that keeps them.
    """
    found = False
    trace = error.__traceback__
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
        name = frame.f_code.co_filename.replace("\\", "/")
        if any(part in name for part in COMPILED):
            return "the failed call ran under torch.compile or torch.func"
        if not found:
            values = frame.f_globals.values() if frame.f_code.co_name == "<module>" else gc.get_referents(frame)
            found = _any(torch, list(values), 1)
        del frame
    return "" if found else "the failed attempt recorded no graph for a backward pass"


def _any(torch: Any, values: Iterable[Any], depth: int) -> bool:
    for value in values:
        kind = type(value)  # a hostile __class__ property must not run
        if issubclass(kind, torch.Tensor):
            try:
                if value.grad_fn is not None:
                    return True
            except Exception:  # noqa: BLE001 - a subclass of the user's may run anything
                continue
        elif depth and kind in (list, tuple) and len(value) <= FEW and _any(torch, value, depth - 1):
            return True
    return False
