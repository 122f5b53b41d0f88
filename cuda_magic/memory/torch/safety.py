"""What forbids moving or parking live storages, as a table: a raw pointer may be remembered where no scan sees it.

Moving (compaction) gives a storage another address; parking (spill) takes its memory away for a while;
saving keeps on the host what autograd saves. Rows about the whole process stand in `PROCESS`, rows about one storage
in `STORAGE`. Each says what it forbids, and what was seen to break.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from . import native_kernels, offload, threads
from .gc_objects import reach, referents

__all__ = [
    "MOVE",
    "PARK",
    "PROCESS",
    "SAVE",
    "STORAGE",
    "Found",
    "Row",
    "compiled",
    "consumers",
    "foreign",
    "graphs_alive",
    "refusals",
    "storage",
    "viewed",
]

MOVE, PARK, SAVE = "move", "park", "save"
BOTH = frozenset({MOVE, PARK})
ALL = BOTH | {SAVE}
CONSUMERS = ("cupy", "jax", "numba.cuda", "cudf", "tensorflow", "warp", "paddle")


@dataclass
class _Process:
    """What the rows about the process look at. One pass over the collector's objects serves them all."""

    torch: Any
    device: int
    doing: str
    found: dict[str, list[Any]] | None = field(default=None, repr=False)

    def alive(self, name: str) -> list[Any]:
        """Objects of a watched kind that the garbage collector knows."""
        if self.found is None:
            self.found = reach(self.torch)[1]
        return self.found.get(name, [])


@dataclass(frozen=True)
class Row:
    """One thing that forbids.

    `look` gives the reason in one clause, or an empty string; its argument is a `_Process` or (torch, storage handle).
    """

    id: str
    forbids: frozenset[str]
    breaks: str
    """What goes wrong otherwise, and how that is known."""
    look: Callable[..., str]


# -- the process


def _backend(p: _Process) -> str:
    read = getattr(p.torch.cuda, "get_allocator_backend", None)  # since torch 2.0
    name = read() if read is not None else "native"
    return "" if name == "native" else f"the allocator is {name}, whose addresses cannot be planned"


def _capturing(p: _Process) -> str:
    return "a CUDA graph is being captured" if p.torch.cuda.is_current_stream_capturing() else ""


def _graph(p: _Process) -> str:
    return "a captured CUDA graph remembers the addresses of its tensors" if p.alive("graph") else ""


