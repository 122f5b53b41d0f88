"""``%cuda_env --restart``, the old process: the kernel replaced in place, with the environment as it is now.

The cell that asks does not get its reply here. The requests behind it are collected, the process cleans up and
replaces itself (`replace`); the new process has the same pid, command line and connection, sends that reply, and runs
what was collected (`resume`). A front end sees one busy cell that takes about a second.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

from .ending import close_files, drop_names, end_threads
from .refusals import check, kernel_app
from .replace import Replacement
from .resume import in_shell_thread

__all__ = ["restart"]

_QUIET_SECONDS = 0.15  # no request for so long: a front end that runs all cells has sent them
_QUIET_ROUNDS = 4
_CHILDREN_SECONDS = 2.5  # a child that hangs the exit handlers is ended then
_THREAD_SECONDS = 5.0  # so long the server waits too, on a restart from the menu, before it kills the kernel
_HANG_SECONDS = 5.0  # whatever else hangs, the new process starts then
_CLOSE_SECONDS = 1.5  # closing joins subshells, which may be busy

_arranged: _Restart | None = None


def restart(shell: Any, say: bool = False) -> None:
    """Arrange that this kernel is replaced in place when the cell that calls this has ended.

    The rest of the cell still runs. A cell that fails or is interrupted cancels the restart. Asking twice in one cell
    is asking once.

    Parameters
    ----------
    shell
        The shell of the kernel, as ``get_ipython()`` gives it.
    say
        Let the new process say in a line what it is, and what was lost; %cuda_env --restart does.

    Raises
    ------
    Refused
        Where it cannot work (see `refusals`); nothing has been changed then.
    """
    global _arranged
    if _arranged is not None and _arranged.waits_for(shell):
        return
    check(shell)
    _arranged = _Restart(shell, say)


class _Restart:
    """One restart: from the call in the cell to the start of the new program."""

    def __init__(self, shell: Any, say: bool) -> None:
        self.shell = shell
        self.say = say
        self.kernel = shell.kernel
        self.replacement = Replacement(shell, kernel_app())
        self.parent = self.kernel.get_parent("shell")
        self.cell = self.parent["header"]["msg_id"]
        self.held = {self.cell}  # requests whose statuses the new process sends
        self.waiting = True
        self.reply: dict[str, Any] | None = None
        self.queue: list[list[Any]] = []
        session = self.kernel.session
        self.send: Callable[..., Any] = session.send
        session.send = self._send

    def waits_for(self, shell: Any) -> bool:
        """Whether it is arranged for the cell that runs now."""
        return self.waiting and shell.kernel.get_parent("shell") is self.parent

    def _send(
        self,
        stream: Any,
        kind: Any,
        content: Any = None,
        parent: Any = None,
        ident: Any = None,
        *args: Any,
        **more: Any,
    ) -> Any:
        """In place of ``session.send``: keeps this cell's reply, and the statuses of all that waits behind it."""
        request = ((parent or {}).get("header") or {}).get("msg_id")
        if kind == "execute_reply" and request == self.cell and self.waiting:
            self.waiting = False
            if content.get("status") != "ok":
                if self.kernel.session.send == self._send:
                    self.kernel.session.send = self.send
                print("cuda_magic: the cell failed, so the kernel is not restarted.", file=sys.stderr)  # noqa: T201
            else:
                self.reply = {"content": content, "metadata": more.get("metadata"), "ident": _text(ident)}
                self.kernel.shell_handlers.update(dict.fromkeys(self.kernel.shell_handlers, self._collect))
                self.kernel.io_loop.add_callback(self._finish)
                return {"content": content}
        if kind == "status" and self.reply is not None:
            # The very message that the shell handles now, and not one of the control channel.
            if content.get("execution_state") == "busy" and parent is self.kernel.get_parent("shell"):
                self.held.add(request)
            if request in self.held:
                return {}
        return self.send(stream, kind, content, parent, ident, *args, **more)

    async def _collect(self, stream: Any, ident: Any, message: dict[str, Any]) -> None:
        """In place of every shell handler. Comm messages are for objects that end with this process."""
        if not message["header"]["msg_type"].startswith("comm_"):
            self.queue.append([_text(ident), _plain(message)])

    async def _finish(self) -> None:
        """Clean up, wait until the requests behind the cell are here, and start the new program."""
        new = self.replacement
        raw: list[list[str]] = []
        names = _set_here()
        state: dict[str, Any] = {
            "reply": self.reply,
            "parent": _plain(self.parent),
            "queue": self.queue,
            "raw": raw,
            "set": names,
        }
        begun = time.monotonic()
        new.quiet_signals()
        left = await end_threads(_THREAD_SECONDS)
        state["line"] = _line(names, left) if self.say else ""
        waited = time.monotonic() - begun
        new.after(_CHILDREN_SECONDS, new.end_children)
        new.after(_HANG_SECONDS, new.execute, state)
        # The handlers first: multiprocessing's own end its pools, which would fork again if only their workers died.
        new.run_exit_handlers()
        new.end_children()
        drop_names(self.shell)
        close_files()
        seen = -1
        for _ in range(_QUIET_ROUNDS if waited < 1 else 1):
            if len(self.queue) == seen:
                break
            seen = len(self.queue)
            await asyncio.sleep(_QUIET_SECONDS)

        def close_shell() -> None:
            """From here on a request waits at its sender, which connects again to the new process."""
            stream = self.kernel.shell_stream
            stream.stop_on_recv()
            while stream.socket.poll(0):
                raw.append(_text(stream.socket.recv_multipart()))
            stream.close(linger=0)

        await in_shell_thread(self.kernel, close_shell)
        await asyncio.sleep(0.1)  # what that thread had handed over still comes to _collect
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        new.after(_CLOSE_SECONDS, new.execute, state)
        try:
            new.app.close()  # sends what is still to be sent
        finally:
            new.execute(state)


def _set_here() -> list[str]:
    """The variables that %cuda_env set in this process, which the next one lists too."""
    change = sys.modules.get("cuda_magic.environment.change")
    return change.ours() if change is not None else []


def _line(names: list[str], threads: list[str]) -> str:
    """What the new process says of itself."""
    lost = (
        f" Ended in the middle: thread {', '.join(threads)}, which did not end in {_THREAD_SECONDS:g} s."
        if threads
        else ""
    )
    held = f" with {', '.join(names)} set from its start" if names else " with the environment as it is now"
    return f"cuda_magic: a new process{held}. Variables and imports of the old one are gone.{lost}\n"


def _text(frames: Any) -> list[str]:
    """Frames as text that any packer carries unchanged."""
    return [bytes(frame).decode("latin1") for frame in ([frames] if isinstance(frames, bytes) else frames or [])]


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """`message` without its binary parts, which no request but a comm message has."""
    return {key: part for key, part in message.items() if key != "buffers"}
