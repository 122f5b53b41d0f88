"""What other libraries in this process hold on the card and give back when asked."""

from __future__ import annotations

import sys
from typing import Any

from . import safety

__all__ = ["clear"]


def clear(torch: Any) -> list[str]:
    """Clear cuBLAS workspaces, cuFFT plans and CuPy's pools; the names of what was cleared.

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
    cupy = sys.modules.get("cupy")
    if cupy is not None and hasattr(cupy, "get_default_memory_pool"):
        pool = cupy.get_default_memory_pool()
        if pool.total_bytes() > pool.used_bytes():
            pool.free_all_blocks()
            done.append("CuPy's pool")
        cupy.get_default_pinned_memory_pool().free_all_blocks()
    return done
