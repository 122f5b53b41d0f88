"""What other libraries in this process hold on the card and give back when asked."""

from __future__ import annotations

from typing import Any

from ..pools import release
from . import safety

__all__ = ["clear"]


def clear(torch: Any) -> list[str]:
    """Clear cuBLAS workspaces, cuFFT plans and other libraries' pools; the names of what was cleared.

    cuBLAS workspaces stay while a CUDA graph lives: its kernels were captured with their addresses.
    cuDNN has no call for it. Freed on an H200 by the first: 32 MiB a handle and stream.
    """
    done = []
    workspaces = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if workspaces is not None and not safety.graphs_alive(torch):
        workspaces()
        done.append("cuBLAS workspaces")
    plans = torch.backends.cuda.cufft_plan_cache
    if any(plans[i].size for i in range(torch.cuda.device_count()) if torch._C._cuda_hasPrimaryContext(i)):
        for i in range(torch.cuda.device_count()):
            if torch._C._cuda_hasPrimaryContext(i):
                plans[i].clear()
        done.append("cuFFT plans")
    return done + release()
