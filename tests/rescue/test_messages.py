"""Sizes in the messages of every torch from 1.13 to 2.15, and of other libraries."""

# ruff: noqa: E501 (messages stand as they were printed)

import pytest

from cuda_magic.rescue.classify import classify
from cuda_magic.rescue.messages import parse

MIB, GIB = 1 << 20, 1 << 30
T113 = (
    "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 1; 23.69 GiB total capacity; 20.10 GiB already allocated; "
    "1.20 GiB free; 21.50 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting "
    "max_split_size_mb to avoid fragmentation."
)
T21 = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacty of 7.93 GiB of which 24.50 MiB is free. "
    "Process 1234 has 3.00 GiB memory in use. Including non-PyTorch memory, this process has 69.00 MiB memory in use. "
    "Of the allocated memory 8.00 MiB is allocated by PyTorch, and 4.00 MiB is reserved by PyTorch but unallocated."
)
T24 = (
    "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total capacity of 139.81 GiB of which 2.00 GiB is free. "
    "Process 507 has 137.19 GiB memory in use. Process 508 has 512 bytes memory in use. Including non-PyTorch memory, "
    "this process has 3.60 GiB memory in use. 3.20 GiB allowed; Of the allocated memory 3.00 GiB is allocated by "
    "PyTorch, with 2.00 GiB allocated in private pools (e.g., CUDA Graphs), and 100.00 MiB is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
T212 = (
    "CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction "
    "limit. Requested size: 2.50 GiB, GPU 0"
)
ASYNC = (
    "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 3.00 GiB\n"
    "Requested               : 9.00 GiB\nDevice limit            : 139.81 GiB\nFree (according to CUDA): 5.00 GiB\n"
    "PyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB"
)


T214 = (
    "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 139.81 GiB of which 2.00 GiB is free. "
    "Including non-PyTorch memory, this process has 137.60 GiB memory in use. Of the allocated memory 120.00 GiB is "
    "allocated by PyTorch, and 16.00 GiB is reserved by PyTorch but unallocated."
)
APPENDED = (  # sentences that torch appends, as far as they are known; the sizes in them are this test's own
    "",  # 2.14, expandable segments on: no hint
    " If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True",  # 2.14, off
    " This allocation exceeds the expandable-segment reserve of 64.00 GiB.",  # 2.15, as the next two
    " expandable_segments is enabled. If instead the virtual address space (VSZ) is limited to 256.00 GiB",
    " The custom allocator backing this MemPool returned nullptr",
)


@pytest.mark.parametrize("more", APPENDED)
def test_what_torch_214_and_215_append_changes_no_size(more):
    """Each size is that of the message proper, and it is out of GPU memory as before."""
    assert parse(T214 + more) == parse(T214)
    assert parse(T214).requested == 3 * GIB // 2
    assert parse(T214).unallocated == 16 * GIB
    oom = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})
    for failure in (oom(T214 + more), RuntimeError(T214 + more)):
        fault = classify(failure)
        assert fault is not None
        assert fault.kind.id == "gpu-memory"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            T113,
            {
                "requested": 2 * GIB,
                "device": 1,
                "capacity": int(23.69 * GIB),
                "allocated": int(20.10 * GIB),
                "free": int(1.2 * GIB),
                "reserved": int(21.5 * GIB),
            },
        ),
        (
            T21,
            {"requested": 20 * MIB, "device": 0, "capacity": int(7.93 * GIB), "free": int(24.5 * MIB), "own": 69 * MIB},
        ),
        (T21, {"allocated": 8 * MIB, "unallocated": 4 * MIB, "processes": ((1234, 3 * GIB),)}),
        (
            T24,
            {
                "requested": int(1.5 * GIB),
                "device": 3,
                "own": int(3.6 * GIB),
                "allowed": int(3.2 * GIB),
                "private_pools": 2 * GIB,
                "processes": ((507, int(137.19 * GIB)), (508, 512)),
            },
        ),
        (T212, {"requested": int(2.5 * GIB), "device": 0}),
        (ASYNC, {"requested": 9 * GIB, "device": 0, "allocated": 3 * GIB, "free": 5 * GIB, "allowed": None}),
        ("Out of memory allocating 549,755,813,888 bytes (allocated so far: 512 bytes).", {"requested": 549755813888}),
        (
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 256.00GiB with allocator GPU_0_bfc on device 0.",
            {"requested": 256 * GIB, "device": 0},
        ),
        (
            "RESOURCE_EXHAUSTED: Failed to allocate request for 2.00GiB (2147483648B) on device ordinal 1",
            {"requested": 2 * GIB, "device": 1},
        ),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 512 bytes.", {"requested": 512}),
        (
            "[enforce fail at alloc_cpu.cpp:114] . DefaultCPUAllocator: can't allocate memory: you tried to allocate "
            "70368744177664 bytes.",
            {"requested": 70368744177664},
        ),
        ("Unable to allocate 1.00 GiB for an array with shape (1,) and data type uint8", {"requested": GIB}),
        (
            "Out of memory allocating 1,024 bytes (allocated so far: 2,048 bytes, limit set to: 4,096 bytes).",
            {"requested": 1024, "allocated": 2048, "allowed": 4096},
        ),
        ("Unable to allocate 1.00 PiB for an array with shape (1,) and data type uint8", {"requested": None}),
        ("CUDA out of memory. Tried to allocate more than 1EB memory.", {"requested": None}),
        ("CUDA out of memory. Tried to allocate 17179869184.00 GiB", {"requested": None}),
        ("Tried to allocate 3 apples", {"requested": None}),
    ],
)
def test_every_wording(text, wanted):
    """Each field is what the message says; nonsense and what is not there is None."""
    sizes = parse(text)
    assert {name: getattr(sizes, name) for name in wanted} == wanted


def test_the_practice_card_writes_what_the_parser_reads(practice):
    """The practice allocator's own message: request, device, capacity and limits come back."""
    practice.gpu.limit("2 GiB")
    practice.gpu.other_process("3 GiB", pid=77)
    with pytest.raises(RuntimeError) as info:
        practice.gpu.empty("4 GiB")
    sizes = parse(str(info.value))
    assert sizes.requested == 4 * GIB
    assert sizes.device == 0
    assert sizes.processes == ((77, 3 * GIB),)
    assert sizes.allowed == 2 * GIB
