"""The live panel: plain at once, rich as soon as a page says that it can draw it; read by one thread.

The plain panel is one ipywidgets.HTML, which every front end draws. The rich one is an anywidget beside it that is
put in its place when the page's ``ready`` arrives: where the server lacks anywidget nothing arrives, and no error box
appears. Ticks go out only while somebody looks (watchers.py), one message for all devices, none when nothing changed.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from typing import Any

import ipywidgets

from ..devices.command import once
from ..devices.table import MemoryTable
from ..kernel import control
from ..result import Result
from . import wire
from .saved import HIDE, Saved, still
from .watchers import Watchers

__all__ = ["Panel", "current", "stop"]

POINTS = 300
"""Readings that the history holds."""
ALIVE = 5.0
"""Seconds after which a page without the control channel is told that an unchanged reading is a fresh one."""
_current: Panel | None = None


def current() -> Panel | None:
    """The panel that is shown, if there is one."""
    return _current


class Panel:
    """One live panel; opening a second one closes the first."""

    text = "GPU memory, live. The last reading that a saved notebook keeps is below."
    """What stands in the widget's place where there are no widgets."""

    def __init__(self, shell: Any, table: Any, interval: float, alert: int, watchers: Watchers) -> None:
        self.shell = shell
        self.interval = interval
        self.alert = alert
        self.watchers = watchers
        self.key = uuid.uuid4().hex
        self.sent = 0
        """Messages to the page so far."""
        self.table = table
        self.read_at = time.monotonic()
        self._seq = 0
        self._now: list[list[int | None]] = []
        self._history: deque[list[int | None]] = deque(maxlen=POINTS)
        self._shown: Any = None
        self._shown_at = 0.0
        self._owed = False
        self._halt = False
        self._wake = threading.Event()
        self.plain = ipywidgets.HTML()
        self.rich: Any = None
        self.is_rich = False
        self.control = control.listen(shell, self._hear_control)
        self.box = ipywidgets.VBox([self.plain])
        self.saved = Saved(shell.display_pub.publish)
        self._thread = threading.Thread(target=self._run, name="cuda_magic panel", daemon=True)

    # -- opening and closing
    @classmethod
    def open(
        cls, shell: Any, table: MemoryTable, interval: float, alert: int, watchers: Watchers | None = None
    ) -> Panel:
        """Show a new panel, in place of the one before."""
        stop()
        panel = cls(shell, table, interval, alert, watchers or Watchers())
        panel._note(table)
        panel._begin()
        return panel

    def _begin(self) -> None:
        """Show what is there, and start to hear and read."""
        global _current
        _current = self
        self._send_plain()
        view = {"version_major": 2, "version_minor": 0, "model_id": self.box.model_id}
        self.shell.display_pub.publish({"text/plain": self.text, "application/vnd.jupyter.widget-view+json": view})
        self.saved.show(self._kept())
        self._open_rich()
        for event in ("pre_run_cell", "post_run_cell"):
            self.shell.events.register(event, self._cell)
        self._thread.start()

    def _kept(self) -> Result:
        """What a saved notebook keeps."""
        kept: Result = self.table
        return kept

    def _more(self) -> dict[str, Any]:
        """What the rich panel is given besides."""
        reading = self.table.reading
        return {"label": reading.label, "driver": reading.driver_version or "", "cards": wire.cards(self.table)}

    def _open_rich(self) -> None:
        try:
            from .rich import Rich
        except ImportError:
            return
        self.rich = Rich(
            key=self.key,
            control=self.control,
            beat=self.watchers.lease / 3,
            interval=self.interval,
            alert=self.alert,
            **self._more(),
        )
        self.rich.on_msg(lambda _widget, said, _buffers: self._hear(said))

    def close(self) -> None:
        """End the thread and the widgets; the last reading stays as a table."""
        global _current
        self._halt = True
        self._wake.set()
        if threading.current_thread() is not self._thread and self._thread.is_alive():
            self._thread.join(timeout=2)
        for event in ("pre_run_cell", "post_run_cell"):
            try:
                self.shell.events.unregister(event, self._cell)
            except ValueError:
                pass
        control.deafen()
        self.saved.close(self._kept())
        # VBox and HTML each own a layout and a style model; none may stay behind
        for widget in (self.rich, self.box, self.plain):
            if widget is not None:
                for owned in (getattr(widget, "layout", None), getattr(widget, "style", None)):
                    if isinstance(owned, ipywidgets.Widget):
                        owned.close()
                widget.close()
        if _current is self:
            _current = None

    # -- what is heard; these run on any thread and only take notes
    def _hear_control(self, said: dict[str, Any]) -> dict[str, Any] | None:
        if said.get("key") != self.key:
            return None
        self._hear(said)
        return {"seq": self._seq, "age": round(time.monotonic() - self.read_at, 1)}

    def _hear(self, said: Any) -> None:
        if isinstance(said, dict) and said.get("key") == self.key:
            self.watchers.hear(said)
            if said.get("t") != "beat":
                self._wake.set()

    def _cell(self, *_: Any) -> None:
        self.watchers.alive()

    # -- the thread
    def _run(self) -> None:
        due = time.monotonic() + self.interval
        while not self._halt:
            self._wake.wait(max(0.0, due - time.monotonic()))
            self._wake.clear()
            if self._halt:
                return
            try:
                if time.monotonic() >= due:
                    due = max(due + self.interval, time.monotonic())
                    self._read()
                self._tell()
            except Exception:  # noqa: BLE001 - a traceback here would land in somebody's cell
                self._halt = True

    def _read(self) -> None:
        if not self.watchers.spend():
            return
        self._note(once(self.alert))
        if self.watchers.looking():
            self.saved.update(self.table)

    def _note(self, table: MemoryTable) -> None:
        self.table = table
        self.read_at = time.monotonic()
        self._seq += 1
        self._now = wire.values(table)
        self._history.append(wire.history_point(self._now))

    def _tell(self) -> None:
        """Send what the page does not have yet, if anybody looks."""
        self._become_rich()
        self._owed = self.watchers.wants() or self._owed
        if not self.watchers.looking():
            self._owed = True  # the page misses readings: the next message carries the history
            return
        if self.is_rich:
            self._send_rich()
        else:
            self._send_plain()

    def _become_rich(self) -> None:
        if self.rich is not None and self.watchers.answered and not self.is_rich:
            self.is_rich = True
            self.box.children = [self.rich]

    def _send_rich(self) -> None:
        fresh = wire.cards(self.table)
        if fresh != self.rich.cards:  # a device is lost, back, or another one
            self.rich.cards = fresh
            self._owed = True
        now = self._now
        if not self._owed and now == self._shown:
            if not self.control and time.monotonic() - self._shown_at > ALIVE:
                self._send({"s": self._seq})
            return
        message: dict[str, Any] = {"s": self._seq, "v": now}
        if self._owed:
            message["h"] = list(self._history)
            self._owed = False
        self._shown = now
        self._send(message)

    def _send(self, message: dict[str, Any]) -> None:
        self._shown_at = time.monotonic()
        self.rich.send(message)
        self.sent += 1

    def _send_plain(self) -> None:
        shown = still(self.table)
        if shown != self._shown:
            self._shown = shown
            self.plain.value = HIDE + self.table._repr_html_()
            self.sent += 1


def stop() -> bool:
    """Close the current panel; False when there is none."""
    if _current is None:
        return False
    _current.close()
    return True
