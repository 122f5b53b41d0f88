"""Where a restart in place cannot work: each case is a row, tried before anything is changed."""

from __future__ import annotations

import atexit
import os
import posix
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

from ..errors import Refused
from .resume import RESUME

__all__ = ["check", "kernel_app", "python_flags"]

_MENU = "Restart from the menu instead, and set the variables in the first cell, before anything imports torch."
_CELL = "Call it in a cell of its own in the notebook."
_SHELL = "Leave it, set the variables (`%cuda_env --export shell` prints them) and start it again."
_TRIAL_SECONDS = 60
_STARTED = "cuda_magic: started"

# Private or undocumented names that the restart uses, as owner and attribute. Seen in ipykernel 6.17.1, 6.29.5, 6.31.0,
# 7.0.1, 7.1.0 and 7.4.0; in a release that lacks one the restart is refused and nothing is tried.
_NEEDED = (
    ("kernel", "_process_children"),
    ("kernel", "_topic"),
    ("kernel", "io_loop"),
    ("kernel", "shell_handlers"),
    ("kernel", "shell_stream"),
    ("app", "cleanup_connection_file"),
    ("app", "close"),
    ("app", "heartbeat"),
    ("shell", "starting_dir"),
    ("shell", "atexit_operations"),
    ("atexit", "_run_exitfuncs"),
    ("subprocess", "_args_from_interpreter_flags"),
)


def kernel_app() -> Any:
    """The ``IPKernelApp`` of this process, or None where there is none."""
    try:
        from ipykernel.kernelapp import IPKernelApp
    except ImportError:
        return None
    return IPKernelApp.instance() if IPKernelApp.initialized() else None


def python_flags() -> list[str]:
    """The interpreter flags of this process (``-X dev``, ``-W ignore``), as multiprocessing passes them on."""
    return list(subprocess._args_from_interpreter_flags())  # type: ignore[attr-defined]


def check(shell: Any) -> None:
    """Raise `Refused` if this kernel cannot be replaced in place.

    The last row starts a Python in the new environment, which takes 0.2 to 0.3 s.

    Raises
    ------
    Refused
        With the reason, and with what to do instead.
    """
    for row in _ROWS:
        reason = row(shell)
        if reason:
            raise Refused(f"The kernel is not restarted: {reason}")


def _platform(shell: Any) -> str | None:
    if sys.platform == "linux":
        return None
    return f"a process can be replaced in place only on Linux, and this is {sys.platform}. {_MENU}"


def _own_kernel(shell: Any) -> str | None:
    kernel, app = getattr(shell, "kernel", None), kernel_app()
    if kernel is None:
        return f"this is IPython in a terminal, not a Jupyter kernel. {_SHELL}"
    if app is None or getattr(app, "kernel", None) is not kernel:
        return f"this kernel does not have its process to itself (in-process kernel or parallel engine). {_SHELL}"
    return None


def _names(shell: Any) -> str | None:
    owners = {"kernel": shell.kernel, "app": kernel_app(), "shell": shell, "atexit": atexit, "subprocess": subprocess}
    missing = [f"{owner}.{name}" for owner, name in _NEEDED if not hasattr(owners[owner], name)]
    if not missing:
        return None
    return f"ipykernel {version('ipykernel')} has no {', '.join(missing)}, which the restart needs. {_MENU}"


def _launched(shell: Any) -> str | None:
    """The same command line must lead to the same connection: only a file named there does."""
    name = Path(kernel_app().connection_file).name
    if sys.executable and any(Path(word.split("=", 1)[-1]).name == name for word in sys.orig_argv):
        return None
    return f"this kernel was embedded or started by hand, so a new one would open another connection. {_SHELL}"


def _forked(shell: Any) -> str | None:
    if kernel_app().heartbeat.is_alive():
        return None
    return f"this is a forked copy of the kernel (its threads are not here). {_CELL}"


def _from_a_cell(shell: Any) -> str | None:
    """Called by the code of the cell that runs: no thread, subshell, callback, task or silent request."""
    if threading.current_thread() is not threading.main_thread():
        return f"it was called from the thread {threading.current_thread().name!r}. {_CELL}"
    parent = shell.kernel.get_parent("shell") or {}
    header = parent.get("header") or {}
    if header.get("msg_type") != "execute_request" or not _below_run_cell():
        return f"it was called from a callback or a background task. {_CELL}"
    if header.get("subshell_id") is not None:
        return f"it was called from a subshell. {_CELL}"
    return None


def _below_run_cell() -> bool:
    from IPython.core.interactiveshell import InteractiveShell

    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not InteractiveShell.run_cell_async.__code__:
        frame = frame.f_back
    return frame is not None


def _descriptors(pid: int | str) -> set[str]:
    """Sockets that the process `pid` holds, as the kernel names them: ``socket:[12345]``."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:  # closed in the meantime
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


def _sockets_elsewhere(shell: Any) -> str | None:
    """A forked process that the restart does not end would keep the ports, and the new kernel could not bind them."""
    ours, group = _descriptors("self"), os.getpgid(0)
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        try:
            shared = os.getpgid(int(process.name)) != group and _descriptors(process.name) & ours
        except OSError:  # of another user, or gone
            continue
        if shared:
            return (
                f"process {process.name} was forked from this kernel into a session of its own and holds its sockets. "
                "End it first, or restart from the menu."
            )
    return None


def _starts(shell: Any) -> str | None:
    cwd = shell.starting_dir if Path(shell.starting_dir).is_dir() else "/"
    said = _trial(f"import os; os.chdir({cwd!r}); import ipykernel.kernelapp, {RESUME}; print({_STARTED!r})")
    if said == _STARTED:
        return None
    return f"Python does not start in this environment ({said}). `%cuda_env --undo` takes the last change back."


def _trial(code: str) -> str:
    """The last line that a Python in this environment writes for `code`.

    Not through subprocess or os: debugpy patches those, and its child waits for a debugger (seen with ipykernel 7.4).
    """
    fd = os.memfd_create("cuda_magic")
    streams = (
        (posix.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (posix.POSIX_SPAWN_DUP2, fd, 1),
        (posix.POSIX_SPAWN_DUP2, fd, 2),
    )
    with os.fdopen(fd, "rb") as output:
        try:
            command = [sys.executable, *python_flags(), "-c", code]
            child = posix.posix_spawn(sys.executable, command, os.environ, file_actions=streams)
        except OSError as error:
            return str(error)
        ended, end = False, time.monotonic() + _TRIAL_SECONDS
        try:
            while not ended and time.monotonic() < end:
                time.sleep(0.01)
                ended = os.waitpid(child, os.WNOHANG)[0] == child
        except ChildProcessError:  # SIGCHLD is ignored: the system has taken the exit code
            ended = True
        finally:  # also after an interrupt
            if not ended:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        output.seek(0)
        lines = output.read().decode(errors="replace").strip().splitlines()
    if not ended:
        return f"no answer in {_TRIAL_SECONDS} s"
    return lines[-1] if lines else "it said nothing"


_ROWS: tuple[Callable[[Any], str | None], ...] = (
    _platform,
    _own_kernel,
    _names,
    _launched,
    _forked,
    _from_a_cell,
    _sockets_elsewhere,
    _starts,
)
