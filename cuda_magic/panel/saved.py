"""The reading that a saved notebook keeps: an output of its own, since a page without a kernel shows no widget."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..devices.table import MemoryTable
from ..render import html, text
from ..render.blocks import Picture, Text
from ..result import Result

__all__ = ["HIDE", "Saved"]

EVERY = 60.0
"""Seconds between two rewrites, at least."""
HIDE = "<style>.cuda-magic-saved{display:none}</style>"
"""The live panel's style: while it is on the page, the saved reading is not drawn below it."""

NO_ERROR_LINE = (
    "<style>.jp-OutputArea-child:has(> .jupyter-widgets):not(:has(.widget-vbox))"
    ":has(+ .jp-OutputArea-child .cuda-magic-kept){display:none}</style>"
)
"""A page without the kernel says "Error displaying widget" in the panel's place, the output before this one."""


class Saved:
    """One display of the last reading; `update` rewrites it at most once a minute.

    Parameters
    ----------
    publish
        ``shell.display_pub.publish``.
    """

    def __init__(self, publish: Callable[..., None], clock: Callable[[], float] = time.monotonic) -> None:
        self._publish = publish
        self._clock = clock
        self._id = uuid.uuid4().hex
        self._written = clock()

    def show(self, table: Result, chart: Picture | None = None) -> None:
        self._publish(self._bundle(table, chart, live=True), transient={"display_id": self._id})

    @property
    def due(self) -> bool:
        """Whether the last time is a minute ago."""
        return self._clock() - self._written >= EVERY

    def update(self, table: Result, chart: Picture | None = None, at_once: bool = False) -> bool:
        """Rewrite, if the last time is a minute ago or `at_once`; says whether it was done."""
        if not self.due and not at_once:
            return False
        self._written = self._clock()
        self._publish(self._bundle(table, chart, live=True), transient={"display_id": self._id}, update=True)
        return True

    def close(self, table: Result, chart: Picture | None = None) -> None:
        """The last reading, no longer hidden by a live panel."""
        self._publish(self._bundle(table, chart, live=False), transient={"display_id": self._id}, update=True)

    def _bundle(self, table: Result, chart: Picture | None, live: bool) -> dict[str, Any]:
        blocks = [*table.blocks(), *([chart] if chart is not None else [])]
        read_at = table.reading.time if isinstance(table, MemoryTable) else getattr(table, "time", None)
        if read_at is not None:  # a recording says by itself of when it is
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(read_at))
            blocks.append(Text(f"Read {when}." if live else f"Read {when}; the panel is stopped."))
        kind = "cuda-magic-kept cuda-magic-saved" if live else "cuda-magic-kept"
        return {
            "text/plain": text.draw(blocks),
            "text/html": f'{NO_ERROR_LINE}<div class="{kind}">{html.draw(blocks)}</div>',
        }


def still(table: MemoryTable) -> MemoryTable:
    """`table` without its time, which alone is no change."""
    return replace(table, reading=replace(table.reading, time=0.0))
