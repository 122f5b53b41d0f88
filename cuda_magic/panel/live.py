"""The live panel: plain at once, rich as soon as a page says that it can draw it; read by one thread.

The plain panel is one ipywidgets.HTML, which every front end draws. The rich one is an anywidget beside it that is
put in its place when the page's ``ready`` arrives: where the server lacks anywidget nothing arrives, and no error box
appears. Ticks go out only while somebody looks (watchers.py), one message for all devices, none when nothing changed.
"""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

import ipywidgets

from ..devices.command import once
from ..devices.table import MemoryTable
from ..kernel import control
from ..machine import machine
from ..result import Result
from . import wire
from .cards import Cards
from .history import History, pack, thin
from .marks import Marks
from .peaks import Peaks
from .people import people
from .report import HistoryTable
from .saved import HIDE, Saved, still
from .watchers import Watchers

__all__ = ["Panel", "current", "last", "stop"]

SENT = 9000
"""Readings of a device that go to a page at most when it gets the whole history: 1125 of eight, 140 of 64."""
PLAIN = 5.0
"""Seconds between two readings of the plain panel, at least: each is a whole table, seen or not."""
SOON = 0.1
"""Seconds after a reading in which the end of a cell asks for no other."""
PEOPLE = 5.0
"""Seconds after which the processes are described anew (memory/split.py keeps a description as long)."""
ALIVE = 5.0
"""Seconds after which a page without the control channel is told that an unchanged reading is a fresh one."""
_current: Panel | None = None
_last: Panel | None = None
"""The panel that was shown last, closed or not: its history can still be asked for."""


def current() -> Panel | None:
    """The panel that is shown, if there is one."""
    return _current


