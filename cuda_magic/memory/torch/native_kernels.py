"""Native code in this process that may start kernels past torch's dispatcher: it would meet a parked tensor."""

from __future__ import annotations

import mmap
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["extension", "triton_kernel"]

_MARKS = (b"__cudaRegisterFatBinary", b"libc10_cuda.so", b"libcudart.so", b"cuLaunchKernel")
"""A library with kernels of its own, or one linked with torch's CUDA half."""
_KNOWN = ("torch", "torchvision", "torchaudio", "triton", "nvidia", "cuda_magic")
"""Packages whose kernels are reached through the dispatcher, or which have none."""


def triton_kernel(kernels: list[Any]) -> str:
    """The name of the first Triton kernel that is not torch's or Triton's own; empty where there is none."""
    for kernel in kernels:
        function = getattr(kernel, "fn", None)
        module = str(getattr(function, "__module__", ""))
        if module.split(".", 1)[0] not in ("torch", "triton"):
            return str(getattr(function, "__name__", "of this process"))
    return ""


def extension(torch: Any) -> str:
    """The name of the first loaded library outside of torch that may launch kernels; empty where there is none."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    site = Path(torch.__file__).resolve().parents[1]
    for path in sorted({line.split(maxsplit=5)[5] for line in lines if ".so" in line and "/" in line}):
        try:
            inside = Path(path).relative_to(site).parts
        except ValueError:
            continue  # the driver's and the system's own libraries
        if inside[0] not in _KNOWN and not inside[0].startswith("nvidia") and _launches(path):
            return inside[0]
    return ""


@cache
def _launches(path: str) -> bool:
    """Whether the file has a mark of kernels in it; read once."""
    try:
        with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return any(content.find(mark) >= 0 for mark in _MARKS)
    except (OSError, ValueError):
        return False
