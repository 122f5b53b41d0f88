"""Errors that people posted, of other libraries and other releases: the kind, the figures, and who can do something.

The quoted line is the error's own; what stood around it is left out. The source is the report it was posted in.
"""

# ruff: noqa: E501 (messages stand as they were printed)

from __future__ import annotations

import subprocess
import sys

import pytest

from cuda_magic.rescue.classify import classify, judge

MIB, GIB = 1 << 20, 1 << 30


def made(name: str, module: str, *bases: type) -> type:
    return type(name, bases or (RuntimeError,), {"__module__": module})


OOM = made("OutOfMemoryError", "torch")
XLA = made("XlaRuntimeError", "jaxlib.xla_extension")
EXHAUSTED = made("ResourceExhaustedError", "tensorflow.python.framework.errors_impl", Exception)
ORT = made("RuntimeException", "onnxruntime.capi.onnxruntime_pybind11_state", Exception)
NCCL = made("DistBackendError", "torch.distributed")
CUPY = made("OutOfMemoryError", "cupy.cuda.memory", MemoryError)
RAY = made("RayTaskError", "ray.exceptions")

POSTED = {
    # source: (error, kind, figures)
    "pytorch#16417, 1.0": (
        RuntimeError(
            "CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; 8.57 MiB already allocated; 9.28 GiB free; 4.68 MiB cached)"
        ),
        "gpu-memory",
        {"requested": int(12.5 * MIB), "device": 0, "capacity": int(10.92 * GIB), "free": int(9.28 * GIB)},
    ),
    "stable-diffusion#702, 2.0": (
        OOM(
            "CUDA out of memory. Tried to allocate 192.00 MiB (GPU 0; 4.00 GiB total capacity; 3.08 GiB already allocated; 0 bytes free; 3.47 GiB reserved in total by PyTorch)"
        ),
        "gpu-memory",
        {"requested": 192 * MIB, "free": 0, "reserved": int(3.47 * GIB)},
    ),
    "NeuroLens#2, 2.1": (
        OOM(
            "CUDA out of memory. Tried to allocate 55.57 GiB. GPU 0 has a total capacty of 12.00 GiB of which 9.02 GiB is free. Of the allocated memory 984.52 MiB is allocated by PyTorch, and 463.48 MiB is reserved by PyTorch but unallocated."
        ),
        "too-large",
        {"requested": int(55.57 * GIB), "capacity": 12 * GIB},
    ),
    "Keye#11, 2.6": (
        OOM(
            "CUDA out of memory. Tried to allocate 13535.27 GiB. GPU 0 has a total capacity of 79.14 GiB of which 61.76 GiB is free. Including non-PyTorch memory, this process has 17.37 GiB memory in use."
        ),
        "too-large",
        {"requested": int(13535.27 * GIB), "own": int(17.37 * GIB)},
    ),
    "GenerateU#10, 2.1, a container": (
        OOM(
            "CUDA out of memory. Tried to allocate 496.00 MiB. GPU 0 has a total capacty of 14.75 GiB of which 235.06 MiB is free. Process 20398 has 14.52 GiB memory in use. Of the allocated memory 14.06 GiB is allocated by PyTorch, and 330.42 MiB is reserved by PyTorch but unallocated."
        ),
        "gpu-memory",
        {"processes": ((20398, int(14.52 * GIB)),), "own": None},
    ),
    "warp-ctc#151, a negative size": (
        RuntimeError(
            "CUDA out of memory. Tried to allocate 17179869113.53 GiB (GPU 0; 10.92 GiB total capacity; 36.04 MiB already allocated; 9.58 GiB free; 29.96 MiB cached)"
        ),
        "wrong-size",
        {"requested": None, "free": int(9.58 * GIB)},
    ),
    "TheRock#2118, AMD": (
        OOM(
            "HIP out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 255.98 GiB of which 244.65 GiB is free. 1.05 GiB allowed; Of the allocated memory 1017.01 MiB is allocated by PyTorch, with 17.00 MiB allocated in private pools (e.g., HIP Graphs), and 54.99 MiB is reserved by PyTorch but unallocated."
        ),
        "gpu-memory",
        {"requested": 2 * MIB, "allowed": int(1.05 * GIB), "private_pools": 17 * MIB},
    ),
    "pytorch#1829, 0.1": (
        RuntimeError("cuda runtime error (2) : out of memory at torch/lib/THC/generic/THCStorage.cu:66"),
        "gpu-memory-runtime",
        {},
    ),
    "cupy#1912, 5": (
        CUPY("out of memory to allocate 1073741824 bytes (total 12373894656 bytes)"),
        "gpu-memory-runtime",
        {"requested": GIB},
    ),
    "cupy#2242, 5 with a limit": (
        CUPY("out of memory to allocate 1024 bytes (total 2048 bytes, limit set to 1536 bytes)"),
        "gpu-memory-runtime",
        {"requested": 1024, "allowed": 1536},
    ),
    "cupy#2537, 7": (
        CUPY("Out of memory allocating 25,600,000 bytes (allocated so far: 3,635,267,072 bytes)."),
        "gpu-memory-runtime",
        {"requested": 25_600_000, "allocated": 3_635_267_072},
    ),
    "AFProfile#8": (
        XLA(
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4770354232 bytes.\nBufferAssignment OOM Debugging.\nBufferAssignment stats:\n parameter allocation:  372.76MiB"
        ),
        "gpu-memory-runtime",
        {"requested": 4770354232},
    ),
    "mesh-transformer-jax#66": (
        RuntimeError("Resource exhausted: Failed to allocate request for 32.00MiB (33554432B) on device ordinal 0"),
        "gpu-memory-runtime",
        {"requested": 32 * MIB, "device": 0},
    ),
    "mpx#11": (
        XLA(
            "RESOURCE_EXHAUSTED: Failed to load in-memory CUBIN (compiled for a different GPU?).: CUDA_ERROR_OUT_OF_MEMORY: out of memory"
        ),
        "gpu-memory-runtime",
        {},
    ),
    "jax#23616": (
        RuntimeError(
            "jaxlib/gpu/solver_handle_pool.cc:37: operation gpusolverDnCreate(&handle) failed: cuSolver internal error"
        ),
        "library-failed",
        {},
    ),
    "jax#22626": (
        XLA("FAILED_PRECONDITION: DNN library initialization failed. Look at the errors above for more details."),
        "library-failed",
        {},
    ),
    "jax#13504": (
        XLA("INTERNAL: Attempting to perform BLAS operation using StreamExecutor without BLAS support"),
        "library-failed",
        {},
    ),
    "jaxley#53": (
        XLA(
            "INTERNAL: Failed to execute XLA Runtime executable: Failed to launch CUDA kernel: fusion_1560: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered."
        ),
        "lost-context",
        {},
    ),
    "finetune#339": (
        EXHAUSTED(
            "OOM when allocating tensor with shape[16,12,512,512] and type float on /job:localhost/replica:0/task:0/device:GPU:2 by allocator GPU_2_bfc"
        ),
        "gpu-memory-runtime",
        {"device": 2},
    ),
    "darkflow#873, the host": (
        EXHAUSTED(
            "OOM when allocating tensor with shape[16,19,19,1024] and type float on /job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu\n\t [[Node: 36-leaky]]"
        ),
        "host-memory",
        {"device": None},
    ),
    "keras-ocr#195": (EXHAUSTED("failed to allocate memory [Op:AddV2]"), "gpu-memory-runtime", {}),
    "RAMS#13": (
        made("InternalError", "tensorflow.python.framework.errors_impl", Exception)(
            "Failed copying input tensor from /job:localhost/replica:0/task:0/device:CPU:0 to /job:localhost/replica:0/task:0/device:GPU:0 in order to run _EagerConst: Dst tensor is not initialized."
        ),
        "gpu-memory-runtime",
        {"device": 0},
    ),
    "tensorflow#25160": (
        made("UnknownError", "tensorflow.python.framework.errors_impl", Exception)(
            "Failed to get convolution algorithm. This is probably because cuDNN failed to initialize, so try looking to see if a warning log message was printed above."
        ),
        "library-failed",
        {},
    ),
    "tensorflow#45238, the host": (
        EXHAUSTED(
            "MemoryError: Unable to allocate 184. MiB for an array with shape (64, 26, 26, 3, 371) and data type float32"
        ),
        "host-memory",
        {"requested": 184 * MIB},
    ),
    "cudf#6773": (
        MemoryError(
            "std::bad_alloc: CUDA error at: ../include/rmm/mr/device/cuda_memory_resource.hpp:68: cudaErrorMemoryAllocation out of memory"
        ),
        "gpu-memory-runtime",
        {},
    ),
    "rmm#1421": (
        MemoryError(
            "std::bad_alloc: out_of_memory: RMM failure at:include/rmm/mr/device/pool_memory_resource.hpp:196: Maximum pool size exceeded"
        ),
        "gpu-memory-runtime",
        {},
    ),
    "rmm's pool_memory_resource_impl.cpp": (
        MemoryError(
            "std::bad_alloc: out_of_memory: RMM failure at:pool_memory_resource_impl.cpp:73: Maximum pool size exceeded (failed to allocate 10.371208 GiB): Not enough room to grow, current/max/try size = 78.000000 GiB, 78.000000 GiB, 10.371208 GiB"
        ),
        "gpu-memory-runtime",
        {"requested": int(10.371208 * GIB)},
    ),
    "dask-cuda#225": (
        made("CudaAPIError", "numba.cuda.cudadrv.driver", Exception)(
            2, "Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY"
        ),
        "gpu-memory-runtime",
        {},
    ),
    "numba#4833": (
        made("CudaAPIError", "numba.cuda.cudadrv.driver", Exception)(
            719, "Call to cuMemAlloc results in CUDA_ERROR_LAUNCH_FAILED"
        ),
        "lost-context",
        {},
    ),
    "Paddle#42228": (
        RuntimeError(
            "ResourceExhaustedError: \n\nOut of memory error on GPU 0. Cannot allocate 98.000244MB memory on GPU 0, 6.000000GB memory has been allocated and available memory is only 0.000000B.\n\nPlease check whether there is any other process using GPU 0."
        ),
        "gpu-memory-runtime",
        {"requested": int(98.000244 * MIB), "allocated": 6 * GIB, "free": 0, "device": 0},
    ),
    "PaddleOCR#645, no RuntimeError": (
        MemoryError(
            "Out of memory error on GPU 0. Cannot allocate 3.125000GB memory on GPU 0, available memory is only 117.750000MB."
        ),
        "gpu-memory-runtime",
        {"requested": int(3.125 * GIB), "free": int(117.75 * MIB)},
    ),
    "cryosparc#124": (
        made("MemoryError", "pycuda._driver", MemoryError)("cuMemAlloc failed: out of memory"),
        "gpu-memory-runtime",
        {},
    ),
    "faiss#2179": (
        RuntimeError(
            "Error in virtual void* faiss::gpu::StandardGpuResourcesImpl::allocMemory(const faiss::gpu::AllocRequest&) at StandardGpuResources.cpp:452: Error: 'err == cudaSuccess' failed: StandardGpuResources: alloc fail type FlatData dev 2 space Device stream 0 size 2764800000 bytes (cudaMalloc error out of memory [2])"
        ),
        "gpu-memory-runtime",
        {"requested": 2764800000, "device": 2},
    ),
    "faiss#2020": (
        RuntimeError(
            "Error: 'err == cudaSuccess' failed: Failed to cudaMalloc 536870912 bytes on device 1 (error 2 out of memory\nOutstanding allocations:"
        ),
        "gpu-memory-runtime",
        {"requested": 512 * MIB, "device": 1},
    ),
    "instant-ngp#488": (
        RuntimeError(
            "Could not allocate memory: gpu_memory.h:112 cudaMalloc(&rawptr, n_bytes+DEBUG_GUARD_SIZE*2) failed with error out of memory"
        ),
        "gpu-memory-runtime",
        {},
    ),
    "mxnet#675": (
        made("MXNetError", "mxnet.base")(
            "[11:18:15] src/storage/./pooled_storage_manager.h:157: cudaMalloc failed: out of memory"
        ),
        "gpu-memory-runtime",
        {},
    ),
    "CMT#15, spconv": (
        RuntimeError(
            "/io/include/tensorview/tensor.h 168\ncuda failed with error 2 out of memory. use CUDA_LAUNCH_BLOCKING=1 to get correct traceback."
        ),
        "gpu-memory-runtime",
        {},
    ),
    "VINS-Fisheye#16, OpenCV": (
        made("error", "cv2", Exception)(
            "OpenCV(3.4.13) modules/core/src/cuda/gpu_mat.cu:116: error: (-217:Gpu API call) out of memory in function 'allocate'"
        ),
        "gpu-memory-runtime",
        {},
    ),
    "opencv#19160": (
        made("error", "cv2", Exception)(
            "copy.hpp:81: error: (-217:Gpu API call) an illegal memory access was encountered in function 'copy'"
        ),
        "lost-context",
        {},
    ),
    "onnxruntime#9939": (
        ORT(
            "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running FusedMatMul node. Status Message: bfc_arena.cc:331 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool) Failed to allocate memory for requested buffer of size 8388608000"
        ),
        "gpu-memory-runtime",
        {"requested": 8388608000},
    ),
    "onnxruntime#22702, an overflow": (
        ORT(
            "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool) Failed to allocate memory for requested buffer of size 4585490524328388608"
        ),
        "wrong-size",
        {"requested": None},
    ),
    "ManiSkill#104, Warp": (
        RuntimeError("Memory allocation failed on device: cuda for 120 bytes"),
        "gpu-memory-runtime",
        {"requested": 120},
    ),
    "xgboost#7140": (
        made("XGBoostError", "xgboost.core", ValueError)(
            "Memory allocation error on worker 0: std::bad_alloc: cudaErrorMemoryAllocation: out of memory"
        ),
        "gpu-memory-runtime",
        {},
    ),
    "catboost#2750": (
        made("CatBoostError", "_catboost", Exception)(
            "stack_like_memory_pool.h:303: Error: Out of memory. Requested 8880 MB; Free 5902.061425 MB"
        ),
        "gpu-memory-runtime",
        {"requested": 8880 * MIB, "free": int(5902.061425 * MIB)},
    ),
    "Open-Sora-Plan#386": (
        NCCL(
            "NCCL error in: ProcessGroupNCCL.cpp:1691, unhandled cuda error\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'out of memory'"
        ),
        "communicator",
        {},
    ),
    "nccl#1235": (
        NCCL(
            "NCCL error in: ProcessGroupNCCL.cpp:1691, unhandled cuda error\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA calloc async 608 bytes"
        ),
        "communicator",
        {},
    ),
    "triton#8182": (
        made("OutOfResources", "triton.runtime.errors", Exception)(
            "out of resource: shared memory, Required: 131072, Hardware limit: 101376. Reducing block sizes or `num_stages` may help."
        ),
        None,
        {},
    ),
    "torchtitan#1437, inductor": (
        OOM(
            "out of resource: triton_flex_attention Required: 262144 Hardware limit:232448 Reducing block sizes or `num_stages` may help."
        ),
        None,
        {},
    ),
    "webui#9552": (RuntimeError("FIND was unable to find an engine to execute this computation"), "library-failed", {}),
    "caffe#1026": (RuntimeError("CURAND_STATUS_ALLOCATION_FAILED"), "library-handle", {}),
    "tandem#79": (
        RuntimeError(
            "CUDA error: CUSPARSE_STATUS_INSUFFICIENT_RESOURCES when calling `cusparseSpGEMM_workEstimation(h)`"
        ),
        "library-handle",
        {},
    ),
    "safetensors#528": (
        RuntimeError(
            "unable to mmap 23802932552 bytes from file <./flux1-dev.safetensors>: Cannot allocate memory (12)"
        ),
        "host-memory",
        {"requested": 23802932552},
    ),
    "kraken#642": (
        RuntimeError(
            "Caught RuntimeError in pin memory thread for device 0.\nOriginal Traceback (most recent call last):\nRuntimeError: CUDA error: out of memory"
        ),
        "host-memory",
        {},
    ),
    "arcgis#743, a worker, but the host": (
        RuntimeError(
            "Caught RuntimeError in DataLoader worker process 0.\nRuntimeError: [enforce fail at CPUAllocator.cpp:64] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 402653184 bytes. Error code 12 (Cannot allocate memory)."
        ),
        "host-memory",
        {"requested": 384 * MIB},
    ),
    "errno 12": (OSError(12, "Cannot allocate memory"), "host-memory", {}),
    "EasyR1#9, Ray": (
        made("RayTaskError(OutOfMemoryError)", "ray.exceptions", RAY, OOM)(
            "ray::Runner.run() (pid=104449)\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
        ),
        "worker",
        {"requested": 2 * GIB},
    ),
    "ipyparallel": (
        made("RemoteError", "ipyparallel.error", Exception)(
            "[0:execute]: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
        ),
        "worker",
        {},
    ),
    "a context that a worker lost": (
        made("RayTaskError(RuntimeError)", "ray.exceptions", RAY)(
            "ray::f()\nRuntimeError: CUDA error: device-side assert triggered"
        ),
        None,
        {},
    ),
    "parallel_apply, threads of this process": (
        OOM(
            "Caught OutOfMemoryError in replica 1 on device 1.\nOriginal Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 24.00 GiB"
        ),
        "gpu-memory",
        {"device": 1},
    ),
    "detectron2#2580": (RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable"), "start-up", {}),
    "llama.cpp#11841": (RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable"), "start-up", {}),
    "vllm#2248, a setting": (
        ValueError(
            "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."
        ),
        "setting",
        {},
    ),
    "pytorch#5040, shared memory of the host": (
        RuntimeError(
            "DataLoader worker (pid 13) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory."
        ),
        "shared-host",
        {},
    ),
    "Apple's": (
        RuntimeError(
            "MPS backend out of memory (MPS allocated: 17.93 GB, other allocations: 1 MB, max allowed: 18.13 GB). Tried to allocate 256.00 MB on private pool."
        ),
        "other-device",
        {},
    ),
}


@pytest.mark.parametrize("source", POSTED)
def test_what_people_posted(source):
    """The kind, alone and as the cause of another error, and each figure."""
    error, kind, figures = POSTED[source]
    outer = RuntimeError("training failed")
    outer.__cause__ = error
    for raised in (error, outer):
        fault = classify(raised)
        assert (judge(fault, None).kind.id if fault else None) == kind
        assert {name: getattr(fault.sizes, name) for name in figures} == figures


@pytest.mark.parametrize(
    "error", [OOM(text) for text in ("CUDA out of memory. Process 7 has 3.00 GiB memory in use.",)]
)
def test_a_process_is_counted_once(error):
    """The text of an error is read once, not again in its arguments."""
    assert classify(error).sizes.processes == ((7, 3 * GIB),)


FAIL = "from cuda_magic.testing.errors import OutOfMemoryError as E\nraise E('CUDA out of memory. Tried to allocate 2.00 GiB.')"


POOLS = {
    "futures": "ProcessPoolExecutor(1, context).submit(exec, FAIL).result()",
    "multiprocessing": "context.Pool(1).apply(exec, (FAIL,))",
}


@pytest.mark.parametrize("pool", POOLS)
def test_the_error_of_a_real_worker(pool):
    """An error that a pool of processes hands on is the worker's: never repeated here."""
    code = (
        "import multiprocessing, os\nfrom concurrent.futures import ProcessPoolExecutor\n"
        "from cuda_magic.rescue.classify import classify\ncontext = multiprocessing.get_context('fork')\n"
        f"FAIL = {FAIL!r}\ntry:\n    {POOLS[pool]}\nexcept RuntimeError as error:\n    fault = classify(error)\n"
        "    print(fault.kind.id, fault.repeatable, fault.sizes.requested, flush=True)\n"
        "for child in multiprocessing.active_children():  # one that lives on would keep the pipe open\n"
        "    child.kill()\nos._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["worker", "False", str(2 * GIB)], done.stderr


def test_a_workers_error_ends_the_cell_once(practice):
    """One attempt, no rung, no word on this kernel's memory; the line shows who holds the card."""
    practice.plain("mine = gpu.empty('2 GiB')\nruns = []")
    code = f"class RemoteError(Exception): __module__ = 'ipyparallel.error'\nruns.append(1)\nraise RemoteError({FAIL.splitlines()[1]!r})"
    assert practice.guard(code) is not None
    report = practice.report
    assert (report.kind, report.attempts, report.rungs, report.holders) == ("worker", 1, (), ())
    assert [step.line for step in report.next_steps] == ["%gpu_mem --who"]
    assert practice.names["runs"] == [1]


def test_a_librarys_own_limit_is_told_from_a_full_card(practice):
    """What was asked has room on the card: the library's pool or limit is full. With a full card it is the card."""
    practice.gpu.empty("1 MiB")
    error = CUPY(
        "Out of memory allocating 1,073,741,824 bytes (allocated so far: 512 bytes, limit set to: 1,024 bytes)."
    )
    assert "own limit" in judge(classify(error), practice.gpu.allocator).sentence
    code = "cupy = type('OutOfMemoryError', (MemoryError,), {'__module__': 'cupy.cuda.memory'})\nraise cupy("
    assert practice.guard(f"{code}{str(error)!r})") is not None
    assert practice.report.next_steps[0].line == "cupy.get_default_memory_pool().get_limit()"
    kept = practice.gpu.empty("22.8 GiB")
    assert "own limit" not in judge(classify(error), practice.gpu.allocator).sentence
    del kept
