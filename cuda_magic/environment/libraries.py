"""The variables of containers, MPS, CuPy, RMM and Numba, as data (see variable.py for the columns)."""

from __future__ import annotations

import re

from .variable import Variable, one_of, real

__all__ = ["LIBRARIES"]


def _cupy_limit(value: str) -> str:
    legal = re.fullmatch(r"[0-9]+(\.[0-9]+)?%|[0-9]+", value)
    return "" if legal else "it takes bytes (51539607552) or percent (90%)"


LIBRARIES: tuple[Variable, ...] = (
    Variable(
        "NVIDIA_VISIBLE_DEVICES",
        "Which GPUs a container is given.",
        "container",
        legal="indices, UUIDs, all, none or void",
        late="start the container anew",
        documented=True,
        source="NVIDIA container toolkit",
    ),
    Variable(
        "NVIDIA_DRIVER_CAPABILITIES",
        "What of the driver a container is given; CUDA needs compute, NVML needs utility.",
        "container",
        legal="compute, utility, graphics, video, display, compat32 with commas, or all",
        late="start the container anew",
        documented=True,
        source="NVIDIA container toolkit",
    ),
    Variable(
        "CUDA_MPS_PIPE_DIRECTORY",
        "Where a client finds the MPS server.",
        "cuinit",
        legal="a folder",
        default="/tmp/nvidia-mps",
        documented=True,
        source="CUDA MPS documentation",
    ),
    Variable(
        "CUDA_MPS_LOG_DIRECTORY",
        "Where the MPS server writes its log.",
        "cuinit",
        legal="a folder",
        documented=True,
        source="CUDA MPS documentation",
    ),
    Variable(
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "Share of the card that an MPS client may use.",
        "cuinit",
        real(0, 100),
        legal="percent",
        documented=True,
        source="CUDA MPS documentation",
    ),
    Variable(
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        "Device memory that an MPS client may use.",
        "cuinit",
        legal="for example 0=2G",
        documented=True,
        source="CUDA MPS documentation",
    ),
    Variable(
        "CUPY_GPU_MEMORY_LIMIT",
        "How much CuPy's pool may hold.",
        "use",
        _cupy_limit,
        values=("50%", "90%"),
        legal="bytes or percent (90%)",
        late="cupy.get_default_memory_pool().set_limit(...)",
        myth="48GB is not legal: CuPy takes bytes or percent.",
        first_use="CuPy's first allocation",
        refuses=True,
        source="cupy/cuda/memory.pyx, _parse_limit_string; measured: anything else raises ValueError",
    ),
    Variable(
        "CUPY_CACHE_DIR",
        "Where CuPy keeps its kernels.",
        "use",
        legal="a folder",
        first_use="CuPy's first compilation",
        documented=True,
        source="docs.cupy.dev",
    ),
    Variable(
        "RMM_LOG_FILE",
        "Where RMM writes its log.",
        "use",
        legal="a path",
        first_use="the start of RMM's log",
        documented=True,
        source="docs.rapids.ai",
    ),
    Variable(
        "NUMBA_CUDA_DRIVER",
        "Path of the CUDA driver library for Numba.",
        "use",
        legal="see Numba's documentation",
        first_use="import numba.cuda",
        documented=True,
        source="numba documentation",
    ),
    Variable(
        "NUMBA_CUDA_MEMORY_MANAGER",
        "Which module manages memory for Numba.",
        "use",
        legal="see Numba's documentation",
        first_use="import numba.cuda",
        documented=True,
        source="numba documentation",
    ),
    Variable(
        "CUPY_CACHE_IN_MEMORY",
        "1 keeps CuPy's compiled kernels in memory and not in a folder.",
        "use",
        one_of("0", "1"),
        legal="0 or 1",
        first_use="the first use of CuPy",
        documented=True,
        source="CuPy documentation",
    ),
    Variable(
        "CUPY_ACCELERATORS",
        "Which libraries CuPy uses to go faster.",
        "use",
        legal="names with commas, for example cub,cutensor",
        first_use="the first use of CuPy",
        documented=True,
        source="CuPy documentation",
    ),
    Variable(
        "CUPY_TF32",
        "1 lets CuPy's libraries compute 32-bit numbers in TF32.",
        "use",
        one_of("0", "1"),
        legal="0 or 1",
        first_use="the first use of CuPy",
        documented=True,
        source="CuPy documentation",
    ),
    Variable(
        "NUMBA_ENABLE_CUDASIM",
        "1 runs Numba's CUDA kernels in a simulator.",
        "use",
        one_of("0", "1"),
        legal="0 or 1",
        first_use="import numba.cuda",
        documented=True,
        source="numba documentation",
    ),
)
