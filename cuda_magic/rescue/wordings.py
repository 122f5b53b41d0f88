"""How other libraries and the driver word their errors; `kinds` puts these rows among torch's, where they count.

Each row names the reports or the source that it is taken from. Errors as people posted them: tests/rescue/posted.txt.
"""

from __future__ import annotations

from .table import Row

__all__ = ["ELSEWHERE", "MEMORY", "SETTINGS", "SPEAKS", "START_UP", "STICKY_TEXT"]

_CUDA = r"(?:cuda|cu[A-Z]\w+|gpu|hip|triton|nvrtc|nccl|cublas|cudnn|thrust|xgboost|pycuda|stream|kernel|synchroni[sz]e)"
"""What stands before or behind a sticky text that is too plain to stand alone."""
_STICKY = (
    r"(?:device-side assert triggered|an illegal memory access was encountered|unspecified launch failure"
    r"|an illegal instruction was encountered|the launch timed out and was terminated"
    r"|operation not supported on global/shared address space|uncorrectable (?:ECC|NVLink) error)"
)
_PLAIN = r"(?:misaligned address|hardware stack error|invalid program counter)"
STICKY_TEXT = (
    rf"(?s)(?:(?<=\S\s)|(?<=[:\"'(,\]])){_STICKY}"  # cudaGetErrorString's own words, behind whoever says them
    rf"|{_STICKY}.{{0,2000}}?(?i:{_CUDA})"
    rf"|(?i:{_CUDA}).{{0,400}}?{_PLAIN}|{_PLAIN}.{{0,400}}?(?i:{_CUDA})"
    r"|(?:cudaError|CUDA_ERROR_|\bERROR_|hipError)(?i:Illegal_?Address|Assert|Launch_?Fail(?:ed|ure)|Launch_?Timeout"
    r"|Illegal_?Instruction|Misaligned_?Address|Invalid_?Address_?Space|Invalid_?PC|Hardware_?Stack_?Error"
    r"|ECC_?Uncorrectable|NVLink_?Uncorrectable|Context_?Is_?Destroyed)\b"
    r"|(?:(?i:cuda (?:\w+ )?(?:error|failure))|\bcu[A-Z]\w+ failed with error)[ :=(]{1,3}(?:700|710|71[4-9])\b"
    r"|(?i:cuda runtime error) \((?:59|73|74|77|4)\)"  # codes of CUDA before 10.1
)

START_UP: tuple[Row, ...] = (
    Row(
        "start-up",
        text=r"\bcuInit|CU-INIT|[Ee]rror at driver init",
        library="numba, tensorflow, pycuda, cupy",
        source="cudf#14699; tensorflow#7653; numba#8638",
    ),
    Row(
        "start-up",
        text=r"(?i:cuda\w*\b[^\n]{0,100}initialization error)|cudaErrorInitializationError"
        r"|initialization error[^\n]{0,40}(?i:\bcuda)|(?i:\bcuda\b[^\n]{0,80}\bfork|\bfork\w*\b[^\n]{0,60}\bcuda\b)"
        r"|CUDA_ERROR_NOT_INITIALIZED",
        library="torch, dali, nccl, numba",
        since="1.13",
        source="accelerate#3833, #940; DALI#3163; nccl#1029; numba/cuda/cudadrv/driver.py",
    ),
    Row(
        "start-up",
        text=r"no CUDA-capable device is detected|cudaErrorNoDevice|CUDA_ERROR_NO_DEVICE"
        r"|CUDA driver version is insufficient|cudaErrorInsufficientDriver|CUDA driver is a stub library"
        r"|forward compatibility was attempted|system not yet initialized|unsupported display driver"
        r"|CUDA_ERROR_(?:SYSTEM_|COMPAT_|STUB_)\w+|cudaError(?:SystemNotReady|SystemDriverMismatch|Compat\w+|StubLibrary)"
        r"|cudaErrorDevicesUnavailable|CUDA_ERROR_DEVICE_UNAVAILABLE|CUDA driver library cannot be found"
        r"|CUDA failed to initialize|failed to initialize (?:CUDA|NVML)|Can't initialize NVML",
        library="torch, cupy, numba, llama.cpp",
        since="1.13",
        source="CUDA 13 driver_types.h; llama.cpp#1866; numba/cuda/cudadrv/driver.py",
    ),
    Row(
        "wrong-device",
        text=r"[Ii]nvalid device (?:ordinal|id\b)|cudaErrorInvalidDevice\b|CUDA_ERROR_INVALID_DEVICE"
        r"|no kernel image is available"
        r"|cudaErrorNoKernelImageForDevice|CUDA_ERROR_NO_BINARY_FOR_GPU|device kernel image is invalid"
        r"|hipErrorNoBinaryForGpu|but torch\.cuda\.device_count\(\) is|unsupported toolchain",
        library="torch, cupy, numba",
        since="1.13",
        source="CUDA 13 driver_types.h; TaskMatrix#21; autotrain-advanced#737",
    ),
    Row(
        "context",
        # the first call of a library in this process: the card has no room for what CUDA keeps there
        text=r"CUDA runtime implicit initialization on GPU:[0-9]+ failed\. Status: out of memory"
        r"|(?:cuDevicePrimaryCtxRetain|cuCtxCreate\w*)[^\n]{0,80}(?:OUT_OF_MEMORY|out of memory)",
        library="tensorflow, numba, pycuda",
        source="tio#189; tensorflow#7272",
    ),
)

