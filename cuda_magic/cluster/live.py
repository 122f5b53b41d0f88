"""``%gpu_mem --cluster``: the live panel, its rows grouped by host; it sends only the devices that changed."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from typing import Any

from ..panel.live import ALIVE, Panel, stop
from ..panel.saved import HIDE
from ..panel.watchers import Watchers
from ..panel.wire import MIB
from ..result import Result
from .connect import Cluster
from .feed import Feed
from .table import ClusterTable, ids, table

__all__ = ["BUDGET", "ClusterPanel"]

BUDGET = 30_000
"""Characters of values that one message to the page carries at most; what is left over goes with the next tick."""
PAST = 12_000
"""Of these, the history that a page gets after a gap."""
POINTS = 300
"""Readings that the history holds."""
FIRST = 2.0
"""Seconds to wait for the engines' first readings."""


class ClusterPanel(Panel):
    """One panel for all engines of a cluster."""

    text = "GPU memory of a cluster, live. The last reading that a saved notebook keeps is below."

    def __init__(self, shell: Any, feed: Feed, interval: float, alert: int, watchers: Watchers) -> None:
        self.feed = feed
        self.state = feed.state
        self._pending: dict[int, None] = {}
        self._told = -1
        self._plain_due = 0
        self._history: deque[tuple[float, list[str]]] = deque(maxlen=POINTS)
        self._whole = False
        """Whether a reading of all engines is among the notebook's outputs."""
        super().__init__(shell, self._now_table(alert), interval, alert, watchers)

    @classmethod
    def follow(
        cls, shell: Any, cluster: Cluster, interval: float, alert: int, watchers: Watchers | None = None
    ) -> ClusterPanel:
        """Show the cluster, in place of the panel before."""
        stop()
        feed = Feed(cluster, interval, alert)
        try:
            feed.first(FIRST)
            panel = cls(shell, feed, interval, alert, watchers or Watchers())
            panel._history.append((time.time(), panel._point()))
            panel._seq = 1
            panel._begin()
        except BaseException:
            feed.close()
            raise
        return panel

    def close(self) -> None:
        super().close()
        self.feed.close()

    def _now_table(self, alert: int) -> ClusterTable:
        return table(self.state, self.feed.cluster.words, alert, MIB)

    def _kept(self) -> Result:
        return self._now_table(self.alert)

    def _more(self) -> dict[str, Any]:
        return {
            "label": self.state.label,
            "driver": "",
            "cards": self._cards(),
            "hosts": self._hosts(),
            "base": self.base,
        }

    def _chart(self) -> Any:
        return None

    def _held(self) -> int | None:
        return None

    def _cards(self) -> list[dict[str, Any]]:
        at = {id(host): i for i, host in enumerate(self.state.hosts)}
        return [{**row.card, "uuid": row.uuid[-4:], "host": at[id(row.host)]} for row in self.state.rows]

    def _hosts(self) -> list[dict[str, Any]]:
        """Each host's name and engines; engines that have not said where they run come last, without a name."""
        state, now = self.state, self.state.clock()
        made = []
        for host, name in zip(state.hosts, state.names(), strict=True):
            troubles = [
                [e.id, e.state, e.note, round(now - (e.at if e.state == "late" else e.since), 1)]
                for e in host.engines
                if e.state != "live"
            ]
            alive = [e.id for e in host.engines if e.state == "live"]
            made.append({"name": name, "engines": ids(alive), "troubles": troubles, "none": host.none})
        lost = [e for e in state.engines.values() if e.host is None and e.state != "gone"]
        if lost:
            troubles = [[e.id, e.state, e.note, round(now - e.since, 1)] for e in lost]
            made.append({"name": "", "engines": "", "troubles": troubles, "none": ""})
        return made

    def _point(self) -> Any:
        """A point of the history, as it is packed: it is read when a page needs it."""
        return [row.values for row in self.state.rows]

    # -- the thread
    def _read(self) -> None:
        renew = self.watchers.spend()
        self.feed.tick(renew)
        if not renew:
            return
        self.read_at = time.monotonic()
        self._seq += 1
        self.marks.read(None)
        self._history.append((time.time(), self._point()))
        self._pending.update(dict.fromkeys(sorted(self.state.changed)))
        self.state.changed.clear()
        complete = not self._whole and all(e.state != "waits" for e in self.state.engines.values())
        if complete or (self.saved.due and self.watchers.looking()):
            self._whole = self._whole or complete
            self.saved.update(self._kept(), at_once=complete)

    def _send_rich(self) -> None:
        self._send_names()
        rows = self.state.rows
        marks = self.marks.version
        message: dict[str, Any] = {"s": self._seq, "t": round(self._history[-1][0] - self.base, 2)}
        room = BUDGET
        if self._missed is not None:
            self._pending = dict.fromkeys(range(len(rows)))
            past = self._past()
            if past:
                message |= {"w": [], "p": past}
                room -= PAST
            message["m"] = self.marks.all[-50:]
            self._missed = None
        elif not self._pending and marks == self._marks_sent:
            if not self.control and time.monotonic() - self._shown_at > ALIVE:
                self._send(message)
            return
        sent = []
        for i in self._pending:
            room -= len(rows[i].values) + 11
            if room < 0:
                break
            sent.append(i)
        for i in sent:
            del self._pending[i]
        message.setdefault("m", self.marks.after(self._marks_sent))
        self._marks_sent = marks
        message["v"] = [rows[i].values for i in sent]
        if sent != list(range(len(rows))):
            message["i"] = sent
        self._send(message)

    def _send_names(self) -> None:
        """Hosts, engines and devices, where they changed."""
        if self._told == self.state.version:
            return
        self._told = self.state.version
        cards = self._cards()
        if cards != self.rich.cards:
            self.rich.cards = cards
        self.rich.hosts = self._hosts()
        alive = any(e.state == "live" for e in self.state.engines.values())
        asked = any(e.state != "waits" for e in self.state.engines.values())
        self.trouble = "no engine answers" if asked and not alive else ""
        if self.trouble != self.rich.trouble:
            self.rich.trouble = self.trouble

    def _past(self, has: int = 0) -> list[list[Any]]:  # type: ignore[override]
        """As much of the history as there is room for, the newest part."""
        points: list[list[Any]] = []
        room = PAST
        for when, packed in reversed(self._history):
            points.append([round(when - self.base, 2), *packed])
            room -= len(repr(points[-1])) + 2
            if room < 0:
                points.pop()
                break
        return points[::-1] if len(points) > 1 else []

    def _send_plain(self) -> None:
        if self._plain_due > 0:
            self._plain_due -= 1
            return
        shown = replace(self._now_table(self.alert), time=0.0)
        if shown == self._shown:
            return
        self._shown = shown
        self.plain.value = HIDE + shown._repr_html_()
        self._plain_due = len(self.plain.value) // BUDGET  # a large table comes at a slower pace
        self.sent += 1
