"""cuda_magic: an IPython extension for people who use CUDA GPUs from notebooks.

``%load_ext cuda_magic`` registers ``%cuda_env``, ``%%cuda_guard``, ``%gpu_mem`` and ``%cuda_doctor``.
Importing this module imports nothing heavy and starts nothing; what lies below loads when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .doctor.check import check_cuda
    from .errors import CudaMagicError, Missing, Refused, UserError
    from .rescue.script import guard

__version__ = "0.1.0"
__all__ = [
    "CudaMagicError",
    "Missing",
    "Refused",
    "UserError",
    "__version__",
    "check_cuda",
    "guard",
    "load_ipython_extension",
    "unload_ipython_extension",
]

_ROOMS = {
    "check_cuda": "doctor.check",
    "guard": "rescue.script",
    "CudaMagicError": "errors",
    "Missing": "errors",
    "Refused": "errors",
    "UserError": "errors",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'cuda_magic' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_ROOMS[name]}", __name__), name)


def load_ipython_extension(shell: Any) -> None:
    """Register the four magics (IPython calls this for ``%load_ext cuda_magic``)."""
    from .magics import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Leave nothing behind (IPython calls this for ``%unload_ext`` and ``%reload_ext``).

    Raises
    ------
    Refused
        While tensors are on the host for want of room: what to do.
    """
    from .magics import unload
    from .magics.cuda_guard import may_close

    may_close()
    unload(shell)
