"""Runs in a child process, as a script: starts CUDA there and prints what happened, one JSON object a line.

Uses nothing of cuda_magic: ``python -I child.py [full PATHS]``, PATHS a JSON list of folders to import torch from.
Each step is told before it is begun and its answer as soon as it is known, so that a child that hangs or dies has told
how far it came.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

# CUdevice_attribute in cuda.h
ATTRIBUTES = {
    "integrated": 18,
    "compute_mode": 20,
    "bus": 33,
    "slot": 34,
    "domain": 50,
    "major": 75,
    "minor": 76,
}
LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


_out = 1


def quiet() -> None:
    """Keep the way to the parent to ourselves: what a library prints goes to stderr."""
    global _out
    _out = os.dup(1)
    os.dup2(2, 1)


def tell(**fields: Any) -> None:
    os.write(_out, (json.dumps(fields) + "\n").encode())


def text(cuda: Any, code: int) -> str | None:
    """The driver's own name of `code`."""
    name = ctypes.c_char_p()
    try:
        if cuda.cuGetErrorName(code, ctypes.byref(name)) == 0 and name.value:
            return name.value.decode("ascii", "replace")
    except AttributeError:
        pass
    return None


def integer(function: Any, *arguments: Any) -> int | None:
    value = ctypes.c_int()
    return value.value if function(ctypes.byref(value), *arguments) == 0 else None


def device(cuda: Any, index: int) -> dict[str, Any]:
    """What the driver says of one device without a context on it."""
    handle = ctypes.c_int()
    code = cuda.cuDeviceGet(ctypes.byref(handle), index)
    if code:
        return {"index": index, "error": code}
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGetName(name, 256, handle)
    total = ctypes.c_size_t()
    found = {key: integer(cuda.cuDeviceGetAttribute, number, handle) for key, number in ATTRIBUTES.items()}
    known = cuda.cuDeviceTotalMem_v2(ctypes.byref(total), handle) == 0
    return {
        "index": index,
        "name": name.value.decode("utf-8", "replace"),
        "total": total.value if known else None,
        **found,
    }


def no_peers(cuda: Any, count: int) -> list[list[int]]:
    """Pairs of devices that cannot reach each other's memory (cuDeviceCanAccessPeer)."""
    pairs = []
    for a in range(count):
        for b in range(a + 1, count):
            if integer(cuda.cuDeviceCanAccessPeer, a, b) == 0:
                pairs.append([a, b])
    return pairs


def start() -> Any:
    """cuInit and what follows without a context; the library where it started with devices, else None."""
    tell(step="load")
    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError as error:
        tell(load_error=str(error))
        return None
    tell(loaded=True)
    version = integer(cuda.cuDriverGetVersion)
    tell(driver_api=version or None)
    tell(step="init")
    code = cuda.cuInit(0)
    tell(code=code, name=text(cuda, code))
    if code:
        return None
    tell(step="devices")
    count = integer(cuda.cuDeviceGetCount)
    tell(device_count=count)
    count = count or 0
    tell(devices=[device(cuda, i) for i in range(count)])
    try:
        if count > 1:
            tell(no_peers=no_peers(cuda, min(count, 16)))
    except AttributeError:
        pass
    return cuda if count else None


def allocate_by_driver(cuda: Any, index: int) -> dict[str, Any]:
    """A context and one MiB on one device, by the driver alone."""
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    code = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), index)
    if code == 0:
        cuda.cuCtxSetCurrent(context)
        code = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 20))
        if code == 0:
            cuda.cuMemFree_v2(pointer)
        cuda.cuDevicePrimaryCtxRelease_v2(index)
    return {"index": index, "by": "driver", "ok": code == 0, "code": code or None, "error": text(cuda, code) or ""}


def allocate_by_torch(torch: Any, index: int) -> dict[str, Any]:
    """The first tensor on one device, by torch."""
    try:
        torch.zeros(1, device=f"cuda:{index}").cpu()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        lines = str(error).strip().splitlines()
        code = getattr(error, "error_code", None)
        return {"index": index, "by": "torch", "ok": False, "code": code, "error": lines[0] if lines else repr(error)}
    return {"index": index, "by": "torch", "ok": True, "code": None, "error": ""}


def main() -> None:
    quiet()
    try:
        cuda = start()
    except Exception as error:  # noqa: BLE001 - a library without the calls that it must have, say
        tell(failed=f"{type(error).__name__}: {error}".splitlines()[0])
        return
    if "full" not in sys.argv[1:]:
        tell(step="done")
        return
    sys.path[:0] = [p for p in json.loads(sys.argv[2]) if p not in sys.path]
    tell(step="torch")
    try:
        import torch  # noqa: TID251 - a process of its own, which ends here
    except Exception as error:  # noqa: BLE001 - a broken torch is an answer too
        tell(torch_error=f"{type(error).__name__}: {error}".splitlines()[0])
        if cuda is not None:
            tell(step="allocate")
            count = integer(cuda.cuDeviceGetCount) or 0
            tell(allocations=[allocate_by_driver(cuda, i) for i in range(count)])
        tell(step="done")
        return
    import warnings

    flags = getattr(torch._C, "_cuda_getArchFlags", None)  # what the build has code for; needs no card
    tell(arch_list=((flags() or "") if flags is not None else "").split())
    tell(step="available")
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        tell(torch_available=bool(torch.cuda.is_available()))
        count = int(torch.cuda.device_count())
    tell(torch_device_count=count, torch_version=str(torch.__version__), torch_cuda=torch.version.cuda)
    tell(step="allocate")
    results = []
    for i in range(count):
        results.append(allocate_by_torch(torch, i))
        tell(allocations=results)
    tell(step="done")


if __name__ == "__main__":
    main()