ELSEWHERE: tuple[Row, ...] = (
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
        "host-memory",
        # page-locked memory: the calls of CUDA and HIP that ask the host for it
        text=r"(?i)\b(?:cuda|cu|hip)_?(?:malloc_?host|host_?(?:alloc|malloc|register)|mem_?(?:alloc_?host|host_?(?:alloc"
        r"|register)))\w*[^\n]{0,160}(?:fail|error|out of memory|out_of_memory)"
        r"|(?:fail|could not|unable|cannot)[^\n]{0,60}\b(?:pinned|page-locked)[^\n]{0,20}memory"
        r"|cuda_host_mem\.cpp[^\n]*out of memory|alloc\w* [0-9]+ bytes (?:on|from) host|alloc\w* cpu memory"
        r"|out[ _]of[ _]host[ _]memory|node running low on memory|due to memory pressure \(OOM\)",
        library="opencv, llama.cpp, tensorflow, nd4j, mxnet, lightgbm, pyopencl, ray",
        source="opencv#23392; ninfer-3090#25; llama.cpp#9629; sleap#2001; LightGBM#4492; pyopencl#357; ray#30312",
    ),
    Row(
        "shared-host",
        text=r"workers are out of shared memory"
        r"|unable to (?:write to file|allocate shared memory\S* for file) </torch_",
        library="torch",
        since="1.13",
        source="torch/utils/data/_utils/signal_handling.py; pytorch#5040, #108861",
    ),
    Row(
        "other-device",
        text=r"\b(?:MPS backend|XPU|NPU|MUSA|MLU|TPU|HPU)\b[^\n]{0,20}out of memory",
        library="torch, torch_npu",
        since="1.13",
        source="aten/src/ATen/mps/MPSAllocator.mm; c10/xpu/XPUCachingAllocator.cpp",
    ),
)

SETTINGS: tuple[Row, ...] = (
    Row(
        "setting",
        text=r"No available memory for the cache blocks|less than desired GPU memory utilization"
        r"|tokens that can be stored in KV cache|available KV cache memory",
        library="vllm",
        source="vllm#2248, #25837, #27508",
    ),
    Row(
        "setting",
        text=r"Not enough memory\. Please try to (?:increase|decrease|reduce) --mem-fraction-static",
        library="sglang",
        source="sglang#322, #4330",
    ),
    Row(
        "setting",
        text=r"Not enough memory to handle [0-9]+ (?:prefill|total) tokens",
        library="text-generation-inference",
        source="text-generation-inference#755, #940, #1067",
    ),
    Row(
        "setting",
        text=r"Make sure you have enough GPU RAM to fit",
        library="transformers",
        source="llama-cookbook#56; Skywork#67",
    ),
    Row(
        "setting",
        text=r"Insufficient GPU memory error: The available single GPU memory",
        library="mlc-llm",
        source="mlc-llm#2791",
    ),
)

