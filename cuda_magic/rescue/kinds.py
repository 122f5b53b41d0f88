"""What an error can be, as a table: kind, how it is recognised, since which release, what may be done, source.

Rows are tried in order; the first that fits decides. Adding a wording touches one row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["KINDS", "ROWS", "STICKY_CODES", "WORKERS", "WORKER_TEXT", "Kind", "Row"]


@dataclass(frozen=True)
class Kind:
    """What may be done about an error. `repeat`: ``ladder``, ``ambiguous`` (only where little is free) or ``never``."""

    id: str
    sentence: str
    repeat: str = "never"
    memory: bool = True
    """Whether the guard has something to report; False: not a matter of memory."""


KINDS = {
    kind.id: kind
    for kind in (
        Kind("gpu-memory", "out of GPU memory", "ladder"),
        Kind("gpu-memory-runtime", "out of GPU memory, outside torch's allocator", "ladder"),
        Kind("context", "the card has no room for CUDA to start in this kernel", "ladder"),
        Kind("other-process", "out of GPU memory, most of which other processes hold", "ladder"),
        Kind("mapping", "out of GPU memory where an expandable segment was to grow", "ladder"),
        Kind("library-handle", "a CUDA library found no GPU memory for its handle or workspace", "ladder"),
        Kind("library-failed", "a CUDA library could not start", "ambiguous"),
        Kind("too-large", "the request is larger than the card"),
        Kind("wrong-size", "the size asked for is a mistake: more than any card has"),
        Kind("host-memory", "the host ran out of memory, not the GPU"),
        Kind("worker", "a worker process ran out of GPU memory, for which this kernel can make no room"),
        Kind("communicator", "NCCL ran out of GPU memory; its communicator is broken"),
        Kind("lost-context", "the CUDA context is lost; the GPU cannot be used until the kernel is restarted"),
        Kind("lost-allocator", "torch's allocator cannot go on after an error inside it until the kernel is restarted"),
        Kind("start-up", "CUDA could not start, which is no matter of GPU memory"),
        Kind("shared-memory", "a kernel needs more shared memory than the card has", memory=False),
    )
}

STICKY_CODES: dict[int, str] = {
    # cudaError_t whose text in CUDA 13's driver_types.h says that the process must be ended, and four that act so
    214: "uncorrectable ECC error",
    220: "uncorrectable NVLink error",
    226: "contained error",
    700: "illegal memory access",
    702: "a kernel took too long",
    709: "the context was destroyed",
    710: "device-side assert",
    714: "hardware stack error",
    715: "illegal instruction",
    716: "misaligned address",
    717: "invalid address space",
    718: "invalid program counter",
    719: "a kernel failed",
    721: "tensor memory leaked",
    810: "the MPS client was ended",
    911: "an external device failed",
    999: "unknown error",
}


WORKERS: tuple[str, ...] = (
    # classes that carry the error of another process: (class:module), or what is chained below it
    "RayTaskError:ray",  # ray/exceptions.py
    "RemoteError:ipyparallel",  # ipyparallel/error.py
    "ProcessRaisedException:torch",  # torch/multiprocessing/spawn.py
    "RemoteTraceback:multiprocessing",  # multiprocessing/pool.py
    "_RemoteTraceback",  # concurrent/futures/process.py; joblib's loky
)
WORKER_TEXT = "in DataLoader worker process"
"""torch/_utils.py: the class is kept, the text tells."""


@dataclass(frozen=True)
class Row:
    """One way to recognise a kind. All that is given must fit: a class's name, its module, the text, a code."""

    kind: str
    text: str = ""
    """Regular expression searched for in the message."""
    classes: tuple[str, ...] = ()
    """Names of a class in the error's ancestry; the module's first part after a colon: ``OutOfMemoryError:torch``."""
    codes: tuple[int, ...] = ()
    """``error_code``, ``code`` or ``status`` of the error."""
    library: str = "torch"
    since: str = ""
    source: str = ""

    @property
    def pattern(self) -> re.Pattern[str] | None:
        return re.compile(self.text) if self.text else None


