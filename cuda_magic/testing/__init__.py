"""A GPU for tutorials and tests: the real card where CUDA works, else a practice GPU that needs no hardware."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..machine import use

if TYPE_CHECKING:
    from .practice import PracticeGpu
    from .real import RealGpu

__all__ = ["gpu"]


def gpu(devices: str | Sequence[str | int] = "24 GiB", force: bool = False) -> PracticeGpu | RealGpu:
    """The GPU to work on, and the machine that the magics look at from now on.

    Parameters
    ----------
    devices
        The size of each practice card; of one alone, or a list of them. A real machine is used if it has at least as
        many cards.
    force
        Always the practice GPU; the environment variable ``CUDA_MAGIC_PRACTICE=1`` does the same.
        ``CUDA_MAGIC_PRACTICE_HOST`` names the host that it plays, for a practice cluster on one machine.

    Returns
    -------
    PracticeGpu or RealGpu
        With ``empty``, ``full``, ``fill``, ``sum``, ``rand``, ``empty_cache``, ``limit`` and ``other_process``.
    """
    from .real import RealGpu, real_gpus

    devices = [devices] if isinstance(devices, str) else devices
    if not force and os.environ.get("CUDA_MAGIC_PRACTICE") != "1" and real_gpus() >= len(devices):
        use(None)
        return RealGpu()
    from .practice import PracticeGpu

    made = PracticeGpu(devices, os.environ.get("CUDA_MAGIC_PRACTICE_HOST", ""))
    use(made.machine)
    return made
