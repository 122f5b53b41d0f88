"""The variables that CUDA and torch read, as data; those of others are in libraries.py, distributed.py and
frameworks.py. Adding one is adding a row.

Verified on one H200, torch 2.11.0+cu130, driver 580, or in torch's released wheels, unless `documented`.
"""

from __future__ import annotations

from .distributed import DISTRIBUTED
from .frameworks import FRAMEWORKS
from .libraries import LIBRARIES
from .variable import Variable, integer, one_of, whole, workspace

__all__ = ["CATALOGUE", "Variable", "find", "near"]

CUDA_AND_TORCH: tuple[Variable, ...] = (
    Variable(
        "CUDA_VISIBLE_DEVICES",
        "Which GPUs this process sees, and in which order.",
        "cuinit",
        legal="indices or UUID prefixes with commas (0,2 or GPU-1234,GPU-5678), MIG-UUID; empty or -1 hides all",
        default="all GPUs",
        source="CUDA driver; torch/cuda/__init__.py _parse_visible_devices",
    ),
    Variable(
        "CUDA_DEVICE_ORDER",
        "How CUDA numbers the GPUs; NVML and nvidia-smi always use the PCI order.",
        "cuinit",
        one_of("FASTEST_FIRST", "PCI_BUS_ID"),
        ("FASTEST_FIRST", "PCI_BUS_ID"),
        "FASTEST_FIRST or PCI_BUS_ID",
        "FASTEST_FIRST",
        documented=True,
        refuses=True,
        source="CUDA programming guide",
    ),
    Variable(
        "CUDA_LAUNCH_BLOCKING",
        "1 makes every kernel launch wait, so that an error shows at the line that caused it; slow.",
        "context",
        one_of("0", "1"),
        ("0", "1"),
        "0 or 1",
        "0",
        refuses=True,
    ),
    Variable(
        "CUDA_MODULE_LOADING",
        "LAZY loads a kernel when it is first used, EAGER all at the start.",
        "cuinit",
        one_of("DEFAULT", "LAZY", "EAGER"),
        ("LAZY", "EAGER"),
        "DEFAULT, LAZY or EAGER",
        "LAZY",
        documented=True,
        source="CUDA programming guide; torch 1.13 to 2.8 sets LAZY itself",
    ),
    Variable(
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "Number of hardware queues for kernels and copies.",
        "context",
        whole(1, 32),
        ("1", "8", "32"),
        "1 to 32",
        "8",
        documented=True,
        source="CUDA programming guide",
    ),
    Variable(
        "PYTORCH_CUDA_ALLOC_CONF",
        "Options of torch's caching allocator.",
        "init",
        legal="option:value with commas, for example expandable_segments:True",
        late="%cuda_env --restart; expandable_segments can be switched on by %%cuda_guard at run time",
        myth=(
            "backend:cudaMalloc does not exist;"
            " expandable_segments:True together with max_split_size_mb mostly cancels."
        ),
        source="c10/core/AllocatorConfig.h; the option backend is read when torch is imported",
    ),
    Variable(
        "PYTORCH_ALLOC_CONF",
        "The newer name of PYTORCH_CUDA_ALLOC_CONF (torch 2.9); where several names are set it comes last.",
        "init",
        legal="as PYTORCH_CUDA_ALLOC_CONF",
        myth="torch 2.9 tells people to switch to this name and then ignores it for CUDA; it works from 2.10 on.",
        since=(2, 10),
        source="released wheels 2.9.1 to 2.15.0",
    ),
    Variable(
        "PYTORCH_HIP_ALLOC_CONF",
        "The name of PYTORCH_CUDA_ALLOC_CONF for AMD GPUs; from 2.10 on every build reads it, before"
        " PYTORCH_ALLOC_CONF.",
        "init",
        legal="as PYTORCH_CUDA_ALLOC_CONF",
        source="c10/core/AllocatorConfig; the order measured on 2.13 (CPU build)",
    ),
    Variable(
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        "1 bypasses the caching allocator: each tensor is a cudaMalloc; for debugging, slow.",
        "init",
        one_of("0", "1"),
        ("1",),
        "1 (up to torch 2.6 any value, even 0, switches caching off)",
        source="measured; static at the first allocation",
    ),
    Variable(
        "PYTORCH_NVML_BASED_CUDA_CHECK",
        "1 makes torch.cuda.is_available() count devices by NVML and not start CUDA, so that a fork stays possible.",
        "always",
        one_of("0", "1"),
        ("1",),
        "only the exact value 1 counts",
        myth="It repairs nothing: is_available() then says True where the first tensor still fails.",
        since=(2, 0),
        source="torch/cuda/__init__.py",
    ),
    Variable(
        "CUBLAS_WORKSPACE_CONFIG",
        "Size of cuBLAS's workspace; :4096:8 or :16:8 is needed for deterministic results.",
        "use",
        workspace,
        (":4096:8", ":16:8"),
        ":KiB:count[:KiB:count ...]",
        first_use="the first matrix product",
    ),
    Variable(
        "NVIDIA_TF32_OVERRIDE",
        "0 switches TF32 off in NVIDIA's libraries.",
        "use",
        one_of("0", "1"),
        ("0",),
        "0",
        first_use="the first use of the library",
        documented=True,
        source="cuBLAS and cuDNN documentation",
    ),
    Variable(
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        "1 allows TF32 in matrix products.",
        "import",
        one_of("0", "1"),
        ("0", "1"),
        "0 or 1",
        late="torch.set_float32_matmul_precision('high')",
        source="ATen/Context.h",
    ),
    Variable(
        "TORCH_CUDA_ARCH_LIST",
        "Architectures for which C++ extensions are compiled; no effect on torch's own kernels.",
        "always",
        legal="for example 8.0;9.0+PTX, or native",
        source="torch/utils/cpp_extension.py",
    ),
    Variable(
        "TORCH_SHOW_CPP_STACKTRACES",
        "1 shows the C++ stack in errors.",
        "import",
        one_of("0", "1"),
        ("1",),
        "0 or 1",
        source="measured: importing torch already meets an error inside",
    ),
    Variable(
        "TORCH_USE_CUDA_DSA",
        "Nothing: a switch for compiling torch, which its error text mentions.",
        "never",
        myth="«Compile with TORCH_USE_CUDA_DSA» means building torch; setting it in a notebook does nothing.",
        source="torch's CMake files",
    ),
    Variable(
        "TORCHINDUCTOR_CACHE_DIR",
        "Where torch.compile keeps its results.",
        "always",
        legal="a folder",
        source="torch/_inductor/runtime/cache_dir_utils.py",
    ),
    Variable(
        "TRITON_CACHE_DIR", "Where Triton keeps its kernels.", "always", legal="a folder", source="triton/knobs.py"
    ),
    Variable(
        "TRITON_DEBUG",
        "1 switches Triton's own checks on.",
        "use",
        values=("1",),
        legal="1, true, yes or on",
        first_use="the import of triton",
        source="triton/knobs.py",
    ),
    Variable(
        "PYTORCH_USE_CUDA_DSA",
        "1 switches device-side assertions on, in a torch that was built with them.",
        "use",
        one_of("0", "1"),
        ("1",),
        "0 or 1",
        first_use="the first kernel launch",
        documented=True,
        source="c10/cuda/CUDADeviceAssertionHost",
    ),
    Variable(
        "PYTORCH_CUDA_DSA_STACKTRACING",
        "1 keeps a stack for each launch, for device-side assertions.",
        "use",
        one_of("0", "1"),
        ("1",),
        "0 or 1",
        first_use="the first kernel launch",
        documented=True,
        source="c10/cuda/CUDADeviceAssertionHost",
    ),
    Variable(
        "TORCH_LINALG_PREFER_CUSOLVER",
        "1 prefers cuSOLVER for linear algebra.",
        "import",
        one_of("0", "1"),
        ("1",),
        "0 or 1",
        late="torch.backends.cuda.preferred_linalg_library('cusolver')",
        documented=True,
        source="ATen/Context.h",
    ),
    Variable(
        "TORCH_BLAS_PREFER_CUBLASLT",
        "1 prefers cuBLASLt for matrix products.",
        "import",
        one_of("0", "1"),
        ("1",),
        "0 or 1",
        late="torch.backends.cuda.preferred_blas_library('cublaslt')",
        documented=True,
        source="ATen/Context.h",
    ),
    Variable(
        "TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT",
        "How many plans of convolutions are kept.",
        "use",
        integer(),
        ("0", "-1"),
        "a whole number; 0 sets no limit, a negative one keeps none",
        "10000",
        first_use="the first convolution",
        documented=True,
        source="aten/src/ATen/native/cudnn/Conv_v8.cpp, getLRUCacheLimit",
    ),
    Variable(
        "TORCH_CUDNN_V8_API_DISABLED",
        "1 makes torch use cuDNN's older interface (releases before 2.10).",
        "use",
        one_of("0", "1"),
        ("1",),
        "0 or 1",
        first_use="the first convolution",
        documented=True,
        source="aten/src/ATen/native/cudnn/Conv_v7.cpp, Context.h",
    ),
    Variable(
        "CUBLASLT_WORKSPACE_SIZE",
        "Size of the workspace that torch gives cuBLASLt, in KiB.",
        "use",
        integer(),
        ("32768",),
        "KiB, a whole number",
        first_use="the first matrix product by cuBLASLt",
        documented=True,
        source="aten/src/ATen/cuda/CUDABlas.cpp, _parseChosenWorkspaceSize",
    ),
    Variable(
        "CUDA_MANAGED_FORCE_DEVICE_ALLOC",
        "1 keeps managed memory on the device.",
        "cuinit",
        one_of("0", "1"),
        ("1",),
        "0 or 1",
        "0",
        documented=True,
        source="CUDA programming guide",
    ),
    Variable(
        "CUDA_CACHE_PATH",
        "Where the driver keeps kernels that it compiled.",
        "cuinit",
        legal="a folder",
        documented=True,
        source="CUDA programming guide",
    ),
    Variable(
        "CUDA_CACHE_MAXSIZE",
        "Size of that cache in bytes.",
        "cuinit",
        whole(0, 4 << 30),
        legal="bytes, at most 4294967296",
        default="1073741824",
        documented=True,
        source="CUDA programming guide",
    ),
    Variable(
        "CUDA_CACHE_DISABLE",
        "1 switches that cache off.",
        "cuinit",
        one_of("0", "1"),
        ("0", "1"),
        "0 or 1",
        "0",
        documented=True,
        source="CUDA programming guide",
    ),
    Variable(
        "CUDA_FORCE_PTX_JIT",
        "1 compiles every kernel from PTX and ignores the compiled ones.",
        "cuinit",
        one_of("0", "1"),
        ("0", "1"),
        "0 or 1",
        "0",
        documented=True,
        source="CUDA programming guide",
    ),
    Variable(
        "CUDA_LOG_FILE",
        "Where the driver writes what went wrong (CUDA 12.9 and newer).",
        "cuinit",
        values=("stderr", "stdout"),
        legal="stdout, stderr or a path",
        documented=True,
        source="CUDA programming guide",
    ),
)

CATALOGUE: tuple[Variable, ...] = CUDA_AND_TORCH + LIBRARIES + DISTRIBUTED + FRAMEWORKS
_BY_NAME = {v.name: v for v in CATALOGUE}


def near(name: str) -> str:
    """`` Did you mean X?`` for a name that is nearly one of the catalogue's: a part or more of it, or much like it."""
    import difflib

    upper = name.upper()
    if upper in _BY_NAME or len(upper) < 5:
        return ""
    begins = [known for known in _BY_NAME if known.startswith(upper) or upper.startswith(f"{known}_")]
    like = difflib.get_close_matches(upper, _BY_NAME, n=1, cutoff=0.86)
    best = begins[0] if len(begins) == 1 else like[0] if like else begins[0] if begins and len(begins) < 4 else ""
    return f" Did you mean {best!r}?" if best else ""


def find(name: str) -> Variable | None:
    """The row of `name`, or None."""
    return _BY_NAME.get(name)