class Panel:
    """One live panel; opening a second one closes the first."""

    text = "GPU memory over time: the last chart and reading are below."
    """What stands in the widget's place where there are no widgets, in a notebook that is saved and exported too."""

    def __init__(self, shell: Any, table: Any, interval: float, alert: int, watchers: Watchers) -> None:
        self.shell = shell
        self.interval = interval
        self.alert = alert
        self.watchers = watchers
        self.key = uuid.uuid4().hex
        self.sent = 0
        """Messages to the page so far."""
        self.table = table
        self.trouble = ""
        self.read_at = time.monotonic()
        self._seq = 0
        self._now: list[list[int | None]] = []
        self.cards = Cards()
        self.peaks = Peaks()
        self.marks = Marks()
        self.history = History(interval)
        self.base = round(time.time(), 2)
        self._shown: Any = None
        self._shown_at = float("-inf")
        self._marks_sent = 0
        self._missed: int | None = None
        """The last reading that a page has which missed some; None where none did."""
        self._told_seq = 0
        self._people_at = float("-inf")
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
        global _current, _last
        _current = self
        if self.cards.all:  # a recording and a cluster have histories of their own
            _last = self
        self._send_plain()
        view = {"version_major": 2, "version_minor": 0, "model_id": self.box.model_id}
        # text/html is for pages without widgets, which would else show the text: the saved reading below says it all
        bundle = {
            "text/plain": self.text,
            "text/html": "<span></span>",
            "application/vnd.jupyter.widget-view+json": view,
        }
        self.shell.display_pub.publish(bundle)
        self.saved.show(self._kept(), self._chart())
        self._open_rich()
        for event, heard in self._events():
            self.shell.events.register(event, heard)
        self._thread.start()

    def _events(self) -> tuple[tuple[str, Any], ...]:
        return (("pre_run_cell", self._cell_begins), ("post_run_cell", self._cell_ends))

    def _kept(self) -> Result:
        """What a saved notebook keeps."""
        kept: Result = self.table
        return kept

    def _more(self) -> dict[str, Any]:
        """What the rich panel is given besides."""
        reading = self.table.reading
        return {
            "label": reading.label,
            "driver": reading.driver_version or "",
            "cards": self.cards.all,
            "who": self._people(),
            "base": self.base,
        }

    def _people(self) -> list[Any]:
        self._people_at = time.monotonic()
        allocator = machine().allocator()
        return self.cards.sort(self.table, people(self.table, allocator is not None and allocator.started()))

    def _chart(self) -> Any:
        """The history as a picture for the saved notebook."""
        from .picture import picture

        return picture(self.history.points(), self.cards.all, self.marks.all)

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
        for event, heard in self._events():
            try:
                self.shell.events.unregister(event, heard)
            except ValueError:
                pass
        control.deafen()
        self.saved.close(self._kept(), self._chart())
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

    def _cell_begins(self, *_: Any) -> None:
        self.watchers.alive()
        # IPython 9 counts up before it runs a cell, 7 and 8 after: the display hook's number is the cell's in all
        self.marks.begin(self.shell.displayhook.prompt_count, self._held())

    def _cell_ends(self, result: Any = None, *_: Any) -> None:
        self.watchers.alive()
        self.marks.end(getattr(result, "error_in_exec", None) or getattr(result, "error_before_exec", None))
        self._wake.set()

    def _held(self) -> int | None:
        """MiB in this kernel's tensors at the last reading."""
        known = [part.live for part in getattr(self.table, "splits", ()) if part.live is not None]
        return sum(known) >> 20 if known else None

    # -- the thread
    def _run(self) -> None:
        due = time.monotonic() + self.interval
        while not self._halt:
            self._wake.wait(max(0.0, due - time.monotonic()))
            self._wake.clear()
            if self._halt:
                return
            try:
                now = time.monotonic()
                if now >= due or (self.marks.ended and now - self.read_at > SOON):
                    due = max(due + self.interval, now) if now >= due else now + self.interval
                    self._read()
                self._tell()
            except Exception:  # noqa: BLE001 - a traceback here would land in somebody's cell
                self._halt = True

    def _read(self) -> None:
        if not self.watchers.spend():
            return
        self._note(once(self.alert))
        if self.watchers.looking() and self.saved.due:
            self.saved.update(self.table, self._chart())

    def _note(self, table: MemoryTable) -> None:
        peaks = self.peaks.note(table, machine().allocator())
        if table.reading.devices or not self.table.reading.devices:
            self.table = table  # without a driver the last reading stays, to be kept
        self.read_at = time.monotonic()
        self._seq += 1
        self.trouble = "" if table.reading.status.ok else table.reading.status.sentence or "The driver does not answer."
        self._now = self.cards.place(table, peaks)
        self.history.add(table.reading.time, self._now)
        self.marks.oom(self.peaks.ooms)
        self.marks.read(self._held())

    def _tell(self) -> None:
        """Send what the page does not have yet, if anybody looks."""
        self._become_rich()
        has = self.watchers.wants()
        if not self.watchers.looking():
            has = self._told_seq if has is None else min(has, self._told_seq)  # the page misses readings
        if has is not None:
            self._missed = has if self._missed is None else min(has, self._missed)
        if not self.watchers.looking():
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
        self._send_names()
        now, marks = self._now, self.marks.version
        message: dict[str, Any] = {"s": self._seq, "t": round(self.table_time - self.base, 2)}
        if self._missed is None and now == self._shown and marks == self._marks_sent:
            if not self.control and time.monotonic() - self._shown_at > ALIVE:
                self._send(message)
            return
        message["v"] = [wire.pack(row) for row in now]
        if self._missed is not None:
            message |= self._past(self._missed)
            self._missed = None
        elif marks != self._marks_sent:
            message["m"] = self.marks.after(self._marks_sent)
        self._shown, self._marks_sent = now, marks
        self._send(message)

    @property
    def table_time(self) -> float:
        """When the last reading was, in seconds since the epoch."""
        return self.history.recent[-1].time

    def _past(self, has: int) -> dict[str, Any]:
        """The readings after number `has`: those as they were, or where there are too many the whole run."""
        devices = max(1, len(self.cards.all))
        missing, recent = self._seq - has, self.history.recent
        if has and missing <= len(recent) and missing * devices <= SENT:
            return {"p": pack(self.history.after(missing), self.base), "f": has, "m": self.marks.all[-50:]}
        kept = list(recent)[-max(60, SENT // devices // 2) :]
        older = [point for point in self.history.points() if point.time < kept[0].time]
        room = max(60, SENT // devices - len(kept))
        return {"w": pack(thin(older, room), self.base), "p": pack(kept, self.base), "m": self.marks.all}

    def _send_names(self) -> None:
        """What changes rarely: cards that are lost, back or new, the driver's trouble, processes."""
        if self.cards.all != self.rich.cards:
            self.rich.cards = self.cards.all
        if self.trouble != self.rich.trouble:
            self.rich.trouble = self.trouble
        if time.monotonic() - self._people_at > PEOPLE and not self.trouble:
            who = self._people()
            if who != self.rich.who:
                self.rich.who = who

    def _send(self, message: dict[str, Any]) -> None:
        self._shown_at = time.monotonic()
        self._told_seq = self._seq
        self.rich.send(message)
        self.sent += 1

    def _send_plain(self) -> None:
        shown = still(self.table)
        if shown != self._shown and time.monotonic() - self._shown_at >= PLAIN:
            self._shown, self._shown_at = shown, time.monotonic()
            self.plain.value = HIDE + self.table._repr_html_()
            self.sent += 1


def last() -> HistoryTable:
    """The history of the panel that is shown, or was last."""
    if _last is None:
        return HistoryTable((), ())
    label = _last.table.reading.label
    return HistoryTable(tuple(_last.history.points()), tuple(_last.cards.all), tuple(_last.marks.all), label)


def stop() -> bool:
    """Close the current panel; False when there is none."""
    if _current is None:
        return False
    _current.close()
    return True
