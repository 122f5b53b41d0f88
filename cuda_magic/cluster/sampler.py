"""On the engine: readings by a thread of its own, sent while the engine computes, and only while somebody listens.

They go out on the engine's iopub channel, as everything that an engine says does: through the controller, with the
cluster's own signature and encryption, and no port is opened. A message has no parent, so the hub's database keeps
nothing of it and the clients of others pass it by. A reading of all devices is sent at first and now and then, in
between only the devices that changed.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Any

from ..kernel import control
from ..panel.wire import MIB, join, split
from .agent import snapshot
from .state import holds

__all__ = ["ALIVE", "FULL", "TOPIC", "Sampler", "start", "stop"]

TOPIC = "cuda_magic"
"""Messages are published under ``cuda_magic.KEY``; nothing of ipyparallel's begins so."""
ALIVE = 2.0
"""Seconds after which an unchanged reading is sent as a sign of life."""
FULL = 15.0
"""Seconds between two messages that carry everything, about: what a listener missed is there again then."""
_samplers: dict[str, Sampler] = {}


class Sampler:
    """The readings for one listener.

    Parameters
    ----------
    kernel
        The engine's kernel: its session signs, its iopub socket may be used from any thread.
    key
        The listener's.
    interval
        Seconds between two readings.
    alert
        Percent, see `snapshot`.
    lease
        Seconds for which `renew` holds. After that nothing is read; after ten times as long the thread ends.
    """

    def __init__(self, kernel: Any, key: str, interval: float, alert: int, lease: float) -> None:
        self.kernel, self.key = kernel, key
        self.interval, self.alert, self.lease = interval, alert, lease
        self._number = 0
        self._cards: Any = None
        self._values: list[str] = []
        self._owns: list[int] = []
        self._sent_at = self._full_due = float("-inf")
        self._until = time.monotonic() + lease
        self._halt = threading.Event()
        self._renewed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cuda_magic sampler", daemon=True)

    def begin(self) -> None:
        """Start the thread."""
        self._thread.start()

    def renew(self, again: bool = False) -> None:
        """Somebody listens; `again` asks for everything in the next message."""
        if again or time.monotonic() > self._until:
            self._full_due = float("-inf")
        self._until = time.monotonic() + self.lease
        self._renewed.set()

    def stop(self) -> None:
        self._halt.set()
        self._renewed.set()

    @property
    def running(self) -> bool:
        return self._thread.is_alive() and not self._halt.is_set()

    def _run(self) -> None:
        try:
            while not self._halt.is_set():
                now = time.monotonic()
                if now > self._until:
                    self._renewed.clear()
                    if not self._renewed.wait(9 * self.lease):
                        break
                    continue
                self.tick()
                self._halt.wait(max(0.0, now + self.interval - time.monotonic()))
        except Exception:  # noqa: BLE001 - a traceback here would land in somebody's cell
            pass
        finally:
            self._halt.set()

    def tick(self) -> None:
        """One reading, sent if there is something to say."""
        read = snapshot(self.alert, MIB)
        now = time.monotonic()
        text, cards = read.pop("values"), read["cards"]
        values = split(text)
        content: dict[str, Any] = {"e": getattr(self.kernel, "engine_id", -1), "n": self._number + 1}
        if now >= self._full_due or cards != self._cards:
            content["f"] = read
            content["v"] = text
            # engines that were begun together do not all send everything together
            self._full_due = now + FULL * random.uniform(0.7, 1.3)
        else:
            changed = [i for i, row in enumerate(values) if row != self._values[i]]
            if not changed and now - self._sent_at < ALIVE:
                return
            if changed:
                content["v"] = join([values[i] for i in changed])
                if len(changed) < len(values):
                    content["i"] = changed
        owns = [i for i, row in enumerate(values) if holds(row)]
        if "f" in content or owns != self._owns:
            content["o"] = owns
        self._cards, self._values, self._owns = cards, values, owns
        self._number += 1
        self._sent_at = now
        self.send(content)

    def send(self, content: dict[str, Any]) -> None:
        """Publish `content`, from this thread."""
        session = self.kernel.session
        session.send(self.kernel.iopub_socket, TOPIC, content, ident=f"{TOPIC}.{self.key}".encode())


def start(key: str, interval: float, alert: int, lease: float) -> None:
    """Read for the listener `key` from now on, in place of what was started for it before."""
    from IPython import get_ipython

    shell = get_ipython()
    stop(key)
    for one in [key for key, sampler in _samplers.items() if not sampler.running]:
        del _samplers[one]
    control.listen(shell, _hear)
    _samplers[key] = Sampler(shell.kernel, key, interval, alert, lease)
    _samplers[key].begin()


def stop(key: str) -> bool:
    """End the readings for `key`; False where there are none."""
    sampler = _samplers.pop(key, None)
    if sampler is None:
        return False
    sampler.stop()
    if not _samplers:
        control.deafen()
    return True


def _hear(said: dict[str, Any]) -> dict[str, Any] | None:
    """A word of a listener on the control channel, which is served while the engine computes. None: not known."""
    sampler = _samplers.get(str(said.get("key")))
    if sampler is None or not sampler.running:
        return None
    if said.get("t") == "stop":
        stop(sampler.key)
    else:
        sampler.renew(said.get("t") == "again")
    return {"running": True}
