"""``%cuda_env --restart``, the new process: the reply of the cell that asked, and the requests behind it.

Loaded by ``--ext=cuda_magic.kernel.resume`` after the ports are bound and before the kernel takes its first request.
It loads nothing else of cuda_magic, and says what the old process left to say.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from zmq import NOBLOCK, ROUTER_MANDATORY, Frame, ZMQError  # type: ignore[attr-defined]

__all__ = ["RESUME", "STATE_FD", "in_shell_thread", "load_ipython_extension"]

carried: list[str] = []
"""Variables that the old process set; `cuda_magic.environment.change` lists them."""

RESUME = "cuda_magic.kernel.resume"
"""This module, as the new process loads it."""

STATE_FD = "CUDA_MAGIC_RESUME_FD"
"""Names the descriptor from which the new process reads what the old one left undone."""

_CLIENT_SECONDS = 10.0  # a client that is still there connects again within 0.1 to 0.5 s
_SUBSCRIBE_SECONDS = 0.25  # subscriptions come back on a clock of their own, which nobody here sees
_AGAIN_SECONDS = 0.75


def load_ipython_extension(shell: Any) -> None:
    """Take over what the old process left (IPython calls this); without a state there is nothing to do."""
    from tornado.ioloop import IOLoop

    own = f"--ext={RESUME}"
    sys.argv[:] = [word for word in sys.argv if word != own]
    descriptor = os.environ.pop(STATE_FD, None)
    if descriptor is None:
        return
    kernel = shell.kernel
    with os.fdopen(int(descriptor), "rb") as file:
        state = kernel.session.unpack(file.read())
    carried[:] = state.get("set", ())
    IOLoop.current().call_later(0, _Resume(kernel, state).run)


class _Resume:
    """From the first turn of the new kernel's loop to the first request that it takes from the socket."""

    def __init__(self, kernel: Any, state: dict[str, Any]) -> None:
        self.kernel = kernel
        self.state = state
        self.stream = kernel.shell_stream
        self.callback: Callable[..., Any] | None = None
        self.options: dict[str, Any] = {}
        # Requests that come now stay in the socket until those before them are handed over.
        self.stream.on_recv = self._later

    def _later(self, callback: Callable[..., Any], **options: Any) -> None:
        """In place of the stream's ``on_recv``: keep what the kernel asks for when it starts."""
        self.callback, self.options = callback, options

    async def run(self) -> None:
        """Reply, say idle, hand over."""
        end = time.monotonic() + _CLIENT_SECONDS
        reply = self._reply()
        while not await in_shell_thread(self.kernel, self._deliver, reply) and time.monotonic() < end:
            await asyncio.sleep(0.02)
        await asyncio.sleep(_SUBSCRIBE_SECONDS)
        self._say(self.state.get("line", ""))
        self._idle()
        count = self.kernel.execution_count
        await in_shell_thread(self.kernel, self._hand_over)
        await asyncio.sleep(_AGAIN_SECONDS)
        if self.kernel.execution_count == count:  # for a client whose subscription came late
            self._idle()

    def _reply(self) -> list[bytes]:
        session, reply = self.kernel.session, self.state["reply"]
        message = session.msg("execute_reply", reply["content"], self.state["parent"], metadata=reply["metadata"])
        return list(session.serialize(message, _frames(reply["ident"])))

    def _idle(self) -> None:
        kernel = self.kernel
        content = {"execution_state": "idle"}
        kernel.session.send(kernel.iopub_socket, "status", content, self.state["parent"], kernel._topic("status"))

    def _say(self, text: str) -> None:
        if text:
            kernel, content = self.kernel, {"name": "stdout", "text": text}
            kernel.session.send(
                kernel.iopub_socket, "stream", content, self.state["parent"], kernel._topic("stream.stdout")
            )

    def _deliver(self, frames: list[bytes]) -> bool:
        """Send the reply if the client is there: a socket with ROUTER_MANDATORY tells, others drop it silently."""
        socket = self.stream.socket
        socket.setsockopt(ROUTER_MANDATORY, 1)
        try:
            socket.send_multipart(frames, NOBLOCK)
        except ZMQError:
            return False
        finally:
            socket.setsockopt(ROUTER_MANDATORY, 0)
        return True

    def _hand_over(self) -> None:
        """Give the collected requests to the kernel's own callback, as if they came in; then let the socket speak."""
        del self.stream.on_recv
        if self.callback is None:
            return
        session = self.kernel.session
        collected = [session.serialize(message, _frames(ident)) for ident, message in self.state["queue"]]
        for frames in [*collected, *map(_frames, self.state["raw"])]:
            called = self.callback([Frame(part) for part in frames])
            if inspect.isawaitable(called):
                task = asyncio.ensure_future(called)
                _tasks.add(task)
                task.add_done_callback(_tasks.discard)
        self.stream.on_recv(self.callback, **self.options)


async def in_shell_thread(kernel: Any, step: Callable[..., Any], *args: Any) -> Any:
    """`step(*args)` where the shell socket lives: from ipykernel 7 on, that is a thread of its own."""
    thread = getattr(kernel, "shell_channel_thread", None)
    if thread is None:
        return step(*args)

    async def there() -> Any:
        return step(*args)

    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), thread.io_loop.asyncio_loop))


_tasks: set[asyncio.Future[Any]] = set()
"""The loop holds tasks weakly."""


def _frames(parts: list[str]) -> list[bytes]:
    return [part.encode("latin1") for part in parts]
