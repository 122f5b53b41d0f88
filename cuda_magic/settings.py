"""Defaults a user can change: ``c.CudaMagic.interval = 2`` in a config file, or ``%config CudaMagic.interval = 2``."""

from __future__ import annotations

from typing import Any

from traitlets import Bool, Float, Int, observe
from traitlets.config.configurable import Configurable

__all__ = ["CudaMagic"]


class CudaMagic(Configurable):
    """Settings of cuda_magic's magics; an option on a magic's line wins over them."""

    interval = Float(1.0, min=0.25, help="Seconds between two readings of %gpu_mem.").tag(config=True)
    alert = Int(95, min=1, max=100, help="Percent of a device's memory above which %gpu_mem says so.").tag(config=True)
    retries = Int(3, min=0, help="How often %%cuda_guard repeats one statement.").tag(config=True)
    wait = Float(0.0, min=0.0, help="Seconds that %%cuda_guard waits for other processes.").tag(config=True)
    at_allocation = Bool(
        True, help="Whether a guarded cell makes room where torch asks the driver for memory; else after the error."
    ).tag(config=True)
    quiet = Bool(False, help="No line to stderr for each repeat of %%cuda_guard.").tag(config=True)

    @observe("at_allocation")
    def _switched(self, change: Any) -> None:
        from .allocation.session import switch

        switch(bool(change["new"]))
