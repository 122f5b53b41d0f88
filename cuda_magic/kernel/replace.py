"""Replacing this process by a new one with the same pid: what must be cleaned first, and the ``execve``.

A program started by ``execve`` inherits more than its environment: ignored signals, timers, the signal mask, the
working directory, the CPU affinity and every inheritable descriptor. Descriptors of the NVIDIA driver that stay open
keep the GPU memory of the old program allocated for good (measured on an H200), so all but the standard ones close.
"""

from __future__ import annotations

import atexit
import os
import posix
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import psutil

from .resume import RESUME, STATE_FD

__all__ = ["Replacement"]

_TERM_SECONDS = 1.0
_EXT = f"--ext={RESUME}"


class Replacement:
    """The change from the old process to the new one; each step may be the last one that a hanging process reaches.

    Parameters
    ----------
    shell
        The shell of the kernel.
    app
        The ``IPKernelApp``.
    """

    def __init__(self, shell: Any, app: Any) -> None:
        self.shell = shell
        self.app = app
        self.kernel = shell.kernel
        self._once = threading.Lock()
        # OpenMP and users pin the main thread; the heartbeat's thread still has what the kernel was started with.
        self._affinity = os.sched_getaffinity(app.heartbeat.native_id)

    def quiet_signals(self) -> None:
        """Default handlers (ignored signals and timers outlive ``execve``); an interrupt finds nothing to stop now."""
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            ignored = number in (signal.SIGINT, signal.SIGPIPE)
            signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0)

    def run_exit_handlers(self) -> None:
        """End IPython's history session and run ``atexit``, as a normal exit does.

        Three handlers are left out: the connection file stays, the sockets are closed later, and IPython's own would
        empty the namespace under threads that still run.
        """
        for own in (self.app.cleanup_connection_file, self.app.close, self.shell.atexit_operations):
            atexit.unregister(own)
        steps = (
            lambda: self.shell.history_manager and self.shell.history_manager.end_session(),
            atexit._run_exitfuncs,
        )
        for step in steps:
            try:
                step()
            except BaseException as error:  # noqa: BLE001 (user code; SystemExit too: the restart goes on)
                print(f"cuda_magic: at exit: {error!r}", file=sys.stderr)  # noqa: T201

    def end_children(self, *signals: signal.Signals) -> None:
        """Signal the children in our process group (ipykernel's own rule at shutdown) until none is left."""
        for number in signals or (signal.SIGTERM, signal.SIGKILL):
            children = self.kernel._process_children()
            for child in children:
                try:
                    child.send_signal(number)
                except psutil.Error:
                    pass
            if not children or not psutil.wait_procs(children, _TERM_SECONDS)[1]:
                return

    def after(self, seconds: float, step: Any, *args: Any) -> None:
        """Do `step` in a thread of its own after `seconds`, whatever the main thread hangs on."""
        timer = threading.Timer(seconds, step, args)
        timer.daemon = True
        timer.start()

    def execute(self, state: dict[str, Any]) -> None:
        """Start the new program. Does not return; only the first call acts.

        Parameters
        ----------
        state
            What `resume` needs: ``reply``, ``parent``, ``queue``, ``raw``.
        """
        self._once.acquire()
        self.end_children(signal.SIGKILL)  # a forked child would hold our ports
        self._standard_streams()
        fd = os.memfd_create("cuda_magic")
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(self.kernel.session.pack(state))
        os.lseek(fd, 0, os.SEEK_SET)
        for entry in list(Path("/proc/self/fd").iterdir()):
            try:
                os.set_inheritable(int(entry.name), int(entry.name) in (0, 1, 2, fd))
            except OSError:  # the listing's own descriptor
                pass
        os.chdir(self.shell.starting_dir if Path(self.shell.starting_dir).is_dir() else "/")
        os.sched_setaffinity(0, self._affinity)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        command = [sys.executable, *(word for word in sys.orig_argv[1:] if word != _EXT), _EXT]
        # Not os.execve: debugpy replaces that, to attach to children.
        posix.execve(sys.executable, command, {**os.environ, STATE_FD: str(fd)})

    def _standard_streams(self) -> None:
        """Put the launcher's descriptors 1 and 2 back: ipykernel has pipes of its own there, read by a dying thread."""
        for name, fd in (("stdout", 1), ("stderr", 2)):
            stream = getattr(self.kernel, f"_{name}", None) or getattr(sys, name)
            copy = getattr(stream, "_original_stdstream_copy", None)
            if isinstance(copy, int):
                try:
                    os.dup2(copy, fd)
                except OSError:  # closed by the stream itself, which has put it back
                    pass
