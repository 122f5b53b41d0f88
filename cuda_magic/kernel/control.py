"""Hear a page on the kernel's control channel, which is served while a cell runs.

A message of a widget waits on the shell channel until the running cell ends. A page of JupyterLab or Notebook 7 can
also reach the control channel. The message type is ``comm_info_request`` with a target of ours: every kernel knows it,
and the server neither shows it as activity nor counts it as the kernel's last activity (jupyter_server,
``untracked_message_types``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["TARGET", "deafen", "listen"]

TARGET = "cuda_magic.panel"
"""``target_name`` of our requests, and the key of their body is ``cuda_magic``."""

Hear = Callable[[dict[str, Any]], "dict[str, Any] | None"]
_installed: tuple[Any, Any, Any] | None = None
"""(kernel, the handler before ours, ours)."""


def listen(shell: Any, hear: Hear) -> bool:
    """Call `hear` with the body of each request of ours; what it gives goes back to the page.

    Parameters
    ----------
    shell
        IPython's shell.
    hear
        Runs on the control thread, which also serves interrupts: it takes notes and returns at once. None says that
        the sender is not known here.

    Returns
    -------
    bool
        False where the kernel has no control thread (ipykernel before 6, or none at all).
    """
    global _installed
    deafen()
    kernel = getattr(shell, "kernel", None)
    handlers = getattr(kernel, "control_handlers", None)
    before = handlers.get("comm_info_request") if isinstance(handlers, dict) else None
    if handlers is None or before is None or getattr(kernel, "control_thread", None) is None:
        return False

    async def handler(stream: Any, ident: Any, parent: dict[str, Any]) -> Any:
        content = parent.get("content") or {}
        if content.get("target_name") != TARGET:
            answer = before(stream, ident, parent)
            return await answer if inspect.isawaitable(answer) else answer
        try:
            heard = hear(dict(content.get("cuda_magic") or {}))
        except Exception:  # noqa: BLE001 - a page may say anything; the control thread must go on
            heard = None
        reply = {"comms": {}, "status": "ok", "cuda_magic": heard}
        assert kernel is not None
        return kernel.session.send(stream, "comm_info_reply", reply, parent, ident)

    handlers["comm_info_request"] = handler
    _installed = kernel, before, handler
    return True


def deafen() -> None:
    """Undo `listen`."""
    global _installed
    if _installed is None:
        return
    kernel, before, ours = _installed
    if kernel.control_handlers.get("comm_info_request") is ours:
        kernel.control_handlers["comm_info_request"] = before
    _installed = None
