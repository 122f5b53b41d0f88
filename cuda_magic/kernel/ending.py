"""What Python's own exit does and ``execve`` skips: threads end, names go, files are written out and closed."""

from __future__ import annotations

import asyncio
import gc
import io
import sys
import sysconfig
import threading
import time
from pathlib import Path
from typing import Any

__all__ = ["close_files", "drop_names", "end_threads"]

_OURS = ("ipykernel", "IPython", "zmq", "tornado", "debugpy", "cuda_magic", "socket", "asyncio")
"""Packages whose files and streams are needed until the end."""
_NEEDED = (*_OURS, "traitlets", "jupyter_client", "jupyter_core", "comm", "psutil", "decorator", "packaging", "pydevd")
"""Packages whose names are needed until the end, wherever they are installed (a working copy of ipykernel, say)."""


async def end_threads(seconds: float) -> list[str]:
    """Wait for the threads that Python waits for at its exit (all but daemons); the names of those that do not end.

    The loop goes on meanwhile: a thread may wait for something that runs in it.
    """
    _stop_pools()
    end = time.monotonic() + seconds
    while True:
        left = [t for t in threading.enumerate() if not t.daemon and t is not threading.current_thread()]
        left = [t for t in left if t is not threading.main_thread()]
        if not left or time.monotonic() > end:
            return [t.name for t in left]
        await asyncio.sleep(0.02)


def _stop_pools() -> None:
    """Tell idle workers of ThreadPoolExecutor to end, as their own exit handler does before it waits without limit."""
    pools = sys.modules.get("concurrent.futures.thread")
    try:
        with pools._global_shutdown_lock:  # type: ignore[union-attr]
            pools._shutdown = True  # type: ignore[union-attr]
        for queue in list(pools._threads_queues.values()):  # type: ignore[union-attr]
            queue.put(None)
    except AttributeError:  # no pool was used, or another release of Python
        pass


def drop_names(shell: Any) -> None:
    """Let go of the user's names, results and modules: ``__del__``, ``finally`` of generators and finalizers run."""
    threading.excepthook = lambda _: None  # daemons that still run lose their names, as at Python's exit
    steps = (
        lambda: shell.reset(new_session=False),
        lambda: [vars(sys).pop(name, None) for name in ("last_exc", "last_value", "last_type", "last_traceback")],
        lambda: setattr(shell, "last_execution_result", None),
        lambda: setattr(shell.InteractiveTB, "tb", None),
        _drop_modules,
        gc.collect,
        gc.collect,
    )
    for step in steps:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - user code; the restart goes on
            print(f"cuda_magic: at exit: {error!r}", file=sys.stderr)  # noqa: T201


def _drop_modules() -> None:
    """The names of modules that lie neither in Python's library nor among the installed packages."""
    library = [Path(p).resolve() for p in {*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix}]
    own = Path(__file__).resolve().parents[1]
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        name = str(getattr(module, "__name__", ""))
        if not isinstance(file, str) or name == "__main__" or name.partition(".")[0] in _NEEDED:
            continue
        place = Path(file).resolve()
        if own in place.parents or any(p in place.parents for p in library):
            continue
        held = getattr(module, "__dict__", None)
        if type(held) is dict:
            held.update(dict.fromkeys([n for n in held if not n.startswith("__")]))


def close_files() -> None:
    """Write out and close every file that is still open for writing, the outermost layer first (gzip, then text)."""
    found = [one for one in gc.get_objects() if issubclass(type(one), io.IOBase) and _is_users(one)]
    layers = (io.RawIOBase, io.BufferedIOBase, io.TextIOBase)

    def layer(one: Any) -> int:
        native = type(one).__module__ in ("_io", "io")
        return 3 if not native else next((i for i, kind in enumerate(layers) if isinstance(one, kind)), 0)

    for one in sorted(found, key=layer, reverse=True):
        try:
            one.close()
        except Exception as error:  # noqa: BLE001 - a full disk, a file of another thread
            print(f"cuda_magic: at exit: {error!r}", file=sys.stderr)  # noqa: T201


def _is_users(one: Any) -> bool:
    try:
        if type(one).__module__.partition(".")[0] in _OURS or one.closed or not one.writable():
            return False
        if isinstance(one, (io.BytesIO, io.StringIO)):
            return False
        return int(one.fileno()) > 2
    except Exception:  # noqa: BLE001 - no descriptor (a file inside an archive): closed with what it stands in
        return type(one).__module__ in ("gzip", "bz2", "lzma", "zipfile", "tarfile")
