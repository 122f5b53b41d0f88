"""Three answers and no false one: known, speaks of memory in a wording that is not known, another reason."""

from __future__ import annotations

import builtins
import time
from pathlib import Path

import pytest

from cuda_magic.rescue.classify import classify, judge, known

DATA = Path(__file__).with_name("posted.txt")
_BASES = {"XGBoostError": ValueError, "MemoryError": MemoryError, "ResourceExhaustedError": Exception}


def made(name: str) -> type:
    """The class that a report names: a built-in, or ``Name:module``."""
    name, _, module = name.partition(":")
    if not module:
        return getattr(builtins, name)
    base = _BASES.get(name) or (RuntimeError if module in ("torch", "jaxlib") else Exception)
    return type(name, (base,), {"__module__": module})


def posted() -> list[tuple[str, str, str, str]]:
    """(answer, class, report, text) of each line."""
    lines = [line for line in DATA.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    rows = [tuple(line.split(" || ", 3)) for line in lines]
    text = [row[3].replace("\\\\", "\0").replace("\\n", "\n").replace("\\t", "\t").replace("\0", "\\") for row in rows]
    return [(*row[:3], full) for row, full in zip(rows, text, strict=True)]


POSTED = posted()


@pytest.mark.parametrize(("answer", "name", "report", "text"), POSTED, ids=[row[2] for row in POSTED])
def test_what_people_posted(answer, name, report, text):
    """The answer, alone and as the cause of another error; what is not known is never repeated."""
    error = made(name)(text)
    outer = RuntimeError("training failed")
    outer.__cause__ = error
    for raised in (error, outer):
        fault = classify(raised)
        kinds = {fault.kind.id, judge(fault, None).kind.id} if fault else {"-"}
        assert answer in kinds, kinds
        assert known(raised) == (answer not in ("-", "unknown"))
        if answer == "unknown":
            assert not fault.repeatable


def test_the_reports_are_many():
    """At least 300, each named once, of each answer several."""
    answers = [row[0] for row in POSTED]
    assert len(POSTED) >= 300
    assert len({row[2] for row in POSTED}) == len(POSTED)
    assert {"-", "unknown"} < set(answers)
    assert min(answers.count("-"), answers.count("unknown")) >= 10


SPOKEN = [
    RuntimeError("the widget ran out of memory while it was drawing"),
    RuntimeError("tensor pool: allocation of 3 GiB failed"),
    Exception("Not enough VRAM left, 3.1 GB needed"),
    ValueError("this model wants 24 GB, there is not enough GPU memory"),
    OSError("device memory exhausted"),
    type("DeviceOutOfMemory", (Exception,), {})("12"),
    RuntimeError("failed to reserve 512 bytes of storage"),
    *map(
        RuntimeError,
        (
            "cuMemAlloc returned 2",
            "KV cache does not fit in GPU memory",
            "model too large for GPU memory",
            "requested 3 GB but only 1 GB of GPU memory is available",
            "requires at least 24GB VRAM",
            "memory pool is out of space",
            "pool allocator: no memory",
            "no space left in device memory",
            "vkAllocateMemory failed: ErrorOutOfDeviceMemory",
            "NVENC error: NV_ENC_ERR_OUT_OF_MEMORY (10)",
            "NPP_MEMORY_ALLOCATION_ERR",
            "nvjpeg: NVJPEG_STATUS_ALLOCATOR_FAILURE",
            "OptixError: OPTIX_ERROR_DEVICE_OUT_OF_MEMORY",
            "HBM exhausted",
            "alloc failed",
            "allocation of 20971520 bytes failed on device 0",
            "Cannot allocate KV cache",
        ),
    ),
    type("OOMError", (Exception,), {})(),
]


@pytest.mark.parametrize("error", SPOKEN, ids=str)
def test_what_speaks_of_memory_is_never_denied(error):
    """By its text or by its class: perhaps, and not repeated."""
    assert classify(error).kind.id == "unknown"


OTHER = [
    NameError("name 'out_of_memory' is not defined"),
    AttributeError("module 'torch.cuda' has no attribute 'OutOfMemoryError'"),
    TypeError("forward() missing 1 required positional argument: 'memory'"),
    KeyError("out of memory"),
    FileNotFoundError(2, "No such file or directory", "failed to allocate buffer.txt"),
    ModuleNotFoundError("No module named 'memory_profiler'"),
    RuntimeError("unsupported operation: some elements of the input tensor share a single memory location"),
    RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned"),
    RuntimeError("Pin memory thread exited unexpectedly"),
    ValueError("out of range"),
    ValueError("not enough values to unpack (expected 2, got 1)"),
    RuntimeError("could not allocate port 8080"),
    OSError("/lib/aarch64-linux-gnu/libgomp.so.1: cannot allocate memory in static TLS block"),
    OSError(28, "No space left on device"),
    RuntimeError("Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"),
    RuntimeError("CUDA error: invalid argument"),
    RuntimeError("unable to open shared memory object </torch_29919_1396182366> in read-write mode"),
    RuntimeError("Trying to backward through the graph a second time (or directly access saved tensors)"),
    RuntimeError("view size is not compatible with input tensor's size and stride (at least one dimension spans)"),
    TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy it to host memory first."),
    ValueError("`gpu_memory_utilization` must be between 0 and 1"),
    AssertionError("memory.shape == (3, 4)"),
    type("HTTPError", (Exception,), {"__module__": "requests"})("429: Insufficient quota"),
    type("ResourceExhausted", (Exception,), {"__module__": "google.api_core.exceptions"})("429 Quota exceeded"),
    AssertionError("expected 3 GPUs"),
    RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"),
]


@pytest.mark.parametrize("error", OTHER, ids=str)
def test_another_reason_is_said_only_of_another(error):
    """Words that are near and mean something else."""
    assert classify(error) is None


def test_an_unknown_wording_is_reported_and_not_repeated(practice):
    """One attempt, no rung; where the memory is; and how the wording can be told."""
    practice.plain("big = gpu.empty('2 GiB'); runs = []")
    code = "runs.append(1)\nraise RuntimeError('the engine has not enough memory')"
    for options in ({}, {"repeat": True}, {"shrink": ("n", 1)}):
        practice.plain("n = 4; runs.clear()")
        assert practice.guard(code, **options) is not None
        assert (practice.report.status, practice.report.kind) == ("not-repeated", "unknown")
        assert (practice.report.rungs, practice.names["runs"]) == ((), [1])
    text = repr(practice.report)
    assert "perhaps out of GPU memory" in text
    assert "another reason" not in text
    assert "big" in text
    assert any("issues" in step.why for step in practice.report.next_steps)


def test_another_reason_is_said_so(practice):
    """The title alone: nothing of memory."""
    assert practice.guard("1 / 0") is not None
    assert practice.report.status == "error"
    assert "for another reason" in repr(practice.report)


def test_an_unknown_error_of_a_repeat_does_not_hide_the_first(practice):
    """The memory error that was met is the one that shows."""
    code = (
        "runs.append(1)\nif len(runs) > 1: raise RuntimeError('buffer: out of memory, it seems')\n"
        "held = gpu.empty('20 GiB'); gpu.empty('6 GiB')"
    )
    practice.plain("runs = []\ndef work():\n  " + code.replace("\n", "\n  "))
    error = practice.guard("work()", repeat=True)
    assert "Tried to allocate" in str(error)
    assert practice.report.kind == "gpu-memory"


@pytest.mark.parametrize("filler", ["cuda x ", "device: ", "failed to allocate ", "memory ", "a"])
def test_a_message_of_megabytes_takes_no_time(filler):
    """XLA lists its buffers: the table is searched in the beginning and in the end of a message."""
    text = filler * (2_000_000 // len(filler))
    started = time.perf_counter()
    classify(RuntimeError(text))
    assert time.perf_counter() - started < 1.0
    assert classify(RuntimeError(f"{text} CUDA out of memory. Tried to allocate 2 GiB")).kind.id == "gpu-memory"


LOST = (
    "Warp CUDA error 700: an illegal memory access was encountered (in function wp_launch)",
    "an illegal memory access was encountered in XGBoost",
    "cublas: misaligned address",
    "misaligned address in kernel foo",
    "HIP error: an illegal memory access was encountered",
    "LightGBMError: [CUDA] an illegal memory access was encountered cuda.cpp 12",
    "device-side assert triggered (CUDA)",
    "INTERNAL: CUDA error: Failed to synchronize: CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "cudaDeviceSynchronize() failed: unspecified launch failure",
)
NO_START = (
    "initialization error of CUDA",
    "CUDA cannot be used in forked processes",
    "the process was forked after CUDA had started",
    "CUDA_ERROR_INVALID_DEVICE: invalid device ordinal",
    "cudaSetDevice failed: invalid device ordinal",
    "Invalid device id",
    "no CUDA-capable device is detected",
    "could not retrieve CUDA device count: CUDA_ERROR_NOT_INITIALIZED: initialization error",
    "failed call to cuInit: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
)


@pytest.mark.parametrize("text", LOST)
def test_a_lost_context_in_every_word_order(text):
    """Any library, before or behind the driver's words."""
    assert classify(RuntimeError(text)).kind.id == "lost-context"


@pytest.mark.parametrize("text", NO_START)
def test_a_start_that_failed_leads_to_the_doctor(practice, text):
    """CUDA that cannot start, forks, wrong devices: no rung, no memory, the doctor's line."""
    assert practice.guard(f"raise RuntimeError({text!r})", repeat=True) is not None
    assert practice.report.kind in ("start-up", "wrong-device")
    assert (practice.report.attempts, practice.report.rungs) == (1, ())
    assert [step.line for step in practice.report.next_steps] == ["%cuda_doctor"]
