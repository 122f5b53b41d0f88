"""Why CUDA does not work here: facts of the machine, a table of checks, findings in order of cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .diagnosis import diagnose
    from .situations import SITUATIONS, situation

__all__ = ["SITUATIONS", "diagnose", "situation"]

_ROOMS = {"SITUATIONS": "situations", "diagnose": "diagnosis", "situation": "situations"}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'cuda_magic.doctor' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_ROOMS[name]}", __name__), name)
