"""Who looks at the panel: leases of pages, and a budget that bounds ticks nobody is known to see."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

__all__ = ["BUDGET", "LEASE", "Watchers"]

LEASE = 30.0
"""Seconds for which a page's last word holds; a page in view says so three times in this time."""
BUDGET = 600
"""Readings since the last sign of life, after which there are none: the server keeps what it cannot deliver to a
closed tab, without bound (jupyter_server, ``buffer_info``)."""


class Watchers:
    """The pages that show one panel. Every method may be called from any thread.

    Parameters
    ----------
    lease
        Seconds, see `LEASE`.
    budget
        Readings, see `BUDGET`.
    clock
        Seconds that only grow.
    """

    def __init__(self, lease: float = LEASE, budget: int = BUDGET, clock: Callable[[], float] = monotonic) -> None:
        self.lease = lease
        self.budget = budget
        self._clock = clock
        self._lock = threading.Lock()
        self._pages: dict[str, tuple[float, bool]] = {}
        self._wanting: dict[str, int] = {}
        self._credit = budget
        self.answered = False
        """Whether a page has ever said that it can draw the rich panel."""

    def hear(self, said: dict[str, Any]) -> None:
        """Note what a page says: ``ready``, ``show``, ``hide`` or ``beat``, with its id and whether it is seen."""
        page = str(said.get("cid"))[:64]
        with self._lock:
            self._credit = self.budget
            self.answered = True
            if said.get("gone"):
                self._pages.pop(page, None)
            else:
                self._pages[page] = self._clock() + self.lease, bool(said.get("see"))
            if said.get("t") in ("ready", "show"):
                has = said.get("seq")
                self._wanting[page] = has if isinstance(has, int) else 0

    def alive(self, *_: Any) -> None:
        """A cell starts or ends: somebody is there."""
        with self._lock:
            self._credit = self.budget

    def spend(self) -> bool:
        """Pay for one reading; False when the budget is used up."""
        with self._lock:
            if self._credit <= 0:
                return False
            self._credit -= 1
            return True

    def looking(self) -> bool:
        """Whether a page is known to see the panel, or none has answered yet (the plain panel cannot)."""
        if not self.answered:
            return True
        now = self._clock()
        with self._lock:
            self._pages = {page: word for page, word in self._pages.items() if word[0] > now}
            return any(seen for _, seen in self._pages.values())

    def wants(self) -> int | None:
        """The last reading that a page has which came into view since the last call: it needs those after it."""
        with self._lock:
            has, self._wanting = self._wanting, {}
            return min(has.values(), default=None)
