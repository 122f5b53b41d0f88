"""The variables that CUDA, torch and NVIDIA's libraries read, as data. Adding one is adding a row.

`read` says at which moment the value is read, and with that until when a change still takes effect:

always      at each call                                    a change takes effect at once
import      when torch is imported
cuinit      when CUDA starts in the process (cuInit; torch.cuda.is_available() is enough)
context     when the first context is created (the first tensor on a GPU)
init        when torch initialises CUDA, which is before its first context
use         at the first use of the feature; `first_use` names it
container   when the container is created: nothing in a notebook changes it

Verified on one H200, torch 2.11.0+cu130, driver 580, or in torch's released wheels, unless `documented`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["CATALOGUE", "Variable", "find"]


def _one_of(*legal: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        return "" if value in legal else f"legal values are {', '.join(legal)}"

    return check


def _whole(low: int, high: int) -> Callable[[str], str]:
    def check(value: str) -> str:
        fits = re.fullmatch(r"\d+", value) and low <= int(value) <= high
        return "" if fits else f"it takes a whole number from {low} to {high}"

    return check


def _any(value: str) -> str:
    return ""


def _workspace(value: str) -> str:
    return "" if re.fullmatch(r"(:\d+:\d+)+", value) else "it takes :KiB:count, for example :4096:8"


@dataclass(frozen=True)
class Variable:
    """One variable. `check` gives what is wrong with a value, or an empty string."""

    name: str
    meaning: str
    read: str
    check: Callable[[str], str] = _any
    values: tuple[str, ...] = ()
    """Values that TAB offers."""
    legal: str = ""
    """Legal values in words."""
    default: str = ""
    late: str = ""
    """What to do when it is too late."""
    myth: str = ""
    """What circulates about it and is wrong, with the right fact."""
    first_use: str = ""
    documented: bool = False
    """From vendors' documentation; not tried by us."""
    source: str = "measured"


CATALOGUE: tuple[Variable, ...] = (
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
        _one_of("FASTEST_FIRST", "PCI_BUS_ID"),
        ("FASTEST_FIRST", "PCI_BUS_ID"),
        "FASTEST_FIRST or PCI_BUS_ID",
        "FASTEST_FIRST",
        documented=True,
        source="CUDA programming guide",
    ),
    Variable(
        "CUDA_LAUNCH_BLOCKING",
        "1 makes every kernel launch wait, so that an error shows at the line that caused it; slow.",
        "context",
        _one_of("0", "1"),
        ("0", "1"),
        "0 or 1",
        "0",
    ),
    Variable(
        "CUDA_MODULE_LOADING",
        "LAZY loads a kernel when it is first used, EAGER all at the start.",
        "cuinit",
        _one_of("DEFAULT", "LAZY", "EAGER"),
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
        _whole(1, 32),
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
        late="restart the kernel; expandable_segments can be switched on by %%cuda_guard at run time",
        myth=(
            "backend:cudaMalloc does not exist;"
            " expandable_segments:True together with max_split_size_mb mostly cancels."
        ),
        source="c10/core/AllocatorConfig.h; the option backend is read when torch is imported",
    ),
    Variable(
        "PYTORCH_ALLOC_CONF",
        "The newer name of PYTORCH_CUDA_ALLOC_CONF (torch 2.9); where both are set the older name wins.",
        "init",
        legal="as PYTORCH_CUDA_ALLOC_CONF",
        late="restart the kernel",
        myth="torch 2.9 tells people to switch to this name and then ignores it for CUDA; it works from 2.10 on.",
        source="released wheels 2.9.1 to 2.15.0",
    ),
    Variable(
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        "1 bypasses the caching allocator: each tensor is a cudaMalloc; for debugging, slow.",
        "init",
        _one_of("0", "1"),
        ("1",),
        "1 (up to torch 2.6 any value, even 0, switches caching off)",
        source="measured; static at the first allocation",
    ),
    Variable(
        "PYTORCH_NVML_BASED_CUDA_CHECK",
        "1 makes torch.cuda.is_available() count devices by NVML and not start CUDA, so that a fork stays possible.",
        "always",
        _one_of("0", "1"),
        ("1",),
        "only the exact value 1 counts",
        myth="It repairs nothing: is_available() then says True where the first tensor still fails.",
        source="torch/cuda/__init__.py, since torch 2.0",
    ),
    Variable(
        "CUBLAS_WORKSPACE_CONFIG",
        "Size of cuBLAS's workspace; :4096:8 or :16:8 is needed for deterministic results.",
        "use",
        _workspace,
        (":4096:8", ":16:8"),
        ":KiB:count[:KiB:count ...]",
        first_use="the first matrix product",
    ),
    Variable(
        "NVIDIA_TF32_OVERRIDE",
        "0 switches TF32 off in NVIDIA's libraries.",
        "use",
        _one_of("0", "1"),
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
        _one_of("0", "1"),
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
        "use",
        _one_of("0", "1"),
        ("1",),
        "0 or 1",
        first_use="the first C++ error",
    ),
    Variable(
        "TORCH_USE_CUDA_DSA",
        "Nothing: a switch for compiling torch, which its error text mentions.",
        "never",
        myth="«Compile with TORCH_USE_CUDA_DSA» means building torch; setting it in a notebook does nothing.",
        source="torch's CMake files",
    ),
    Variable(
        "NCCL_DEBUG",
        "How much NCCL logs.",
        "use",
        _one_of("VERSION", "WARN", "INFO", "TRACE"),
        ("WARN", "INFO"),
        "VERSION, WARN, INFO or TRACE",
        first_use="the first communicator",
        documented=True,
        source="NCCL documentation",
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
        "XLA_PYTHON_CLIENT_PREALLOCATE",
        "false keeps JAX from taking most of the card at its start.",
        "use",
        _one_of("true", "false"),
        ("false",),
        "true or false",
        "true",
        first_use="JAX's first operation",
        source="docs.jax.dev; measured",
    ),
)

_BY_NAME = {v.name: v for v in CATALOGUE}


def find(name: str) -> Variable | None:
    """The row of `name`, or None."""
    return _BY_NAME.get(name)
