"""The state of this process, asked without starting CUDA."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from ..environment.state import Moment, device_count, now
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
    return None
