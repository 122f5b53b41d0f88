"""The Allocator protocol: the seam at which torch (memory/torch) and the practice GPU (testing) answer.

rescue/, the panel and the doctor know this protocol and never torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from ..allocation.handler import Room
    from .compaction.rules import Rules

__all__ = [
    "Allocator",
    "Block",
    "Ops",
    "Saved",
    "Segment",
    "Stats",
    "Storage",
    "Survey",
    "largest_free",
]


class Block(NamedTuple):
    """A piece of a segment, `size` in bytes.

    `state` is ``live``, ``pending`` (freed, still used by a stream) or ``free``.
    """

    address: int
    size: int
    state: str
    requested: int | None = None


@dataclass(frozen=True)
class Segment:
    """One cudaMalloc of the caching allocator, cut into blocks that cover it in order of address."""

    device: int
    address: int
    size: int
    blocks: tuple[Block, ...]
    pool: str = "large"
    """``small`` (requests up to 1 MiB) or ``large``."""
    stream: int = 0
    pool_id: tuple[int, int] = (0, 0)
    """(0, 0) the default pool; (n, 0) a CUDA graph's private pool; (0, n) a MemPool."""
    expandable: bool = False


@dataclass(frozen=True)
class Stats:
    """One device's counters, in bytes and counts since the process started."""

    allocated: int
    reserved: int
    peak_allocated: int = 0
    peak_reserved: int = 0
    ooms: int = 0
    retries: int = 0
    device_mallocs: int = 0
    private_pools: int = 0
    """Bytes reserved in pools of CUDA graphs and MemPools."""
    inactive_split: int = 0
    """Bytes free inside segments that also hold live blocks: what fragmentation may cost."""
    elsewhere: int = 0
    """Of `allocated` and `reserved`, bytes with no memory of the card behind them now: on the host, or in holes."""
    on_host: int = 0
    """Of these, on the host."""

    @property
    def cached(self) -> int:
        """Bytes reserved and not allocated."""
        return self.reserved - self.allocated


class Storage(NamedTuple):
    """One live storage on a device. `handle` is the allocator's own object, held only as long as this record is.

    `reason` is why it may not be moved, empty when it may. `address` is 0 where asking for it would change something.
    A tuple, since a heap has thousands; each is only equal to itself.
    """

    key: int
    device: int
    address: int
    nbytes: int
    handle: Any
    reason: str = ""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return id(self)


class Saved(NamedTuple):
    """What autograd keeps for the backward pass in one place of the graphs behind some tensors."""

    root: int
    """Index of the group of tensors that was asked for."""
    place: str
    """The module, as a user would write it; without one the operation."""
    storages: tuple[tuple[int, int, int], ...]
    """(device, storage, bytes); those of parameters are not among them."""
    graphs: int
    """How many graphs with the same parameters, and no operation in common, they keep: two and more are those
    of iterations."""


@dataclass(frozen=True, eq=False)
class Survey:
    """What a compaction starts from: read at one moment, with the device waited for and the cache given back.

    `refused` is why nothing may be moved; then the rest is empty. `free` is what the driver may still give, in bytes;
    `stream` is where the next request will be made. Segments of streams that may have ended are left out.
    """

    refused: str
    rules: Rules
    segments: tuple[Segment, ...] = ()
    storages: tuple[Storage, ...] = ()
    free: int = 0
    stream: int = 0


class Ops(Protocol):
    """What can be done around each op of the library. Nothing is parked unless ops are watched."""

    def retry_refused(self) -> str:
        """Why ops are not repeated at the call now, or an empty string."""
        ...

    def at_call(self, rescue: Any) -> AbstractContextManager[None]:
        """Ops that run out of memory inside are repeated, where that is the same, once `rescue` made room."""
        ...

    def parked(self, namespace: Mapping[str, Any]) -> tuple[int, list[str]]:
        """Bytes that are parked now, and names that reach them."""
        ...


