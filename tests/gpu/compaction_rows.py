"""Child process: what may not be moved, one row a run, in the middle of a heap that compaction wants to pack.

Prints JSON: the reason, and whether it moved.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable

import torch
from capped import MIB, TOTAL, cap

from cuda_magic.memory.compaction import compact
from cuda_magic.memory.torch import allocator

KEPT: list[object] = []
READ: list[Callable[[], int]] = []
"""Gives the first byte of the middle as another library or process sees it."""


class Absent(Exception):
    """What this row needs is not there."""


def plain(tensor: torch.Tensor) -> None:
    """Nothing in the way."""


def dlpack(tensor: torch.Tensor) -> None:
    sys.modules.setdefault("jax", type(sys)("jax"))  # asked only where a consumer is loaded
    KEPT.append(torch.utils.dlpack.to_dlpack(tensor))


def jax(tensor: torch.Tensor) -> None:
    """An array of JAX's over the same memory."""
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    try:
        import jax
    except ImportError:
        raise Absent("jax is not installed") from None
    if jax.default_backend() != "gpu":
        raise Absent(f"this jax sees no card: {jax.default_backend()}")
    array = jax.dlpack.from_dlpack(tensor)
    KEPT.append(array)
    READ.append(lambda: int(array[0]))


def _cupy() -> object:
    try:
        import cupy
    except ImportError:
        raise Absent("cupy is not installed") from None
    return cupy


def cupy_dlpack(tensor: torch.Tensor) -> None:
    array = _cupy().from_dlpack(tensor)
    KEPT.append(array)
    READ.append(lambda: int(array[0]))


def cupy_view(tensor: torch.Tensor) -> None:
    array = _cupy().asarray(tensor)
    KEPT.append(array)
    READ.append(lambda: int(array[0]))


def numba_view(tensor: torch.Tensor) -> None:
    try:
        from numba import cuda
    except ImportError:
        raise Absent("numba is not installed") from None
    array = cuda.as_cuda_array(tensor)
    KEPT.append(array)
    READ.append(lambda: int(array[0]))


RECEIVER = """
import pickle, sys
rebuild, arguments = pickle.load(sys.stdin.buffer)
tensor = rebuild(*arguments)
for line in sys.stdin.buffer:
    print(int(tensor[0]), flush=True)
"""


def received(tensor: torch.Tensor) -> None:
    """The tensor is open in another process, by its IPC handle."""
    from torch.multiprocessing.reductions import reduce_tensor

    child = subprocess.Popen([sys.executable, "-c", RECEIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdin.write(pickle.dumps(reduce_tensor(tensor)))

    def read() -> int:
        child.stdin.write(b"\n")
        child.stdin.flush()
        return int(child.stdout.readline())

    KEPT.append(child)
    READ.append(read)
    assert read() == 20


def ipc(tensor: torch.Tensor) -> None:
    from torch.multiprocessing.reductions import reduce_tensor

    KEPT.append(reduce_tensor(tensor))


def cow(tensor: torch.Tensor) -> None:
    KEPT.append(torch._lazy_clone(tensor))


def graph(tensor: torch.Tensor) -> None:
    captured = torch.cuda.CUDAGraph()
    warm = torch.cuda.Stream()
    with torch.cuda.stream(warm):
        tensor[:8] + 1
    torch.cuda.synchronize()
    with torch.cuda.graph(captured):
        KEPT.append(tensor[:8] + 1)
    KEPT.append(captured)


def pool(tensor: torch.Tensor) -> None:
    mine = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(mine):
        inside = torch.full((16 * MIB,), 9, dtype=torch.uint8, device="cuda")
    KEPT.extend([mine, inside])


def uncached(tensor: torch.Tensor) -> None:
    torch.cuda.caching_allocator_enable(False)
    KEPT.append(torch.full((16 * MIB,), 9, dtype=torch.uint8, device="cuda"))
    torch.cuda.caching_allocator_enable(True)


def thread(tensor: torch.Tensor) -> None:
    stop, started = threading.Event(), threading.Event()

    def training() -> None:
        started.set()
        stop.wait()

    threading.Thread(target=training, name="training", daemon=True).start()
    started.wait()


def group(tensor: torch.Tensor) -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    torch.distributed.get_world_size = lambda *a: 2  # one process cannot be two ranks


def work(tensor: torch.Tensor) -> None:
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        torch.cuda._sleep(200_000_000)
        tensor.add_(1)
        tensor.sub_(1)
    tensor.record_stream(other)


def _seen(middle: torch.Tensor) -> bool | None:
    """Whether what is written to the middle now is what the other side reads; None without another side."""
    if not READ:
        return None
    middle.fill_(77)
    torch.cuda.synchronize()
    seen = READ[0]() == 77
    middle.fill_(20)
    torch.cuda.synchronize()
    return seen


def main(name: str) -> None:
    torch.cuda.init()
    whole = torch.empty(624 * MIB, dtype=torch.uint8, device="cuda")
    del whole
    blocks = [torch.empty(16 * MIB, dtype=torch.uint8, device="cuda") for _ in range(39)]
    for i, tensor in enumerate(blocks):
        tensor.fill_(i + 1)
    live = blocks[1::2]
    del blocks, tensor
    middle = live[9]
    try:
        globals()[name](middle)
    except Absent as absent:
        print(json.dumps({"row": name, "absent": str(absent)}))
        return
    cap(torch.cuda.memory_reserved())
    own = allocator()
    pools = {id(t): t.data_ptr() for t in KEPT if isinstance(t, torch.Tensor) and name != "cow"}
    before = {i: t.data_ptr() for i, t in enumerate(live) if name != "cow" or i != 9}
    refused = own.moving_refused(0)
    key = middle.untyped_storage()._cdata
    mine = [s for s in own.storages(0) if s.key == key]
    reason = mine[0].reason if mine else "not seen"
    del mine
    outcome = compact(own, 0, 300 * MIB)
    cap(TOTAL)
    figures: dict[str, object] = {
        "row": name,
        "refused": refused,
        "reason": reason,
        "done": outcome.done,
        "how": outcome.how,
        "said": outcome.reason,
        "middle moved": 9 in before and middle.data_ptr() != before[9],
        "moved": sum(live[i].data_ptr() != address for i, address in before.items()),
        "intact": all(bool((t == 2 * i + 2).all()) for i, t in enumerate(live)),
        "the others stayed": all(t.data_ptr() == pools[id(t)] for t in KEPT if id(t) in pools and t.numel() > 8),
        "the other side sees": _seen(middle),
    }
    print(json.dumps(figures))
    sys.stdout.flush()
    for child in KEPT:
        if isinstance(child, subprocess.Popen):
            child.stdin.close()
            child.wait(20)


if __name__ == "__main__":
    main(sys.argv[1])