_OTHERS = (
    # how programs that call the driver or the runtime themselves report its error 2
    r"(?i)(?:cuda|\bcu(?:mem|malloc|ctx|device|stream|module|launch|array)\w*|gpu|\bhip|device memory|vram|nvml)"
    r"[^\n]{0,160}?\bout[ _]of[ _]memory\b|\bout of (?:gpu|cuda|device|video) memory\b"
    r"|\bout of memory\b[^\n]{0,60}\b(?:on|of|from) (?:the )?(?:gpu|device|cuda)"
)

MEMORY: tuple[Row, ...] = (
    Row("gpu-memory-runtime", classes=("OutOfMemoryError:cupy",), library="cupy", source="cupy/cuda/memory.pyx"),
    Row(
        "gpu-memory-runtime",
        text=r"cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory|hipErrorMemoryAllocation",
        library="cupy, numba, rmm",
        source="cupy_backends/cuda/api/runtime.pyx; numba_cuda/cudadrv/driver.py; rmm/detail/error.hpp; AMDGPU.jl#591",
    ),
    Row(
        "gpu-memory-runtime",
        text=r"std::bad_alloc: (?:out_of_memory: )?(?:CUDA error|RMM failure)|[Mm]aximum pool size exceeded"
        r"|RMM_ERROR_OUT_OF_MEMORY|get_temporary_buffer failed",
        library="rmm",
        source="rapidsai/rmm#496, #1421, #201; MinkowskiEngine#331: Thrust",
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
    Row(
        "gpu-memory-runtime",
        text=r"Out of memory error on GPU [0-9]|enforce allocating <= available failed",
        library="paddle",
        source="Paddle#42228, #8992",
    ),
    Row(
        "gpu-memory-runtime",
        text=r"BFCArena::\w+.*Failed to allocate memory for requested buffer"
        r"|Available memory of [0-9]+ is smaller than requested bytes",
        library="onnxruntime",
        source="onnxruntime/core/framework/bfc_arena.cc; onnxruntime#9939, #22702, #23121",
    ),
    Row(
        "gpu-memory-runtime",
        text=r"Error [Cc]ode:? 2: [Oo]ut ?[Oo]f ?[Mm]emory"
        r"|Requested amount of (?:GPU )?memory \([0-9]+ bytes\) could not|OutOfMemory Error in (?:allocate|execute)",
        library="tensorrt",
        source="DeepStream-Yolo#366; torch2trt#661; TensorRT#4254",
    ),
    Row(
        "gpu-memory-runtime",
        text=r"Failed to allocate [0-9]+ bytes on device 'cuda|Memory allocation failed on device: cuda",
        library="warp",
        source="warp/_src/context.py; ManiSkill#104",
    ),
    Row(
        "gpu-memory-runtime",
        text=r"Out of memory\. Requested [0-9.]+ MB; Free|NCudaLib::TOutOfMemoryError",
        library="catboost",
        source="catboost/cuda/cuda_lib/memory_pool/stack_like_memory_pool.h; catboost#2750, #407",
    ),
    Row(
        "gpu-memory-runtime",
        text=r"MEM_OBJECT_ALLOCATION_FAILURE|Memory Object Allocation Failure",
        library="pyopencl, lightgbm",
        source="LightGBM#4480; DeepFaceLab#167",
    ),
    Row(
        "gpu-memory-runtime",
        text=r"CUDA allocation failed|GPU memory allocation failed|(?:unable|failed) to allocate CUDA[0-9]+ buffer"
        r"|PxgCudaDeviceMemoryAllocator fail|jit_malloc\(\): out of memory|Cuda error: 2\["
        r"|Error out of memory at line [0-9]+ in file|Memory exhausted on GPU",
        library="dali, llama.cpp, isaacgym, mitsuba, nvdiffrast, bitsandbytes",
        source="DALI#2525; CRFasRNNLayer#18; llama.cpp#20431; IsaacGymEnvs#256; mitsuba3#433; nvdiffrast#182; "
        "bitsandbytes#464",
    ),
    Row(
        "gpu-memory-runtime",
        text=_OTHERS,
        native=True,
        library="ctranslate2, faiss, lightgbm, lmdeploy, mxnet, onnxruntime, opencv, pycuda, spconv, taichi, tensorrt, "
        "tiny-cuda-nn, tvm, xgboost",
        source="faiss#2105, #2580; mxnet#675; CMT#15; instant-ngp#488; opencv#23392; whisperX#504; faster-whisper#442; "
        "lmdeploy#2236; mlc-llm#1462; TensorRT#2198; Deep-Live-Cam#584",
    ),
)

_MEMORY_WORD = r"(?:(?<!shared )(?<!pin )memory|vram|\bram|hbm)\b"
_GPU_WORD = r"(?:gpu|cuda|vram|device|card|kv cache|hbm|accelerator)"
_NOUN = r"\b(?:gpu|cuda|device|video|graphics)[ -](?:memory|ram)\b|\bvram\b|\bhbm\b"
"""The memory of a card by its name: of that alone an error speaks."""
_SCARCE = (
    r"out[ _-]?of[ _-]?(?:(?!shared)[a-z]+[ _-]?)?(?:memory|vram|ram\b)|\bOOM(?:\b|(?=[A-Z_]))"
    r"|\b(?:not enough|insufficient|no|too little|low|lack of|exhaust\w*|enough|exceed\w*"
    rf"|fits? in(?:to)?|(?:ran|runs?|running) out of)\b[^\n]{{0,40}}{_MEMORY_WORD}"
    rf"|{_MEMORY_WORD}[^\n]{{0,40}}\b(?:exhausted|insufficient|not enough|exceed\w*|is (?:full|too low)|too small"
    r"|smaller|shortage|out of space)\b"
    rf"|\b(?:needs?|requires?|only)\b[^\n]{{0,30}}\b[0-9.]+ ?[KMGT]i?B\b[^\n]{{0,30}}{_MEMORY_WORD}"
)
_NOT_HAD = (
    r"\b(?:fail\w*|could ?n[o']t|could not|unable|cannot|can't|did not)\b[^\n]{0,30}\b(?:alloc|reserv|map)\w*"
    r"[^\n]{0,60}\b(?:memory|buffers?|bytes|tensors?|storage|workspace|pool|cache|device|gpu|cuda\w*|[KMGT]i?B)\b"
    r"|\b(?:memory|buffer|bytes|tensor|storage|workspace|pool|gpu|cuda\w*)\b[^\n]{0,40}\balloc\w*[^\n]{0,20}"
    r"\b(?:fail|error)"
    r"|\balloc\w*[^\n]{0,30}\b(?:memory|buffer|bytes|tensor|storage|workspace|[KMGT]i?B)\b[^\n]{0,30}\b(?:fail|error)"
    r"|\A\W*\w*alloc\w*(?:\(\))?:? (?:fail|error)|\bbad[_ ]alloc\w*"
    r"|\b\w*malloc\w*(?:\(\))?[^\n]{0,40}\b(?:fail|error)"
    r"|\b(?:cuda|cu|hip)_?(?:malloc|mem(?:alloc|create|map|addressreserve|setaccess))\w*\b[^\n]{0,40}"
    r"\b(?:fail|error|returned|results)"
    r"|ALLOC\w*_(?:FAIL\w*|ERR\w*)|ALLOCATOR_FAIL\w*|cudaErrorMemory\w+"
    r"|CachingAllocator[^\n]{0,40}ASSERT|ASSERT FAILED[^\n]{0,80}(?:Caching|MallocAsync)Allocator"
)

SPEAKS: tuple[Row, ...] = (
    Row(
        "unknown",
        text=r"\A",
        named=r"OutOf\w{0,8}Memory|(?:^|[a-z_])OOM|BadAlloc|^ResourceExhaustedError$",
        library="",
        source="-",
    ),
    Row("unknown", text=rf"(?i){_NOUN}|{_SCARCE}|{_NOT_HAD}", native=True, library="", source="-"),
    Row(
        # Python code's own message about a value: only where it names the card too
        "unknown",
        text=rf"(?is)\A(?=.*\b{_GPU_WORD}\b)(?=.*(?:{_SCARCE}|{_NOT_HAD}))",
        library="",
        source="-",
    ),
)