_ALLOCATOR = "c10/cuda/CUDACachingAllocator.cpp"
_EXCEPTION = "c10/cuda/CUDAException.cpp"
_STICKY_TEXT = (
    r"(?s)(?:(?i:CUDA[ _](?:runtime |driver )?(?:error|failure))|cudaError\w*|Gpu API call).*?"
    r"(?:device-side assert triggered|an illegal memory access was encountered|unspecified launch failure"
    r"|misaligned address|an illegal instruction was encountered|hardware stack error|invalid program counter"
    r"|operation not supported on global/shared address space|the launch timed out and was terminated"
    r"|uncorrectable ECC error encountered|uncorrectable NVLink error)"
    r"|cudaErrorIllegalAddress|cudaErrorAssert\b|cudaErrorLaunchFailure"
    r"|CUDA_ERROR_(?:ILLEGAL_ADDRESS|ASSERT|LAUNCH_FAILED|LAUNCH_TIMEOUT|ILLEGAL_INSTRUCTION|MISALIGNED_ADDRESS"
    r"|INVALID_ADDRESS_SPACE|INVALID_PC|HARDWARE_STACK_ERROR|ECC_UNCORRECTABLE|NVLINK_UNCORRECTABLE)"
)
_OTHERS = (
    # how programs that call the driver or the runtime themselves report its error 2
    r"(?i)\bcu(?:da)?_?(?:malloc|mem(?:alloc|create|map))\w*[^\n]{0,100}out of memory"
    r"|\bcuda:? (?:(?:runtime |driver )?(?:error|failure) ?(?:\(?2\)?)? ?: ?)?out of memory"
    r"|\[cuda\] out of memory|gpu api call\) out of memory|cuda failed with error 2 out of memory"
)

