"""Ranks of one job (torch.distributed): whether a statement can be repeated on one of them alone.

A rank that repeats a statement would enter its collectives once more, and the others would not: at best all wait for
the timeout, at worst two different collectives meet and the numbers are wrong without a word. The groups count their
collectives; so a statement that has entered none can be repeated while the others wait in their next one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import CodeType, FunctionType
from typing import Any

__all__ = ["alone", "changed", "left_behind", "position", "world"]

UNKNOWN = (("unknown", -1),)
_POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv", "P2POp"})
_PIPELINES = (
    ("torch.distributed.pipelining", "torch.distributed.pipelining"),
    ("deepspeed.runtime.pipe.p2p", "DeepSpeed's pipeline"),
    ("megatron.core.pipeline_parallel.p2p_communication", "Megatron's pipeline"),
)
"""(module, in words) whose stages send to each other; NCCL's groups do not count that (ProcessGroupNCCL: seqP2P_)."""


def _groups() -> Any:
    """torch's module of groups, where this process is one of several ranks."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or getattr(getattr(c10d, "_world", None), "_default_pg", c10d) is None:
        return None  # asked before every statement
    if not c10d.is_initialized() or c10d.get_world_size() < 2:
        return None
    return c10d


def world() -> tuple[int, int] | None:
    """(rank, how many ranks); None outside of a job of several."""
    c10d = _groups()
    return None if c10d is None else (c10d.get_rank(), c10d.get_world_size())


def position() -> tuple[tuple[str, int], ...]:
    """How many collectives each group of this rank has entered; empty outside of a job of several ranks."""
    c10d = _groups()
    if c10d is None:
        return ()
    try:
        groups = c10d._world.pg_map
        return tuple((group.group_name, group._get_sequence_number_for_group()) for group in groups)
    except (AttributeError, RuntimeError):
        return UNKNOWN


def changed(before: tuple[tuple[str, int], ...], namespace: Mapping[str, Any]) -> list[str]:
    """Why a statement may not be repeated on this rank alone; empty where it may."""
    at = world()
    now = position()
    if at is None and now == before:
        return []
    if now == UNKNOWN:
        return ["this torch does not tell whether collectives were entered, and the other ranks would not repeat them"]
    if now != before:
        entered = sum(count for _, count in now) - sum(count for _, count in before)
        count = f"{entered} collective{'' if entered == 1 else 's'}" if entered > 0 else "collectives"
        which = "" if at is None else f"rank {at[0]} of {at[1]} "
        return [f"{which}entered {count} with the other ranks, which would not repeat them"]
    unseen = _point_to_point(namespace)
    return [f"{unseen} sends from rank to rank, which NCCL's groups do not count"] if unseen else []


def _point_to_point(namespace: Mapping[str, Any]) -> str:
    """What may have sent to another rank unseen; empty where nothing can have."""
    c10d = _groups()
    if c10d is None or "nccl" not in str(c10d.get_backend()):
        return ""
    for module, words in _PIPELINES:
        if module in sys.modules:
            return words
    for name, value in namespace.items():
        if type(value) is FunctionType and _names(value.__code__) & _POINT_TO_POINT:
            return f"{name}()"
    return ""


def _names(code: CodeType) -> frozenset[str]:
    inner: Iterable[CodeType] = (c for c in code.co_consts if isinstance(c, CodeType))
    return frozenset(code.co_names).union(*map(_names, inner))


def alone() -> str:
    """Why this rank may not compute something else than the others; empty outside of a job of several ranks."""
    at = world()
    if at is None:
        return ""
    return f"rank {at[0]} of {at[1]} alone would compute something else than the others: change it on all of them"


def left_behind() -> str:
    """What happens to the other ranks when this one leaves a statement with an error; empty without others."""
    at = world()
    if at is None:
        return ""
    return (
        f"rank {at[0]} of {at[1]} left the statement: the others wait for it in their next collective"
        f"{_timeout()}; interrupt them, or start all of them again"
    )


def _timeout() -> str:
    c10d = _groups()
    try:
        group = c10d._get_default_group()
        devices = group._device_types
        seconds = group._get_backend(devices[0]).options._timeout.total_seconds()
    except (AttributeError, RuntimeError, IndexError):
        return " until its timeout"
    return f" until its timeout ({seconds / 60:g} min)"
