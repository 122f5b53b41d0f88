"""What an error can be, as a table: kind, how it is recognised, since which release, what may be done, source.

Rows are tried in order; the first that fits decides. Adding a wording touches one row. The wordings of libraries other
than torch are in `wordings`; what is in no row and speaks of memory all the same is *unknown*.
"""

from __future__ import annotations

from .table import Kind, Row
from .wordings import ELSEWHERE, MEMORY, SETTINGS, SPEAKS, START_UP, STICKY_TEXT

__all__ = ["KINDS", "ROWS", "STICKY_CODES", "WORKERS", "WORKER_TEXT", "Kind", "Row"]

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
        Kind("setting", "a library's own setting leaves it too little GPU memory for what it was to load or serve"),
        Kind("host-memory", "the host ran out of memory, not the GPU"),
        Kind("shared-host", "the host's shared memory (/dev/shm) is full, not the GPU"),
        Kind("other-device", "the memory of a device that is no CUDA card ran out"),
        Kind("worker", "a worker process ran out of GPU memory, for which this kernel can make no room"),
        Kind("communicator", "NCCL ran out of GPU memory; its communicator is broken"),
        Kind("lost-context", "the CUDA context is lost; the GPU cannot be used until the kernel is restarted"),
        Kind("lost-allocator", "torch's allocator cannot go on after an error inside it until the kernel is restarted"),
        Kind("start-up", "CUDA could not start, which is no matter of GPU memory"),
        Kind("wrong-device", "the device is not there or cannot run this code, which is no matter of GPU memory"),
        Kind("shared-memory", "a kernel needs more shared memory than the card has", memory=False),
        Kind("unknown", "perhaps out of GPU memory: the error speaks of memory, in a wording that is not known"),
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
    # classes that carry the error of another process: (class:module), or what is chained below it; "*" any class
    "RayTaskError:ray",  # ray/exceptions.py
    "RemoteError:ipyparallel",  # ipyparallel/error.py
    "CompositeError:ipyparallel",
    "ProcessRaisedException:torch",  # torch/multiprocessing/spawn.py
    "ChildFailedError:torch",  # torch/distributed/elastic/multiprocessing/errors
    "RemoteTraceback:multiprocessing",  # multiprocessing/pool.py
    "_RemoteTraceback",  # concurrent/futures/process.py; joblib's loky
    "EngineGenerateError:vllm",  # vllm/v1/engine/exceptions.py: the engine runs in a process of its own
    "EngineDeadError:vllm",
    "MQEngineDeadError:vllm",
    "AsyncEngineDeadError:vllm",  # vllm/engine/async_llm_engine.py
    "*:tritonclient",  # clients of a server: its memory is in another process, perhaps on another machine
    "*:text_generation",
    "*:huggingface_hub",
    "*:openai",
    "*:ollama",
    "*:litellm",
    "*:gradio_client",
    "*:grpc",
    "*:replicate",
    "*:xinference_client",
    "*:rpyc",
    "*:Pyro5",
    "*:distributed",  # Dask: what a worker's process raised beyond its own classes
    "*:pyspark",
    "*:py4j",
)
WORKER_TEXT = (
    r"in DataLoader worker process"  # torch/_utils.py: the class is kept, the text tells
    r"|^ray::"  # ray/exceptions.py
    r"|\((?:EngineCore|VllmWorker|Worker|APIServer)\w*[^()\n]{0,40}\bpid=[0-9]+\)"  # vllm's prefix of a child's lines
    r"|\[[0-9]+:(?:execute|apply)\]"  # ipyparallel/error.py
    r"|llama runner process"  # ollama/llm/server.go
)

_ALLOCATOR = "c10/cuda/CUDACachingAllocator.cpp"
_EXCEPTION = "c10/cuda/CUDAException.cpp"

ROWS: tuple[Row, ...] = (
    # -- cuInit's code 2 is the host's, its 999 no lost context
    START_UP[0],
    # -- never repeated: the context is gone, whatever else the message says
    Row("lost-context", codes=tuple(STICKY_CODES), since="2.8", source=f"{_EXCEPTION}; CUDA 13 driver_types.h"),
    Row("lost-context", text=STICKY_TEXT, since="1.13", source=f"{_EXCEPTION}; lightning-attention#19; thrust#1426"),
    # -- not GPU memory, although the words are near
    Row("shared-memory", classes=("OutOfResources:triton",), library="triton", source="triton/runtime/errors.py"),
    Row(
        "shared-memory",
        # inductor says it as an OutOfMemoryError; the last is the loader's, of a library that came too late
        text=r"out of resource: |dynamic shared memory size|in static TLS block",
        library="triton, tvm",
        source="triton/runtime/errors.py; torch/_inductor/runtime/triton_heuristics.py; mlc-llm#2044; glibc dl-reloc.c",
    ),
    Row(
        "start-up",
        text=r"Unexpected error from cudaGetDeviceCount|Found no NVIDIA driver|driver on your system is too old"
        r"|CUDA driver initialization failed|No CUDA GPUs are available|CUDA unknown error"
        r"|cudaGetDeviceCount\(\) returned cudaErrorNotSupported"
        r"|Torch not compiled with CUDA enabled|CUDA-capable device.{1,12}busy or unavailable"
        r"|device >= 0 && device < num_gpus|Cannot re-initialize CUDA in forked subprocess"
        r"|on a CUDA device but torch\.cuda\.is_available\(\) is False",
        since="1.13",
        source="c10/cuda/CUDAFunctions.cpp; detectron2#2580; diffusers#5443; torch/cuda/__init__.py",
    ),
    *START_UP[1:],
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
    *ELSEWHERE,
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
        # NVML fails while the allocator makes its out-of-memory message
        text=r"NVML_SUCCESS == .{1,200}INTERNAL ASSERT FAILED.*CUDACachingAllocator",
        since="2.1",
        source="pytorch/pytorch#112377, #112950, #130486: an out-of-memory error on MIG and Jetson, or NVML is broken",
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
    Row("gpu-memory-runtime", text=r"(?:CUDA|HIP) error: out of memory", since="1.13", source=_EXCEPTION),
    Row("gpu-memory-runtime", classes=("AcceleratorError:torch",), codes=(2,), since="2.8", source=_EXCEPTION),
    *SETTINGS,
    *MEMORY,
    Row("host-memory", classes=("MemoryError:builtins",), library="python", source="Objects/exceptions.c"),
    # -- what no row knows, and speaks of memory
    *SPEAKS,
)
