"""Each form of each error is recognised, by class, code or text, alone, chained, grouped and with many arguments."""

# ruff: noqa: E501 (messages stand as they were printed)

import pytest

from cuda_magic.rescue.classify import classify, judge
from cuda_magic.rescue.kinds import KINDS, ROWS, STICKY_CODES
from cuda_magic.testing.errors import FORMS, error


def kind_of(failure) -> str | None:
    fault = classify(failure)
    return fault.kind.id if fault else None


def made(name: str, module: str, base: type = RuntimeError, **fields) -> type:
    return type(name, (base,), {"__module__": module, **fields})


OOM = made("OutOfMemoryError", "torch")
ACCELERATOR = made("AcceleratorError", "torch", error_code=0)


def accelerator(code: int, text: str) -> Exception:
    failure = ACCELERATOR(text)
    failure.error_code = code
    return failure


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (OOM("CUDA out of memory. Tried to allocate 2.00 GiB."), "gpu-memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; ...)"), "gpu-memory"),
        (OOM("Allocation on device 0 would exceed allowed memory. (out of memory)"), "gpu-memory"),
        (
            RuntimeError('NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":963'),
            "gpu-memory",
        ),
        (OOM("CUDA out of memory. Tried to allocate more than 1EB memory."), "wrong-size"),
        (made("OutOfMemoryError", "torch.cuda")("CUDA out of memory. Tried to allocate 2.00 GiB."), "gpu-memory"),
        (OOM("Not enough memory for workspace!"), "gpu-memory"),
        (
            OOM("CUDA out of memory. Allocation was preemptively rejected because it would exceed the limit."),
            "gpu-memory",
        ),
        (accelerator(2, "CUDA error: out of memory\nSearch for"), "gpu-memory-runtime"),
        (RuntimeError("CUDA driver error: out of memory"), "mapping"),
        (RuntimeError("CUDA driver error: device not ready"), "library-failed"),
        (
            RuntimeError('!handles_.at(i) INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp":487'),
            "lost-allocator",
        ),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
            "library-failed",
        ),
        (RuntimeError("CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasSgemm( handle, opa)`"), None),
        (
            RuntimeError(
                "cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnSgetrf_bufferSize(h)`"
            ),
            "library-failed",
        ),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"), "library-failed"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "library-handle"),
        (RuntimeError("Unable to find a valid cuDNN algorithm to run convolution"), "library-failed"),
        (RuntimeError("GET was unable to find an engine to execute this computation"), "library-failed"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "library-handle"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"), "library-failed"),
        (
            RuntimeError("cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`"),
            "library-failed",
        ),
        (RuntimeError("cuFFT error: CUFFT_INTERNAL_ERROR"), "library-failed"),
        (RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"), "library-handle"),
        (
            made("OutOfMemoryError", "cupy.cuda.memory", MemoryError)("Out of memory allocating 8 bytes"),
            "gpu-memory-runtime",
        ),
        (
            made("CUDARuntimeError", "cupy_backends.cuda.api.runtime")("cudaErrorMemoryAllocation: out of memory"),
            "gpu-memory-runtime",
        ),
        (
            made("JaxRuntimeError", "jax.errors")(
                "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 256.00GiB"
            ),
            "gpu-memory-runtime",
        ),
        (
            made("XlaRuntimeError", "jaxlib.xla_extension")(
                "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes."
            ),
            "gpu-memory-runtime",
        ),
        (
            made("CudaAPIError", "numba.cuda.cudadrv.driver", Exception)(
                2, "[<CUresult.CUDA_ERROR_OUT_OF_MEMORY: 2>] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY"
            ),
            "gpu-memory-runtime",
        ),
        (
            MemoryError(
                "std::bad_alloc: out_of_memory: CUDA error at: x.hpp:70: cudaErrorMemoryAllocation out of memory"
            ),
            "gpu-memory-runtime",
        ),
        (MemoryError("std::bad_alloc: RMM failure at: pool.hpp: Maximum pool size exceeded"), "gpu-memory-runtime"),
        (
            made("ResourceExhaustedError", "tensorflow.python.framework.errors_impl", Exception)(
                "OOM when allocating tensor with shape[9]"
            ),
            "gpu-memory-runtime",
        ),
        (
            made("DistBackendError", "torch.distributed")(
                "NCCL error in: x.cpp: unhandled cuda error: Failed to CUDA calloc 6 bytes"
            ),
            "communicator",
        ),
        (
            made("DistBackendError", "torch.distributed")(
                "NCCL error in: x.cpp: unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'"
            ),
            "communicator",
        ),
        (accelerator(710, "CUDA error: device-side assert triggered"), "lost-context"),
        (accelerator(700, "CUDA error: an illegal memory access was encountered"), "lost-context"),
        (RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be ..."), "lost-context"),
        (RuntimeError("CUDA error: unspecified launch failure"), "lost-context"),
        (
            made("CUDARuntimeError", "cupy_backends.cuda.api.runtime")("cudaErrorIllegalAddress: an illegal"),
            "lost-context",
        ),
        (RuntimeError("Unexpected error from cudaGetDeviceCount(). Error 2: out of memory"), "start-up"),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:114] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 70368744177664 bytes."
            ),
            "host-memory",
        ),
        (made("_ArrayMemoryError", "numpy._core._exceptions", MemoryError)((1 << 50,), "uint8"), "host-memory"),
        (MemoryError(), "host-memory"),
        (
            made("OutOfResources", "triton.runtime.errors", Exception)("out of resource: shared memory, Required: 9"),
            None,
        ),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
        (ValueError("out of memory is what this sentence is about"), None),
        (SystemExit(2), None),
        (KeyboardInterrupt(), None),
    ],
    ids=lambda value: None if isinstance(value, BaseException) else str(value),
)
def test_each_form(failure, kind):
    """The kind of each form that torch and the other libraries raise."""
    assert kind_of(failure) == kind


