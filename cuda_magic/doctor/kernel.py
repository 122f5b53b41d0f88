"""The state of this process, asked without starting CUDA."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from ..devices.driver import device_count
from ..environment.allocator_grammar import read
from ..environment.release import installed
from ..environment.state import Moment, now
from ..environment.verdict import ALLOCATOR_NAMES
from ..memory.torch.state import in_bad_fork
from .facts import Allocator, Kernel

__all__ = ["allocator_verdict", "kernel_state"]


def kernel_state() -> Kernel:
    """What is loaded here, and whether CUDA was started."""
    return Kernel(
        torch_imported="torch" in sys.modules,
        cuda_started=now() >= Moment.STARTED,
        device_count=device_count(),
        bad_fork=in_bad_fork(),
    )


def allocator_verdict(env: Mapping[str, str]) -> Allocator | None:
    """What is wrong with the allocator configuration that torch would read; None where it is fine or not set."""
    # torch takes the first of the names that is set, even where it is empty; 2.9 knows the first only
    torch = installed()
    names = ALLOCATOR_NAMES[: 1 if torch.release < (2, 10) else 3]
    name = next((one for one in names if one in env), None)
    if name is None or not env[name]:
        return None
    reading = read(env[name], torch.release, cuda=not torch.cpu_only)
    if not reading.refused and not reading.notes:
        return None
    return Allocator(name, env[name], reading.refused or " ".join(reading.notes), refused=bool(reading.refused))
