"""The errors that CUDA code raises when memory runs out, in torch's own words, without torch.

Classes bear the names that torch gives them, so that code which tells errors apart by name and text meets the same.
Wording: torch 2.11 on an H200, compared in tests/gpu/test_practice_gpu.py, and the release notes named beside a row.
"""

from __future__ import annotations

__all__ = ["FORMS", "AcceleratorError", "OutOfMemoryError", "error", "torch_size"]


class OutOfMemoryError(RuntimeError):
    """As ``torch.OutOfMemoryError``: the caching allocator found no room."""


class AcceleratorError(RuntimeError):
    """As ``torch.AcceleratorError`` (torch 2.8): the CUDA runtime returned `error_code`."""

    def __init__(self, message: str, error_code: int) -> None:
        super().__init__(message)
        self.error_code = error_code


_DOCS = "https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf"
HINT = (
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    f" to avoid fragmentation.  See documentation for Memory Management  ({_DOCS})"
)
_ASYNCHRONOUS = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be"
    " incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
_TYPES = "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html"


def _runtime(text: str, symbol: str) -> str:
    return f"CUDA error: {text}\nSearch for `{symbol}' in {_TYPES} for more information.\n{_ASYNCHRONOUS}"


FORMS: dict[str, tuple[type[RuntimeError], str, int | None]] = {
    # form: (class, text, error_code)
    "runtime": (AcceleratorError, _runtime("out of memory", "cudaErrorMemoryAllocation"), 2),
    "assert": (AcceleratorError, _runtime("device-side assert triggered", "cudaErrorAssert"), 710),
    "illegal address": (
        AcceleratorError,
        _runtime("an illegal memory access was encountered", "cudaErrorIllegalAddress"),
        700,
    ),
    "cublas": (RuntimeError, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", None),
    "cusolver": (
        RuntimeError,
        "cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`",
        None,
    ),
    "cudnn": (RuntimeError, "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", None),
    "cufft": (RuntimeError, "cuFFT error: CUFFT_INTERNAL_ERROR", None),
    "too large": (OutOfMemoryError, "CUDA out of memory. Tried to allocate more than 1EB memory.", None),
}
"""Errors whose text has no numbers; `error` makes them."""


def error(form: str) -> RuntimeError:
    """A new exception of one of `FORMS`."""
    kind, text, code = FORMS[form]
    return AcceleratorError(text, code) if code is not None else kind(text)


def torch_size(count: int) -> str:
    """Bytes as torch's allocator writes them in its messages."""
    if count <= 1 << 10:
        return f"{count} bytes"
    for power, unit in ((20, "KiB"), (30, "MiB")):
        if count <= 1 << power:
            return f"{count / (1 << (power - 10)):.2f} {unit}"
    return f"{count / (1 << 30):.2f} GiB"