class Allocator(Protocol):
    """What a rescue needs to know and to do. `device` is the process's own cuda index throughout.

    No method starts CUDA: where `started` is False, readings are empty and actions do nothing.
    """

    @property
    def name(self) -> str:
        """The library and its release: ``torch 2.11.0``."""
        ...

    @property
    def label(self) -> str:
        """``PRACTICE`` for the practice GPU, else empty."""
        ...

    def started(self) -> bool:
        """Whether this process has a CUDA context that the library uses."""
        ...

    def devices(self) -> tuple[int, ...]:
        """Indices of the devices in use by this process."""
        ...

    def stats(self, device: int) -> Stats: ...

    def ooms(self, device: int) -> int:
        """Out-of-memory errors raised so far, those that the user's code handled included. No CUDA call."""
        ...

    def segments(self, device: int) -> tuple[Segment, ...]: ...

    def driver_memory(self, device: int) -> tuple[int, int] | None:
        """(free, total) bytes as the driver sees the device; None where unknown. Raises where the context is lost."""
        ...

    def memory_limit(self, device: int) -> int | None:
        """Bytes this process may reserve (per-process fraction), None for no limit of its own."""
        ...

    def healthy(self, device: int) -> bool:
        """False when the context is lost (after a device-side assert, say)."""
        ...

    # -- giving back
    def empty_cache(self) -> None: ...

    def clear_workspaces(self) -> list[str]:
        """Clear cuBLAS workspaces, cuFFT plans and pools of other loaded libraries; names what was cleared."""
        ...

    def release_host(self, *, excess: bool = False) -> int:
        """Give back the host memory that parking kept for the next time; bytes. `excess`: only where it is much."""
        ...

    # -- room for a request that finds none
    def room(self) -> Room | str:
        """Makes room in the middle of a request; a string where requests cannot be met here: why."""
        ...

    # -- live storages and moving
    def storages(self, device: int, *, doing: str = "move") -> list[Storage]:
        """Every storage that the garbage collector can reach, each once, with why it may not be moved.

        `doing` is ``move`` or ``park``.
        """
        ...

    def owners(self, among: Iterable[Any] | None = None) -> Iterator[tuple[Any, int, int, int]]:
        """(object, device, storage key, bytes) for every reachable tensor: who holds what.

        With `among` only for the tensors in it, and their gradients; without, one walk of the heap.
        """
        ...

    def kind_of(self, value: Any) -> str:
        """``tensor``, ``graph`` for a tensor behind which autograd keeps one, ``module``, or empty."""
        ...

    def saved(self, groups: Sequence[Sequence[Any]], modules: Iterable[tuple[str, Any]]) -> list[Saved]:
        """What autograd keeps behind these tensors, those of one name together; (name, module) name the places."""
        ...

    def moving_refused(self, device: int, *, doing: str = "move") -> str:
        """Why nothing may be moved (or parked) now: a live CUDA graph, other threads, ...; or an empty string."""
        ...

    def rules(self) -> Rules:
        """The sizes that the allocator uses under its settings."""
        ...

    def survey(self, device: int) -> Survey:
        """What a compaction starts from. Waits for the device, empties the cache, moves nothing."""
        ...

    def move(self, storage: Storage, stream: int = 0) -> int:
        """Move to a new block of the same size on the same device; gives the new address."""
        ...

    def host_room(self) -> int:
        """Bytes that the host can keep for a while."""
        ...

    def copy_out(self, storage: Storage) -> Any:
        """A finished copy of the contents on the host; nothing else changes. Raises where the host cannot."""
        ...

    def let_go(self, storage: Storage) -> None:
        """Give the memory back, the contents are on the host; nothing may use the storage until `copy_in`."""
        ...

    def copy_in(self, storage: Storage, copy: Any, stream: int = 0) -> int:
        """Take memory again and bring the contents back; gives the address. Safe to call again where it failed."""
        ...

    def filler(self, device: int, nbytes: int, stream: int = 0) -> Any:
        """An allocation that only holds a place; dropped by deleting it."""
        ...

    def filler_address(self, filler: Any) -> int: ...

    # -- parking: contents in another place for a while
    def held_below(self, value: Any) -> int:
        """How many references the library itself may hold on an object of its own, from below Python."""
        ...

    def parts_below(self, value: Any) -> tuple[Any, ...]:
        """Objects that one of its objects leads to below Python: a tensor's gradient, the base of a view."""
        ...

    def unused(self, device: int, idle: Callable[[Any], bool]) -> tuple[list[tuple[Storage, Any]], dict[str, int]]:
        """Storages that only idle tensors reach and that may be parked, largest first, each with one of its tensors.

        The second are the bytes, by reason, of those that only idle tensors reach and that may not.
        """
        ...

    def park_room(self, device: int) -> int:
        """Bytes that the host can take from `device`."""
        ...

    def park(self, storages: Iterable[Storage]) -> int:
        """Empty these storages, their contents kept elsewhere; the bytes that are free now. Only inside `watched`.

        Raises
        ------
        Refused, RuntimeError
            If the host has no room or a copy fails. What left before stays parked, the rest is untouched.
        """
        ...

    def watched(self) -> AbstractContextManager[Any]:
        """Inside, what touches a parked storage brings it back first. All comes back behind it, if there is room."""
        ...

    def parked(self) -> int:
        """Bytes that wait elsewhere now."""
        ...

    def absorbed(self) -> int:
        """Out-of-memory errors that parking met so far and went on from; `ooms` has them too. No CUDA call."""
        ...

    def settle(self, ended: bool = False) -> int:
        """Bring back what still waits elsewhere, if there is room; bytes that still wait."""
        ...

    # -- what autograd saves
    def recorded(self, error: BaseException) -> str:
        """Why a failed attempt cannot be helped by moving what autograd saved; empty where it may. Keeps nothing."""
        ...

    def activations(self, device: int, request: int) -> Any:
        """Hooks, to be entered, that let what autograd saves wait on the host; None where there is no autograd.

        ``off()`` ends them, twice if need be; ``moved`` counts bytes ``out`` and ``in``, and errors ``ooms``;
        ``budget.keep`` is what may stay. `request` is the one that failed, in bytes.
        """
        ...

    # -- settings
    def expandable(self) -> bool | None:
        """Whether new segments are expandable now; None where this cannot be known."""
        ...

    def with_expandable(self) -> AbstractContextManager[None]:
        """Expandable segments on inside, other settings kept, put back on leaving."""
        ...

    def uncached(self) -> AbstractContextManager[None]:
        """The caching allocator bypassed inside (plain cudaMalloc)."""
        ...

    def ops(self) -> Ops | None:
        """What can be done around each op; None where the library has no such thing."""
        ...

    # -- random states, so that a repeated statement draws the same numbers
    def random_state(self) -> Any: ...

    def set_random_state(self, state: Any) -> None: ...


def largest_free(segments: Iterable[Segment]) -> int:
    """Bytes of the largest free block in ordinary pools, 0 when there is none."""
    return max((b.size for s in segments if s.pool_id == (0, 0) for b in s.blocks if b.state == "free"), default=0)
