"""In the notebook: what the engines' samplers send, taken in without waiting for any of them.

One socket listens for our topic alone. Signatures are checked as ipyparallel checks them, and only a message's content
is unpacked: a message costs some 30 us, a fifth of what a client of ipyparallel spends on one.
"""

from __future__ import annotations

import hmac
import json
import time
import uuid
from typing import Any

from .connect import Cluster, reason, say
from .sampler import ALIVE, TOPIC
from .state import State

__all__ = ["LEASE", "Feed"]

LEASE = 60.0
"""Seconds for which engines read without hearing from this notebook."""
BUSY = 3.0
"""Seconds after which an engine that has not begun is said to be busy."""
AGAIN = 3.0
"""Seconds between two requests for everything to one engine."""
STOP = 0.5
"""Seconds to wait for the engines' word that their samplers end; without it they rest when the lease is over."""
_DELIMITER = b"<IDS|MSG>"


def _zmq() -> Any:
    import zmq

    return zmq


class Feed:
    """The readings of all engines of one cluster. For one thread.

    Parameters
    ----------
    cluster
        The connection; closed with the feed.
    interval
        Seconds between two readings.
    alert
        Percent, as %gpu_mem takes it.
    """

    def __init__(self, cluster: Cluster, interval: float, alert: int) -> None:
        self.cluster, self.interval, self.alert = cluster, interval, alert
        self.client = cluster.client
        self.key = uuid.uuid4().hex[:16]
        self.state = State(time.monotonic)
        self.late = max(3 * interval, interval + 2 * ALIVE, 6.0)
        """Seconds without a message after which an engine is late."""
        self.heard = 0
        """Messages taken in so far."""
        self._jobs: dict[int, tuple[str, Any, float]] = {}
        """engine: (its uuid, the request to begin, when it was sent)."""
        self._begun: dict[int, str] = {}
        self._renewals: dict[int, Any] = {}
        self._renewed_at = float("-inf")
        self._asked_at: dict[int, float] = {}
        session = self.client.session
        self._key, self._hash = session.key, session.signature_scheme.removeprefix("hmac-")
        self._unpack = session.unpack
        self.socket = self._listen()

    def _listen(self) -> Any:
        zmq = _zmq()
        from ipyparallel import util

        from ..errors import Refused

        client = self.client
        if getattr(client, "_ssh", False):
            raise Refused(
                "gpu_mem: the live panel does not go through ipyparallel's ssh tunnels; one reading does: --once."
            )
        socket = client._context.socket(zmq.SUB)
        socket.linger = 0
        socket.setsockopt(zmq.SUBSCRIBE, f"{TOPIC}.{self.key}".encode())
        keys = {name: getattr(client, name) for name in ("curve_serverkey", "curve_secretkey", "curve_publickey")}
        util.connect(socket, client._config["iopub"], **keys)
        return socket

    # -- once a tick
    def tick(self, renew: bool = True) -> None:
        """Take in what came, begin on engines that are new, and say that somebody listens."""
        self.drain()
        self.state.settle()
        there = set() if self.client._closed else set(self.client.ids)
        if renew and there:
            self._begin(there)
            self._renew(there)
        self.state.ages(there, self.late)

    def drain(self) -> None:
        """Take in all messages that are there; never waits."""
        zmq, socket = _zmq(), self.socket
        while True:
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._message(frames)

    def _message(self, frames: list[bytes]) -> None:
        try:
            at = frames.index(_DELIMITER)
            signed = frames[at + 2 : at + 6]
            if not self._genuine(signed, frames[at + 1]):
                return
            content = self._unpack(signed[3])
            engine = int(content["e"])
            whole = self.state.hear(content)
        except (ValueError, KeyError, TypeError, IndexError):
            return  # not one of ours: nothing to believe
        self.heard += 1
        if not whole:
            self._again(engine)

    def _genuine(self, signed: list[bytes], signature: bytes) -> bool:
        """Whether a message carries the cluster's signature: Session.sign in one call."""
        if not self._key:
            return True
        digest = hmac.digest(self._key, b"".join(signed), self._hash)
        return hmac.compare_digest(digest.hex().encode(), signature)

    def _again(self, engine: int) -> None:
        """Something was missed: ask for everything."""
        now = time.monotonic()
        if now - self._asked_at.get(engine, float("-inf")) > AGAIN:
            self._asked_at[engine] = now
            self._control(engine, "again")

    def _begin(self, there: set[int]) -> None:
        now = time.monotonic()
        known = self.client._engines
        for engine in there:
            name = known.get(engine)
            if name is None or self._begun.get(engine) == name:
                continue
            one = self.state.engine(engine)
            if engine not in self._jobs or self._jobs[engine][0] != name:
                arguments = {"key": self.key, "interval": self.interval, "alert": self.alert, "lease": LEASE}
                job = say(self.client, "start", arguments, engine)
                if job is not None:
                    self._jobs[engine] = (name, job, now)
                continue
            _, job, since = self._jobs[engine]
            if job.ready():
                del self._jobs[engine]
                self._begun[engine] = name
                why = self._failure(job)
                if why:
                    self.state.mark(one, "failed", why)
            elif now - since > BUSY and one.state == "waits":
                self.state.mark(one, "waits", "busy: its readings begin when its cell ends")

    def _failure(self, job: Any) -> str:
        try:
            return str(json.loads(job.get(timeout=0)).get("error", ""))
        except Exception as error:  # noqa: BLE001 - whatever an engine raises is its own
            return reason(error, 0)["failure"]

    def _renew(self, there: set[int]) -> None:
        for engine, future in list(self._renewals.items()):
            if future.done():
                del self._renewals[engine]
                if not (future.result()["content"] or {}).get("cuda_magic"):
                    self._begun.pop(engine, None)  # it knows nothing of us: begin anew
        now = time.monotonic()
        if now - self._renewed_at < LEASE / 3:
            return
        self._renewed_at = now
        for engine in there & set(self._begun):
            future = self._control(engine, "renew")
            if future is not None:
                self._renewals[engine] = future

    def _control(self, engine: int, word: str) -> Any:
        """A word to the sampler on the engine's control channel, which is served while the engine computes."""
        client = self.client
        name = client._engines.get(engine)
        if name is None or client._closed:
            return None
        body = {"target_name": "cuda_magic.panel", "cuda_magic": {"key": self.key, "t": word}}
        return client._send(client._control_stream, "comm_info_request", content=body, ident=name.encode())

    def first(self, seconds: float) -> None:
        """Wait until every engine has said something, at most so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.tick()
            engines = self.state.engines.values()
            if engines and all(one.state != "waits" for one in engines):
                return
            self.socket.poll(50)

    def close(self) -> None:
        """End the samplers, also those of busy engines, and the connection."""
        if not self.client._closed:
            told = []
            for engine in set(self.client.ids):
                if engine in self._jobs:
                    try:
                        self.client.abort(self._jobs[engine][1].msg_ids, targets=engine, block=False)
                    except Exception:  # noqa: BLE001 - the engine ends this very moment
                        pass
                told.append(self._control(engine, "stop"))
            end = time.monotonic() + STOP  # what is not sent yet would be lost with the connection
            for future in told:
                if future is not None:
                    future.wait(max(0.0, end - time.monotonic()))
        self.socket.close()
        self.cluster.close()
