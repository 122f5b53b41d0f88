"""Whether another Python thread may use CUDA while tensors are moved: judged by the frames on its stack."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from functools import cache
from pathlib import Path
from types import FrameType

__all__ = ["WATCHED", "using_cuda"]

WATCHED: set[int] = set()
"""Threads whose every op is watched by our own mode: asked from inside backward, the one that waits there is such."""

_OURS = f"{Path(__file__).resolve().parents[2]}{os.sep}"
_CELLS = ("<ipython-input", "<stdin>")
_CUDA = ("torch", "cupy", "jax", "numba", "tensorflow", "warp", "cudf")
_HARMLESS = (
    str(Path("torch", "_inductor", "compile_worker")),  # waits for compilers in other processes
    str(Path("torch", "utils", "data", "_utils")),  # a DataLoader's pinning thread: host memory only
)


def using_cuda() -> str:
    """The name of the first other thread that runs user's code, or code of a library that uses CUDA; else empty.

    A thread that only waits in the standard library, in Jupyter's own code or in ours does not count. Threads without
    a Python frame are not seen.
    """
    here = threading.get_ident()
    names = {t.ident: t.name for t in threading.enumerate()}
    libraries = _libraries(_known())
    for ident, frame in sys._current_frames().items():
        if ident != here and ident not in WATCHED and _counts(frame, libraries):
            return names.get(ident, f"thread {ident}")
    return ""


@cache
def _libraries(there: frozenset[str]) -> tuple[str, ...]:
    """Folders of installed code: where Python says so, and where the notebook's own packages and torch lie.

    A folder given by PYTHONPATH has no name that tells; the packages in it do.
    """
    folders = {p for name in ("stdlib", "platstdlib", "purelib", "platlib") if (p := sysconfig.get_path(name))}
    folders |= {p for p in sys.path if p.endswith(("site-packages", "dist-packages"))}
    return tuple(f"{p}{os.sep}" for p in folders | there)


def _known() -> frozenset[str]:
    files = (getattr(sys.modules.get(name), "__file__", None) for name in ("ipykernel", "IPython", "zmq", "torch"))
    return frozenset(str(Path(file).parents[1]) for file in files if file)


def _counts(frame: FrameType | None, libraries: tuple[str, ...]) -> bool:
    ours = library = False
    while frame is not None:
        code = frame.f_code.co_filename
        if code.startswith(_OURS):
            ours = True
        elif code.startswith("<"):
            if code.startswith(_CELLS):  # others are made by libraries: named tuples, frozen modules
                return True
        elif not code.startswith(libraries):
            return True
        elif not any(part in code for part in _HARMLESS):
            library = library or str(frame.f_globals.get("__name__")).partition(".")[0] in _CUDA
        frame = frame.f_back
    return library and not ours
