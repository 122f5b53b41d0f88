"""torch's caching allocator behind the Allocator protocol. Nothing here starts CUDA: every method asks first."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..allocator import Ops, Saved, Segment, Stats, Storage, Survey
from ..compaction.rules import Rules
from . import autograd_trace, mover, offload, rng, safety, scan, settings, snapshot, workspaces

if TYPE_CHECKING:
    from ...allocation.handler import Room
    from .room import TorchRoom

__all__ = ["TorchAllocator"]


class TorchAllocator:
    """The Allocator protocol over the torch in ``sys.modules``."""

    label = ""

    def __init__(self) -> None:
        self.torch: Any = sys.modules["torch"]
        self._room: TorchRoom | None = None

    @property
    def name(self) -> str:
        return f"torch {self.torch.__version__}"

    # -- readings
    def started(self) -> bool:
        return bool(self.torch.cuda.is_initialized())

    def devices(self) -> tuple[int, ...]:
        if not self.started():
            return ()
        has_context = self.torch._C._cuda_hasPrimaryContext
        return tuple(i for i in range(self.torch.cuda.device_count()) if has_context(i))

    def uuids(self) -> list[str]:
        """The UUID of each cuda index, as this process's CUDA sees them; empty where this torch does not tell."""
        if not self.started():
            return []
        read = self.torch.cuda.get_device_properties  # uuid since torch 2.4
        return [str(getattr(read(i), "uuid", "")) for i in range(self.torch.cuda.device_count())]

    def _ready(self, device: int) -> bool:
        if not self.started() or not 0 <= device < self.torch.cuda.device_count():
            return False
        return bool(self.torch._C._cuda_hasPrimaryContext(device))

    def stats(self, device: int) -> Stats:
        # before CUDA starts torch gives {}; a pluggable allocator raises
        try:
            numbers = self.torch.cuda.memory_stats(device) if self._ready(device) else {}
        except RuntimeError:
            numbers = {}

        def read(key: str) -> int:
            return int(numbers.get(key, 0))

        return Stats(
            allocated=read("allocated_bytes.all.current"),
            reserved=read("reserved_bytes.all.current"),
            peak_allocated=read("allocated_bytes.all.peak"),
            peak_reserved=read("reserved_bytes.all.peak"),
            ooms=read("num_ooms"),
            retries=read("num_alloc_retries"),
            device_mallocs=read("num_device_alloc"),
            private_pools=self._private(device) if numbers else 0,
            inactive_split=read("inactive_split_bytes.all.current"),
            elsewhere=self._room.elsewhere(device) if self._room is not None else 0,
            on_host=self._room.on_host(device) if self._room is not None else 0,
        )

    def ooms(self, device: int) -> int:
        """Out-of-memory errors raised so far, those that the user's code handled included."""
        # read twice a guarded cell: torch's own function makes a sorted dict of 100 entries of it
        return int(self.torch._C._cuda_memoryStats(device)["num_ooms"]) if self._ready(device) else 0

    def reset_peak(self, device: int) -> None:
        """Let the peaks of `stats` start from now: ``torch.cuda.max_memory_allocated`` too."""
        if self._ready(device):
            try:
                self.torch.cuda.reset_peak_memory_stats(device)
            except RuntimeError:  # a pluggable allocator has none
                pass

    def dump(self, path: Path) -> int:
        """Write torch's own memory snapshot; gives the bytes written."""
        return snapshot.dump(self.torch, path)

    def _private(self, device: int) -> int:
        return sum(s.size for s in self.segments(device) if s.pool_id != (0, 0))

    def segments(self, device: int) -> tuple[Segment, ...]:
        if not self._ready(device):
            return ()
        try:
            raw_segments = snapshot.read(self.torch)["segments"]
        except RuntimeError:  # a pluggable allocator has none
            return ()
        return tuple(snapshot.segment(raw) for raw in raw_segments if raw["device"] == device)

    def driver_memory(self, device: int) -> tuple[int, int] | None:
        if not self._ready(device):
            return None
        free, total = self.torch.cuda.mem_get_info(device)
        return int(free), int(total)

    def memory_limit(self, device: int) -> int | None:
        read = getattr(self.torch.cuda, "get_per_process_memory_fraction", None)  # since torch 2.6
        if read is None or not self._ready(device):
            return None
        fraction = float(read(device))
        total = self.torch.cuda.get_device_properties(device).total_memory
        return int(fraction * total) if fraction < 1 else None

    def healthy(self, device: int) -> bool:
        if not self._ready(device):
            return True
        try:
            self.torch.cuda.synchronize(device)
        except RuntimeError:
            return False
        return True

    # -- giving back
    def empty_cache(self) -> None:
        if self.started():
            self.torch.cuda.empty_cache()

    def clear_workspaces(self) -> list[str]:
        return workspaces.clear(self.torch) if self.started() else []

    def release_host(self, *, excess: bool = False) -> int:
        return offload.release(excess)

    # -- room for a request that finds none
    def room(self) -> Room | str:
        from .room import TorchRoom, install, installed

        reason = install(self.torch)
        if reason:
            return reason
        here = installed()
        assert here is not None
        if self._room is None or self._room.here is not here:
            self._room = TorchRoom(here)
        return self._room

    # -- live storages and moving
    def storages(self, device: int, *, doing: str = "move") -> list[Storage]:
        return scan.storages(self.torch, device, doing=doing) if self._ready(device) else []

    def owners(self, among: Iterable[Any] | None = None) -> Iterator[tuple[Any, int, int, int]]:
        return scan.owners(self.torch, among)

    def kind_of(self, value: Any) -> str:
        return scan.kind_of(self.torch, value)

    def saved(self, groups: Sequence[Sequence[Any]], modules: Iterable[tuple[str, Any]]) -> list[Saved]:
        from . import graph

        return graph.saved(self.torch, groups, modules, self._on_card)

    def _on_card(self, tensor: Any) -> bool:
        return bool(tensor.is_cuda)

    def moving_refused(self, device: int, *, doing: str = "move") -> str:
        if not self._ready(device):
            return "CUDA is not started"
        return safety.refusals(self.torch, device, doing=doing)

    def rules(self) -> Rules:
        return settings.rules(self.torch)

    def survey(self, device: int) -> Survey:
        if not self._ready(device):
            return Survey("CUDA is not started", Rules())
        return mover.survey(self, device)

    def move(self, storage: Storage, stream: int = 0) -> int:
        with mover.current(self.torch, storage.device, stream):
            # resize_ to its own size takes a new block, copies on the current stream and frees the old block: a move
            storage.handle.resize_(storage.handle.nbytes())
        return int(storage.handle.data_ptr())

    def host_room(self) -> int:
        return mover.host_room(self.torch)

    def copy_out(self, storage: Storage) -> Any:
        return mover.copy_out(self.torch, storage)

    def let_go(self, storage: Storage) -> None:
        storage.handle.resize_(0)

    def copy_in(self, storage: Storage, copy: Any, stream: int = 0) -> int:
        return mover.copy_in(self.torch, storage, copy, stream)

    def filler(self, device: int, nbytes: int, stream: int = 0) -> Any:
        torch = self.torch
        with mover.current(torch, device, stream):
            return torch.empty(nbytes, dtype=torch.uint8, device=f"cuda:{device}")

    def filler_address(self, filler: Any) -> int:
        return int(filler.data_ptr())

    # -- parking
    def held_below(self, value: Any) -> int:
        from .offload.unreferenced import held_below

        return held_below(self.torch, value)

    def parts_below(self, value: Any) -> tuple[Any, ...]:
        from .offload.unreferenced import parts_below

        return parts_below(self.torch, value)

    def unused(self, device: int, idle: Callable[[Any], bool]) -> tuple[list[tuple[Storage, Any]], dict[str, int]]:
        from .offload.unreferenced import unused

        return unused(self.torch, device, idle) if self._ready(device) else ([], {})

    def park_room(self, device: int) -> int:
        from .offload.host_pool import shared

        return shared(self.torch).room()

    def park(self, storages: Iterable[Storage]) -> int:
        from .offload.session import session

        return session(self.torch).store.park(storage.handle for storage in storages)

    def watched(self) -> AbstractContextManager[Any]:
        from .offload.session import session

        return session(self.torch).watched()

    def parked(self) -> int:
        here = offload.session_if_any()
        pages = self._room.left() if self._room is not None else 0
        return pages + (here.store.nbytes if here is not None else 0)

    def absorbed(self) -> int:
        here = offload.session_if_any()
        return here.store.errors if here is not None else 0

    def settle(self, ended: bool = False) -> int:
        here = offload.session_if_any()
        pages = self._room.settle() if self._room is not None and self.started() else 0
        return pages + (here.settle(ended=ended) if here is not None else 0)

    # -- what autograd saves
    def recorded(self, error: BaseException) -> str:
        return autograd_trace.reason(self.torch, error)

    def activations(self, device: int, request: int) -> Any:
        limit, memory = self.memory_limit(device), self.driver_memory(device)
        if memory is None:
            return None
        free = memory[0] + self.stats(device).reserved
        return offload.hooks(self.torch, device, request, free if limit is None else min(limit, free))

    # -- settings
    def expandable(self) -> bool | None:
        return settings.expandable(self.torch) if self.started() else None

    def with_expandable(self) -> AbstractContextManager[None]:
        return settings.with_expandable(self.torch)

    def uncached(self) -> AbstractContextManager[None]:
        return settings.uncached(self.torch)

    def ops(self) -> Ops | None:
        modes = getattr(self.torch.utils, "_python_dispatch", None)
        if not hasattr(modes, "_disable_current_modes"):  # since torch 2.0
            return None
        from .offload.op_control import OpControl

        return OpControl(self.torch)

    # -- random states, so that a repeated statement draws the same numbers
    def random_state(self) -> Any:
        return rng.take(self.torch)

    def set_random_state(self, state: Any) -> None:
        rng.put_back(self.torch, state)