ROWS: tuple[Row, ...] = (
    # -- never repeated: the context is gone, whatever else the message says
    Row("lost-context", codes=tuple(STICKY_CODES), since="2.8", source=f"{_EXCEPTION}; CUDA 13 driver_types.h"),
    Row("lost-context", text=_STICKY_TEXT, since="1.13", source=_EXCEPTION),
    # -- not GPU memory, although the words are near
    Row("shared-memory", classes=("OutOfResources:triton",), library="triton", source="triton/runtime/errors.py"),
    Row(
        "shared-memory",
        text=r"out of resource: ",  # inductor says it as an OutOfMemoryError
        library="triton",
        source="triton/runtime/errors.py; torch/_inductor/runtime/triton_heuristics.py",
    ),
    Row(
        "start-up",
        text=r"Unexpected error from cudaGetDeviceCount|Found no NVIDIA driver|driver on your system is too old"
        r"|CUDA driver initialization failed|No CUDA GPUs are available|CUDA unknown error"
        r"|cudaGetDeviceCount\(\) returned cudaErrorNotSupported"
        r"|Torch not compiled with CUDA enabled|CUDA-capable device.{1,12}busy or unavailable",
        since="1.13",
        source="c10/cuda/CUDAFunctions.cpp; detectron2#2580",
    ),
    Row(
        "host-memory",
        text=r"DefaultCPUAllocator|can't allocate memory|could not allocate [0-9]+ bytes.*(?:host|CPU)"
        r"|unable to mmap [0-9]+ bytes.*Cannot allocate memory|HOST_ALLOCATION_FAILED",
        since="1.13",
        source="c10/core/impl/alloc_cpu.cpp; safetensors#528; cudnn_graph.h",
    ),
    Row(
        "host-memory",
        text=r"(?s)in pin memory thread for device.*CUDA error: out of memory",
        since="1.13",
        source="torch/utils/data/_utils/pin_memory.py; kraken#642",
    ),
    Row(
        "host-memory", classes=("OSError",), text=r"\[Errno 12\]|\[WinError 1455\]", library="python", source="errno.h"
    ),
    Row(
        "host-memory",
        text=r"by allocator cpu\b|Unable to allocate [0-9.]+ [KMGTPE]iB for an array",
        library="tensorflow",
        source="darkflow#873; tensorflow#45238",
    ),
    Row("host-memory", classes=("_ArrayMemoryError:numpy",), library="numpy", source="numpy/_core/_exceptions.py"),
    Row(
        "communicator",
        text=r"(?s)NCCL.*Failed to CUDA (?:calloc|malloc)|NCCL.*out of memory",
        source="NVIDIA/nccl#1235",
    ),
    Row("communicator", text=r"Cuda failure (?:\[?2\]? )?'out of memory'", library="nccl", source="NVIDIA/nccl#1235"),
    Row(
        "lost-allocator",
        text=r"handles_\.at\(i\) INTERNAL ASSERT FAILED",
        since="2.1",
        source="pytorch/pytorch#188008: after it every allocation fails in the same way",
    ),
    # -- the size is the mistake
    Row("wrong-size", text=r"CUDA out of memory\. Tried to allocate more than 1EB", since="1.13", source=_ALLOCATOR),
    # -- out of GPU memory
    Row("gpu-memory", text=r"(?:CUDA|HIP) out of memory\.", since="1.13", source=_ALLOCATOR),
    Row(
        "gpu-memory",
        text=r"Allocation on device.*would exceed allowed memory",
        since="2.0",
        source="c10/cuda/CUDAMallocAsyncAllocator.cpp",
    ),
    Row(
        "gpu-memory",
        text=r"NVML_SUCCESS == r INTERNAL ASSERT FAILED.*CUDACachingAllocator",
        since="2.1",
        source="pytorch/pytorch#112377: an out-of-memory error on MIG and Jetson",
    ),
    Row("gpu-memory", classes=("OutOfMemoryError:torch",), since="1.13", source="torch/cuda/__init__.py"),
    Row(
        "library-handle",
        text=r"(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED"
        r"|CURAND_STATUS_ALLOCATION_FAILED|CUSPARSE_STATUS_INSUFFICIENT_RESOURCES|_DEVICE_ALLOCATION_FAILED",
        since="1.13",
        source="aten/src/ATen/cuda/Exceptions.h; curand.h; cusparse.h; cudnn_graph.h",
    ),
    Row(
        "library-failed",
        # where the call is named, only what makes a handle or a plan, or asks for a workspace, is a matter of memory
        text=r"(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_(?:INTERNAL_ERROR|NOT_INITIALIZED)"
        r"(?!,? when calling `(?!\w*(?:Create|[Pp]lan|[Ww]orkspace|[Bb]ufferSize)))|CUFFT_INTERNAL_ERROR"
        r"|CURAND_STATUS_INITIALIZATION_FAILED|Unable to find a valid cuDNN algorithm"
        r"|(?:GET|FIND) was unable to find an engine",
        since="1.13",
        source="aten/src/ATen/cuda/Exceptions.h; seen with a full card on an H200",
    ),
    Row(
        "library-failed",
        text=r"operation gpu\w+Create\(&handle\) failed|cuSolver has not been initialized"
        r"|DNN library initialization failed|StreamExecutor without BLAS support|Blas \w+ launch failed"
        r"|Failed to get convolution algorithm|No algorithm worked",
        library="jax, tensorflow",
        source="jax#23616, #22626, #13504; tensorflow#25160",
    ),
    Row(
        "mapping",
        text=r"CUDA driver error: out of memory",
        since="2.1",
        source="c10/cuda/driver_api.h; unslothai/unsloth#2401",
    ),
    Row(
        "library-failed",
        text=r"CUDA driver error: device not ready",
        since="2.1",
        source="mberr/torch-max-mem#45: seen with a full card",
    ),
    Row("gpu-memory-runtime", text=r"CUDA error: out of memory", since="1.13", source=_EXCEPTION),
    Row("gpu-memory-runtime", classes=("AcceleratorError:torch",), codes=(2,), since="2.8", source=_EXCEPTION),
    Row("gpu-memory-runtime", classes=("OutOfMemoryError:cupy",), library="cupy", source="cupy/cuda/memory.pyx"),
    Row(
        "gpu-memory-runtime",
        text=r"cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY",
        library="cupy, numba, rmm",
        source="cupy_backends/cuda/api/runtime.pyx; numba_cuda/cudadrv/driver.py; rmm/detail/error.hpp",
    ),
    Row(
        "gpu-memory-runtime",
        text=r"std::bad_alloc: (?:out_of_memory: )?(?:CUDA error|RMM failure)|[Mm]aximum pool size exceeded",
        library="rmm",
        source="rapidsai/rmm#496, #1421",
    ),
    Row(
        "gpu-memory-runtime",
        text=r"(?:RESOURCE_EXHAUSTED|Resource exhausted): (?:Failed to allocate|Out of memory)",
        classes=("RuntimeError",),
        library="jax",
        source="xla/pjrt/pjrt_client.cc; mesh-transformer-jax#66",
    ),
    Row(
        "gpu-memory-runtime",
        text=r"OOM when allocating tensor|failed to allocate memory",
        classes=("ResourceExhaustedError",),
        library="tensorflow",
        source="tensorflow/core/framework/op_kernel.cc; keras-ocr#195",
    ),
    Row("gpu-memory-runtime", text=r"Dst tensor is not initialized", library="tensorflow", source="tensorflow#7025"),
    Row("gpu-memory-runtime", text=r"Out of memory error on GPU [0-9]", library="paddle", source="Paddle#42228"),
    Row(
        "gpu-memory-runtime",
        text=r"BFCArena::\w+.*Failed to allocate memory for requested buffer",
        library="onnxruntime",
        source="onnxruntime/core/framework/bfc_arena.cc; onnxruntime#9939, #22702",
    ),
    Row(
        "gpu-memory-runtime",
        text=r"Failed to allocate [0-9]+ bytes on device 'cuda|Memory allocation failed on device: cuda",
        library="warp",
        source="warp/_src/context.py; ManiSkill#104",
    ),
    Row(
        "gpu-memory-runtime",
        text=r"Out of memory\. Requested [0-9.]+ MB; Free",
        library="catboost",
        source="catboost/cuda/cuda_lib/memory_pool/stack_like_memory_pool.h; catboost#2750",
    ),
    Row(
        "gpu-memory-runtime",
        text=_OTHERS,
        library="faiss, lightgbm, mxnet, onnxruntime, opencv, pycuda, spconv, tiny-cuda-nn",
        source="faiss#2105, #2580; mxnet#675; CMT#15; instant-ngp#488; opencv#23392",
    ),
    Row("host-memory", classes=("MemoryError:builtins",), library="python", source="Objects/exceptions.c"),
)
