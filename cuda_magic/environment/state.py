"""How far this process has come: torch absent, imported, CUDA started, a context exists. Read, never caused."""

from __future__ import annotations

import enum
import sys
from dataclasses import dataclass

from ..devices import driver
from ..machine import machine

__all__ = ["Moment", "Progress", "now", "progress"]


class Moment(enum.IntEnum):
    """Later moments are larger."""

    BEFORE_IMPORT = 0
    IMPORTED = 1
    STARTED = 2
    """cuInit was called (torch.cuda.is_available() does)."""
    CONTEXT = 3
    """torch has initialised CUDA, or a context exists."""


@dataclass(frozen=True)
class Progress:
    """How far torch has come and how far the driver has: another library may start CUDA before torch is imported."""

    imported: bool = False
    initialised: bool = False
    """torch has initialised CUDA."""
    started: bool = False
    """cuInit was called."""
    context: bool = False
    practice: bool = False
    """The practice GPU is in use in this process, in the place of torch and CUDA."""

    @property
    def moment(self) -> Moment:
        if self.context or self.initialised:
            return Moment.CONTEXT
        if self.started:
            return Moment.STARTED
        return Moment.IMPORTED if self.imported else Moment.BEFORE_IMPORT

    @property
    def words(self) -> str:
        """One sentence; whether torch is imported is always said."""
        if self.practice:
            return "The practice GPU is in use in this process."
        torch = "torch is already imported" if self.imported else "torch is not imported yet"
        if self.initialised:
            return f"{torch} and uses CUDA in this process."
        if self.context:
            return f"{torch}; another library uses CUDA in this process."
        if self.started:
            return f"{torch}; CUDA is already started in this process (cuInit was called)."
        return f"{torch}; CUDA is not started." if self.imported else f"{torch}."


def progress() -> Progress:
    """How far this process has come; on a practice machine, how far its GPU has."""
    here = machine()
    if here.label:
        allocator = here.allocator()
        used = allocator is not None and allocator.started()
        return Progress(used or "torch" in sys.modules, used, used, used, practice=used)
    torch = sys.modules.get("torch")
    initialised = bool(getattr(getattr(torch, "cuda", None), "_initialized", False))
    started = initialised or driver.started()
    return Progress(torch is not None, initialised, started, initialised or (started and bool(driver.contexts())))


def now() -> Moment:
    """The moment that this process is at."""
    return progress().moment
