"""The sizes that an out-of-memory message tells, for every wording of torch 1.13 to 2.15 and of other libraries.

Sources: c10/cuda/CUDACachingAllocator.cpp and CUDAMallocAsyncAllocator.cpp of those releases; CuPy's
cupy/cuda/memory.pyx; XLA's bfc_allocator.cc; numpy's _core/_exceptions.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["Sizes", "parse"]

_UNITS = {"": 1, "b": 1, "byte": 1, "bytes": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_UNITS |= {"kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40, "pib": 1 << 50, "eib": 1 << 60}
LARGEST = 1 << 50
"""Bytes above which a size is nonsense: 1 PiB. cudaMallocAsync prints 17179869184.00 GiB for "no limit"."""

_SIZE = r"([0-9][0-9,]*(?:\.[0-9]*)?)\s*([KMGTPE]i?B|bytes?|B)\b"
_COUNT = r"([0-9]+)()\b"
"""A size without a unit: bytes."""
_PROCESS = re.compile(rf"Process ([0-9]+) has {_SIZE} memory in use")

PATTERNS: tuple[tuple[str, str], ...] = (
    # (field of Sizes, the words around the size, which {} marks; {n} one without a unit)
    ("requested", r"[Tt]ried to allocate {}"),  # torch 1.13 to 2.15
    ("requested", r"Requested size: {}"),  # torch 2.12: rejected beforehand
    ("requested", r"Requested\s*: {}"),  # cudaMallocAsync
    ("requested", r"[Oo]ut of memory (?:allocating|to allocate) {}"),  # CuPy; "to allocate" until 6
    ("requested", r"trying to allocate {}"),  # JAX
    ("requested", r"allocate request for {}"),  # JAX, XLA
    ("requested", r"Unable to allocate {}"),  # numpy
    ("requested", r"you tried to allocate {}"),  # torch's DefaultCPUAllocator
    ("requested", r"unable to mmap {}"),  # torch, safetensors
    ("requested", r"\(failed to allocate {}\)"),  # RMM
    ("requested", r"Cannot allocate {} ?memory on GPU"),  # Paddle
    ("requested", r"size {} \(cudaMalloc"),  # Faiss
    ("requested", r"cudaMalloc {} on device"),  # Faiss
    ("requested", r"requested buffer of size {n}"),  # ONNX Runtime
    ("requested", r"Failed to allocate {} on device"),  # Warp
    ("requested", r"failed on device: cuda\S* for {}"),  # Warp
    ("requested", r"Requested {}; Free"),  # CatBoost
    ("capacity", r"total capac(?:i)?ty of {}"),  # torch 2.2 on; "capacty" in 2.1
    ("capacity", r"; {} total capacity"),  # torch 1.13, 2.0
    ("capacity", r"Device limit\s*: {}"),  # cudaMallocAsync
    ("free", r"of which {} is free"),  # torch 2.1 on
    ("free", r"already allocated; {} free"),  # torch 1.13, 2.0
    ("free", r"Free \(according to CUDA\)\s*: {}"),  # cudaMallocAsync
    ("free", r"available memory is only {}"),  # Paddle
    ("free", r"; Free {}"),  # CatBoost
    ("own", r"this process has {} memory in use"),  # torch 2.1 on
    ("allowed", r"\. {} allowed; "),  # torch 2.1 on, with a per-process fraction
    ("allowed", r"user-supplied memory fraction\)\s*: {}"),  # cudaMallocAsync
    ("allowed", r"limit set to:? {}"),  # CuPy
    ("allocated", r"allocated memory {} is allocated by PyTorch"),  # torch 2.1 on
    ("allocated", r"total capacity; {} already allocated"),  # torch 1.13, 2.0
    ("allocated", r"Currently allocated\s*: {}"),  # cudaMallocAsync
    ("allocated", r"allocated so far: {}"),  # CuPy
    ("allocated", r"on GPU [0-9]+, {} memory has been allocated"),  # Paddle
    ("private_pools", r"with {} allocated in private pools"),  # torch 2.4 on
    ("unallocated", r"and {} is reserved by PyTorch but unallocated"),  # torch 2.1 on
    ("reserved", r"free; {} reserved in total by PyTorch"),  # torch 1.13, 2.0
)
_COMPILED = tuple((name, re.compile(pattern.replace("{}", _SIZE).replace("{n}", _COUNT))) for name, pattern in PATTERNS)
_DEVICE = (
    re.compile(r"\bGPU (?!_)([0-9]+)\b"),  # torch, Paddle
    re.compile(r"[Dd]evice (?:ordinal )?([0-9]+)\b"),  # cudaMallocAsync, JAX
    re.compile(r"\bGPU[:=]([0-9]+)\b"),  # TensorFlow, ONNX Runtime
    re.compile(r"\bdev ([0-9]+) space\b"),  # Faiss
    re.compile(r"'cuda:([0-9]+)'"),  # Warp
)


@dataclass(frozen=True)
class Sizes:
    """What the message says, in bytes; None where it says nothing, or nonsense.

    `precision` is the size of the last digit of `requested`: ``2.00 GiB`` may be 5 MiB more.
    """

    requested: int | None = None
    precision: int = 0
    device: int | None = None
    capacity: int | None = None
    free: int | None = None
    own: int | None = None
    allowed: int | None = None
    allocated: int | None = None
    unallocated: int | None = None
    reserved: int | None = None
    private_pools: int | None = None
    processes: tuple[tuple[int, int], ...] = field(default=())
    """(pid, bytes) of the processes that torch names: all others, or in a container perhaps this one among them."""
    beyond: bool = False
    """Whether more was asked than any card has: a negative size, or a mistake in a shape."""


def _bytes(number: str, unit: str) -> tuple[int, int] | None:
    """(bytes, size of the last digit), None for nonsense."""
    scale = _UNITS[unit.lower()]
    digits = number.replace(",", "")
    size = int(float(digits) * scale)
    decimals = len(digits.partition(".")[2])
    return (size, scale // 10**decimals) if 0 <= size < LARGEST else None


def parse(text: str) -> Sizes:
    """The sizes in `text`. Nothing is guessed: what is not there, or cannot be true, is None."""
    found: dict[str, int] = {}
    precision = 0
    beyond = "more than 1EB" in text
    for name, pattern in _COMPILED:
        if name in found:
            continue
        match = pattern.search(text)
        size = _bytes(match[1], match[2]) if match else None
        if size is None:
            beyond |= match is not None and name == "requested"
            continue
        found[name] = size[0]
        if name == "requested":
            precision = size[1]
    if beyond:
        found.pop("requested", None)
    device = next((int(m[1]) for m in (p.search(text) for p in _DEVICE) if m), None)
    told = {int(match[1]): _bytes(match[2], match[3]) for match in _PROCESS.finditer(text)}
    processes = tuple((pid, size[0]) for pid, size in told.items() if size is not None)
    if found.get("capacity") == 0:
        del found["capacity"]
    if "capacity" in found and found.get("free", 0) > found["capacity"]:
        del found["free"]
    return Sizes(precision=precision, device=device, processes=processes, beyond=beyond, **found)
