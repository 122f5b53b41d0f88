"""Who holds what, for the panel: the processes of each device as the page gets them."""

from __future__ import annotations

import time
from pathlib import PurePath
from typing import Any

from ..devices.table import MemoryTable
from .wire import MIB

__all__ = ["people"]

BUSY = 5.0
"""Seconds without work up to which a process is not called idle."""
SHOWN = 8
"""Processes of a device that are sent, the largest."""


def people(table: MemoryTable, started: bool) -> list[list[list[Any]]]:
    """For each device: ``[pid, MiB or None, kind, name, user, notebook, idle since]``, the largest first.

    `kind` is ``this``, ``mine`` (another kernel of one's own), ``other`` or ``outside`` (of this container); the time
    is in whole ten seconds since the epoch and None while it works: it changes only when there is something new.
    """
    from ..memory.split import person

    found = []
    for device in table.reading.devices:
        rows = []
        for process in sorted(device.processes or (), key=lambda p: -(p.used or 0))[:SHOWN]:
            who = person(process.pid, started, table.reading.label)
            kind = "this" if who.this else "outside" if who.outside else "mine" if who.mine and who.kernel else "other"
            since = None
            if who.idle is not None and who.idle > BUSY and not who.this:
                since = round((time.time() - who.idle) / 10) * 10
            used = None if process.used is None else round(process.used / MIB)
            notebook = PurePath(who.notebook).name if who.notebook else ""
            rows.append([process.pid, used, kind, who.name or "", who.user or "", notebook, since])
        found.append(rows)
    return found
