"""A panel of one ipywidgets.HTML: one message a tick for all devices, none when nothing changed.

One HTML widget costs 3 messages to open and 1 a tick, where rows of bars cost 90 and 16 (8 devices). The sampler is
one daemon thread that never prints: a stray print lands in another cell's output.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import ipywidgets

from ..devices.table import MemoryTable

__all__ = ["Panel", "stop"]

BUDGET = 600
"""Ticks without a cell being run, after which the panel rests: a closed tab must not fill the server's buffer."""

_current: Panel | None = None


class Panel:
    """One live panel; opening a second one replaces it."""

    def __init__(self, shell: Any, interval: float, alert: int) -> None:
        self.shell = shell
        self.interval = interval
        self.alert = alert
        self.widget = ipywidgets.HTML()
        self.ticks = 0
        self.sent = 0
        self._shown = ""
        self._halt = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cuda_magic panel", daemon=True)

    @classmethod
    def open(cls, shell: Any, table: MemoryTable, interval: float, alert: int) -> ipywidgets.HTML:
        """A new panel in place of the one before; gives the widget, which IPython displays."""
        global _current
        stop()
        panel = _current = cls(shell, interval, alert)
        panel._update(table)
        shell.events.register("pre_run_cell", panel.on_cell)
        panel._thread.start()
        return panel.widget

    def on_cell(self, *_: Any) -> None:
        """A cell runs, so somebody is there: the budget starts anew."""
        self.ticks = 0

    def close(self) -> None:
        """End the sampler; the last reading stays on the page."""
        self._halt.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=2)
        try:
            self.shell.events.unregister("pre_run_cell", self.on_cell)
        except ValueError:
            pass

    def _run(self) -> None:
        from ..devices.command import once

        while not self._halt.wait(self.interval):
            if self.ticks >= BUDGET:
                continue
            self.ticks += 1
            try:
                self._update(once(self.alert))
            except Exception:  # noqa: BLE001 - a traceback here would land in somebody's cell
                self._halt.set()

    def _update(self, table: MemoryTable) -> None:
        # the time alone is no change
        html = replace(table, reading=replace(table.reading, time=0.0))._repr_html_()
        if html != self._shown:
            self._shown = html
            self.widget.value = html + f"<small>read {time.strftime('%H:%M:%S')}, every {self.interval:g} s</small>"
            self.sent += 1


def stop() -> None:
    """Stop the current panel."""
    global _current
    if _current is not None:
        _current.close()
        _current = None