def test_case_43_a_plain_runtime_error_is_out_of_memory():
    """RuntimeError "CUDA error: out of memory" counts, whatever its class."""
    assert classify(RuntimeError("CUDA error: out of memory")).repeatable


def test_chained_grouped_and_many_arguments():
    """``raise X from oom``, a RuntimeError raised in a handler, a group, and a text among several arguments."""
    oom = OOM("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")
    outer = ValueError("training failed")
    outer.__cause__ = oom
    assert kind_of(outer) == "gpu-memory"
    while_handling = RuntimeError("no executable batch size")
    while_handling.__context__ = oom
    assert kind_of(while_handling) == "gpu-memory"
    bug = ZeroDivisionError("in the handler")
    bug.__context__ = oom
    assert kind_of(bug) is None

    class Group(Exception):
        exceptions = (KeyError("a"), oom)

    assert kind_of(Group("two")) == "gpu-memory"
    assert kind_of(RuntimeError(17, "CUDA error: out of memory", None)) == "gpu-memory-runtime"


def test_a_lost_context_anywhere_in_the_chain_decides():
    """Out of memory raised while a device-side assert was handled: the context is gone all the same."""
    failure = OOM("CUDA out of memory. Tried to allocate 2.00 GiB.")
    failure.__cause__ = accelerator(710, "CUDA error: device-side assert triggered")
    assert kind_of(failure) == "lost-context"
    assert not classify(failure).repeatable


def test_a_hostile_error_is_no_error_of_ours():
    """An exception whose ``__str__`` and properties raise is classified as nothing."""

    class Hostile(Exception):
        def __str__(self):
            raise ValueError

        @property
        def error_code(self):
            raise ValueError

    assert kind_of(Hostile(1)) is None


def test_case_48_larger_than_the_card():
    """189 GiB asked of a card of 47: never repeated."""
    text = "CUDA out of memory. Tried to allocate 189.06 GiB. GPU 0 has a total capacity of 47.27 GiB of which 40.00 GiB is free."
    fault = judge(classify(OOM(text)), None)
    assert fault.kind.id == "too-large"
    assert not fault.repeatable


def test_the_table_is_whole():
    """Each row leads to a kind and names its source, torch's rows the release too; each kind has a row or a judge."""
    assert all(row.kind in KINDS and row.source for row in ROWS)
    assert all(row.classes or row.text or row.codes for row in ROWS)
    assert all(row.since for row in ROWS if row.library == "torch" and row.kind != "communicator")
    judged = {"context", "too-large", "other-process", "worker"}
    assert {row.kind for row in ROWS} | judged == set(KINDS)
    assert {kind.repeat for kind in KINDS.values()} == {"ladder", "ambiguous", "never"}


@pytest.mark.parametrize("code", STICKY_CODES)
def test_each_sticky_code_is_a_lost_context(code):
    """By error_code alone, with any text; never repeated."""
    fault = classify(accelerator(code, "CUDA error: something"))
    assert (fault.kind.id, fault.repeatable) == ("lost-context", False)