def _ranks(p: _Process) -> str:
    distributed = getattr(p.torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return ""
    ranks = distributed.get_world_size()
    return f"{ranks} ranks may have registered buffers with each other" if ranks > 1 else ""


def _views(p: _Process) -> str:
    for name in ("cupy", "numba"):
        if any(_looked_at(p.torch, view) is None for view in p.alive(name)):
            return f"{name} holds the address of memory that it does not own"
    return ""


def _looked_at(torch: Any, view: Any) -> Any:
    """The tensor that a foreign view names as its owner: that one alone is left in place. None where it names none."""
    return next((o for o in referents(view) if issubclass(type(o), torch.Tensor)), None)


def viewed(torch: Any, others: dict[str, list[Any]]) -> frozenset[int]:
    """Keys of the storages that cupy or numba look at."""
    tensors = (_looked_at(torch, view) for name in ("cupy", "numba") for view in others.get(name, ()))
    return frozenset(torch._C.TensorBase.untyped_storage(t)._cdata for t in tensors if t is not None)


def consumers() -> list[str]:
    """Loaded libraries that can take a tensor's memory through DLPack and then remember its address."""
    return [name for name in CONSUMERS if name in sys.modules]


def _consumers(p: _Process) -> str:
    found = consumers()
    return f"{found[0]} is loaded and may reach a tensor past torch's dispatcher" if found else ""


def _threads(p: _Process) -> str:
    name = threads.using_cuda()
    return f"another thread ({name}) may use CUDA meanwhile" if name else ""


def compiled() -> str:
    """Why no op of compiled code is seen, or an empty string where nothing was compiled."""
    utils = sys.modules.get("torch._dynamo.utils")
    graphs = utils is not None and utils.counters.get("stats", {}).get("unique_graphs", 0)
    return "compiled code starts kernels past torch's dispatcher" if graphs else ""


def _compiled(p: _Process) -> str:
    reason = compiled()
    if reason and p.doing == SAVE:
        return "torch.compile is in use: its backward pass takes all that was saved at once"
    return reason


def _saving(p: _Process) -> str:
    return "what autograd saves is being copied to the host" if offload.saving() else ""


def _triton(p: _Process) -> str:
    found = native_kernels.triton_kernel(p.alive("triton"))
    return f"the Triton kernel {found} is started past torch's dispatcher" if found else ""


def _native(p: _Process) -> str:
    found = native_kernels.extension(p.torch)
    return f"{found} may start kernels past torch's dispatcher" if found else ""


PROCESS = (
    Row("backend", BOTH, "addresses of cudaMallocAsync and of plugged-in allocators cannot be planned", _backend),
    Row("capturing", ALL, "CUDA refuses a synchronising call while a graph is captured", _capturing),
    Row("graph", ALL, "a graph's static input that was moved is read at its old place: silently wrong (H200)",
        _graph),
    Row("ranks", ALL, "buffers registered with NCCL by other ranks; a DDP step of one and of two ranks was"
        " bitwise the same (H200)", _ranks),
    Row("views", BOTH, "cupy.asarray and numba's as_cuda_array keep the address (H200)", _views),
    Row("threads", BOTH, "it may allocate between two steps of the plan, or start a kernel",
        _threads),
    Row("consumers", frozenset({PARK}), "a new view of a parked tensor has no memory behind it", _consumers),
    Row("compiled", frozenset({PARK, SAVE}), "a kernel on an emptied storage loses the context; saving:"
        " 512 to 417 MiB by default, 128 to 416 with reduce-overhead (H200)", _compiled),
    Row("saving", frozenset({PARK}), "a copy under way would read memory given away (reasoned)", _saving),
    Row("triton", frozenset({PARK}), "a kernel on an emptied storage loses the context (H200)", _triton),
    Row("native", frozenset({PARK}), "a kernel on an emptied storage loses the context (H200)", _native),
)  # fmt: skip
"""Tried in this order. Pending work is no row: the device is waited for before anything moves."""


def refusals(
    torch: Any,
    device: int,
    *,
    doing: str = MOVE,
    reached: dict[str, list[Any]] | None = None,
) -> str:
    """One clause why no storage of `device` may be moved (or parked) now, or an empty string.

    `reached` is what `reach` gave, where it is at hand.
    """
    process = _Process(torch, device, doing, reached)
    for row in PROCESS:
        if doing in row.forbids:
            reason = row.look(process)
            if reason:
                return reason
    return ""


def graphs_alive(torch: Any) -> bool:
    """Whether a captured CUDA graph exists: it replays with the addresses of its capture."""
    return bool(_Process(torch, 0, MOVE).alive("graph"))


# -- one storage


class Found(NamedTuple):
    """One storage as the scan met it. `tensor` is one of its tensors."""

    torch: Any
    handle: Any
    tensor: Any
    consumers: bool
    """Whether a library that takes tensors by DLPack is loaded."""
    viewed: frozenset[int]
    """Keys of storages that cupy or numba look at."""


def foreign(torch: Any, handle: Any) -> bool:
    """Whether a storage's memory is not the caching allocator's alone; True where torch does not tell."""
    standard = getattr(torch._C, "_has_Standard_Deleter", None)
    return standard is None or not standard(handle._cdata)


def _deleter(f: Found) -> str:
    if getattr(f.torch._C, "_has_Standard_Deleter", None) is None:
        return "this torch does not tell who frees a storage"
    if not foreign(f.torch, f.handle):
        return ""
    return "its memory is not the caching allocator's alone (CUDA IPC, DLPack, or allocated uncached)"


def _fixed_size(f: Found) -> str:
    return "" if f.handle.resizable() else "its storage cannot be resized"


def _exported(f: Found) -> str:
    # an export by DLPack holds the tensor itself once more; the storage's own count does not show it
    if f.consumers and f.tensor._use_count() > 1:
        return "another library may remember its address (DLPack)"
    return ""


def _viewed(f: Found) -> str:
    return "cupy or numba look at its memory" if f.handle._cdata in f.viewed else ""


STORAGE = (
    Row("deleter", BOTH, "the receiver of an IPC handle keeps the old memory (reasoned; while it stays it sees"
        " what is written: H200); memory made with caching off, imported by DLPack or shared copy-on-write is not in"
        " the plan", _deleter),
    Row("resizable", BOTH, "torch refuses to resize it (H200: a tensor made from a cupy array)", _fixed_size),
    Row("exported", BOTH, "the consumer reads the old place: JAX and CuPy miss what is written (H200)",
        _exported),
    Row("viewed", BOTH, "the other library reads the old place: CuPy and Numba miss what is written (H200)",
        _viewed),
)  # fmt: skip
"""Blocks of a CUDA graph's pool or a MemPool are left out by their segment's pool id: a move would take them out."""


def storage(found: Found, *, doing: str = MOVE) -> str:
    """One clause why this storage may not be moved (or parked), or an empty string."""
    for row in STORAGE:
        if doing in row.forbids:
            reason = row.look(found)
            if reason:
                return reason
    return ""
