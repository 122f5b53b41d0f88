"""``cuda_magic.check_cuda()``: may this program use CUDA? For code, where the doctor is for people."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from ..machine import machine
from ..render.blocks import Block, Note, Text, Title
from ..result import Result
from .diagnosis import diagnose

__all__ = ["CudaCheck", "check_cuda"]


@dataclass(frozen=True, repr=False)
class CudaCheck(Result):
    """The verdict as fields. True in a condition where CUDA can be used."""

    usable: bool
    verdict: str
    """``healthy``, ``findings`` or ``unusable``: the doctor's."""
    cause: str
    """The id of the finding to act on; empty where there is none."""
    severity: str
    """Of that finding; empty where there is none."""
    sentence: str
    device_count: int
    """Devices that CUDA offers to a process with this environment; 0 where it does not start."""
    local_rank: int | None
    """LOCAL_RANK, None outside of a multi-process start."""
    device: int | None
    """The device of this rank (0 outside of a multi-process start); None where it has none."""
    can_fork: bool
    """Whether launchers that fork (accelerate's notebook_launcher) can work from this process."""
    visible: str | None
    """CUDA_VISIBLE_DEVICES as this process has it."""
    label: str = ""

    def __bool__(self) -> bool:
        return self.usable

    def blocks(self) -> Sequence[Block]:
        rank = "" if self.local_rank is None else f"rank {self.local_rank} of this node: "
        sees = f"{rank}{self.device_count} visible, device {'n/a' if self.device is None else self.device}"
        fork = "can work from here" if self.can_fork else "cannot work from here: %cuda_env --restart first"
        return (
            Title(f"CUDA {'can be used' if self.usable else 'cannot be used'}", self.label),
            *((Note(self.severity, f"{self.sentence}  [{self.cause}]"),) if self.cause else ()),
            Text(f"{sees}\nlaunchers that fork {fork}"),
        )


def check_cuda(full: bool = False) -> CudaCheck:
    """Try CUDA in a child process and say what this process may expect.

    Parameters
    ----------
    full
        Also make a first tensor on each device (takes seconds).

    Returns
    -------
    CudaCheck
        Frozen. Never raises for a broken machine; this process's CUDA is not started and no variable is set.
    """
    facts = machine().facts(full=full)
    diagnosis = diagnose(facts)
    first = next((f for f in diagnosis.findings if f.severity != "info" or f.unusable), None)
    count = facts.startup.device_count or 0 if facts.startup.ok else 0
    text = os.environ.get("LOCAL_RANK", "")
    rank = int(text) if text.isdigit() else None
    device = rank or 0
    if count == 1 and rank and facts.environment.get("CUDA_VISIBLE_DEVICES") is not None:
        device = 0  # the launcher shows each process one card
    return CudaCheck(
        usable=diagnosis.usable,
        verdict=diagnosis.verdict,
        cause=first.id if first is not None else "",
        severity=first.severity if first is not None else "",
        sentence=first.seen if first is not None else "",
        device_count=count,
        local_rank=rank,
        device=device if diagnosis.usable and device < count else None,
        can_fork=diagnosis.safe_to_fork,
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        label=diagnosis.label,
    )
