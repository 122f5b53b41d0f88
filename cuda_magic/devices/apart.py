"""The command line of a Python process of ours."""

from __future__ import annotations

import errno
import os
import sys

__all__ = ["command"]


def command(*words: str) -> list[str]:
    """``python WORDS``, started by a shell where a debugger holds this process.

    debugpy changes the command line of every Python that its process starts, and the child then waits for the debugger
    (seen with ipykernel 7.4); what a shell starts it leaves alone.

    Raises
    ------
    OSError
        Where this Python does not know its own program.
    """
    if not sys.executable or getattr(sys, "frozen", False):  # a frozen program would start itself
        raise OSError("this Python does not know its own program (sys.executable)")
    line = [sys.executable, *words]
    if os.name != "posix" or "pydevd" not in sys.modules:
        return line
    if not os.access(sys.executable, os.X_OK):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), sys.executable)
    return ["/bin/sh", "-c", 'exec "$0" "$@"', *line]