STICKY = [
    "device-side assert triggered",
    "an illegal memory access was encountered",
    "unspecified launch failure",
    "misaligned address",
    "an illegal instruction was encountered",
    "hardware stack error",
    "invalid program counter",
    "the launch timed out and was terminated",
    "uncorrectable ECC error encountered",
]


@pytest.mark.parametrize("text", STICKY)
def test_each_sticky_text_is_a_lost_context(text):
    """As torch before 2.8 says it, with no code; the same words without CUDA's name say nothing."""
    assert kind_of(RuntimeError(f"CUDA error: {text}\nCUDA kernel errors might be ...")) == "lost-context"
    assert kind_of(RuntimeError(text)) is None


START_UP = (
    "Found no NVIDIA driver on your system. Please check ...",
    "The NVIDIA driver on your system is too old (found version 11040).",
    "CUDA driver initialization failed, you might not have a CUDA gpu.",
    "CUDA unknown error - this may be due to an incorrectly set up environment",
    "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before ... Error 802: system not yet",
    "No CUDA GPUs are available",
    "cudaGetDeviceCount() returned cudaErrorNotSupported, likely running on CPU machine",
    "Torch not compiled with CUDA enabled",
)


@pytest.mark.parametrize("text", START_UP)
def test_each_text_of_a_start_that_failed(text):
    """No matter of memory, not repeated, and the doctor is the next step."""
    for failure in (RuntimeError(text), AssertionError(text)):
        fault = classify(failure)
        assert (fault.kind.id, fault.repeatable) == ("start-up", False)


FULL = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which {} is free. {}"


@pytest.mark.parametrize(
    ("free", "rest", "kind"),
    [
        ("1.00 GiB", "Including non-PyTorch memory, this process has 3.00 GiB memory in use.", "other-process"),
        ("1.00 GiB", "Including non-PyTorch memory, this process has 20.00 GiB memory in use.", "gpu-memory"),
        ("19.00 GiB", "Including non-PyTorch memory, this process has 2.50 GiB memory in use.", "gpu-memory"),
        ("1.00 GiB", "", "gpu-memory"),
    ],
)
def test_other_processes_that_hold_the_card_are_told_by_the_message(free, rest, kind):
    """Capacity, free and own: what is left is the others'. More than ours and than a quarter of the card decides."""
    fault = judge(classify(OOM(FULL.format(free, rest))), None)
    assert fault.kind.id == kind
    assert fault.repeatable
    assert fault.torch_allocator


def test_an_expandable_segment_that_cannot_be_mapped_with_plenty_free(practice):
    """On some platforms none can: not out of memory. With a full card it is."""
    gpu = practice.gpu
    gpu.empty("1 MiB")
    text = RuntimeError("CUDA driver error: out of memory")
    assert judge(classify(text), gpu.allocator).kind.id == "library-failed"
    kept = gpu.empty("22.8 GiB")
    assert judge(classify(text), gpu.allocator).kind.id == "mapping"
    del kept


@pytest.mark.parametrize("form", ["cublas", "cusolver", "cudnn", "cufft"])
def test_case_45_ambiguous_libraries_are_decided_by_free_memory(practice, form):
    """With a full card a library's failure is out of memory; with plenty free it is perhaps an index or a version."""
    gpu = practice.gpu
    gpu.empty("1 MiB")
    fault = judge(classify(error(form)), gpu.allocator)
    assert not fault.repeatable
    assert "plenty of GPU memory" in fault.sentence
    kept = gpu.empty("22.8 GiB")
    assert judge(classify(error(form)), gpu.allocator).repeatable
    del kept


def test_a_context_that_cannot_be_created(practice):
    """The first tensor with a full card: the context, not the batch."""
    practice.gpu.other_process("23.5 GiB")
    with pytest.raises(RuntimeError) as info:
        practice.gpu.empty("1 KiB")
    assert judge(classify(info.value), practice.gpu.allocator).kind.id == "context"


def test_pinned_memory_is_host_memory(practice):
    """ "CUDA error: out of memory" while the card is nearly empty: page-locked host memory (S13)."""
    practice.gpu.empty("1 MiB")
    assert judge(classify(error("runtime")), practice.gpu.allocator).kind.id == "host-memory"


def test_every_practice_error_has_a_kind():
    """No form that the practice GPU raises is unknown to the table."""
    assert all(kind_of(error(form)) for form in FORMS)
