"""What the rescue may ask of the ops of torch: repeat at the call, page, say what is parked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ...allocator import Paged
from .. import safety, scan
from ..named import named
from . import neighbour
from .operands import storages
from .pager import Figures, Pager
from .retry import Problem, Rescue, Retry
from .session import Session, existing, session

__all__ = ["Control"]


class _Alone:
    """Makes room by the pager, when no statement is guarded any more and something is still parked."""

    def __init__(self, torch: Any, pager: Pager) -> None:
        self._error, self._pager = torch.OutOfMemoryError, pager

    def judge(self, error: BaseException) -> Any:
        return error if isinstance(error, self._error) else None

    def make_room(self, problem: Problem) -> bool:
        amount = max(self._pager.limit // 32, 1) << min(problem.tries, 5)
        made = problem.tries < 12 and self._pager.leave(amount) > 0
        self._pager.store.errors += made
        return made

    def less_workspace(self, op: str, errors: int) -> None:
        self._pager.store.errors += errors


class Control:
    """The session of this process, for one guard.

    Parameters
    ----------
    torch
        The imported torch.
    limit
        Bytes that this process may take of a device.
    candidates
        Storages of a device that may be parked; None: what the garbage collector reaches, by the table of `safety`.
    errors
        Counts out-of-memory errors so far; None: the allocator's own count.
    """

    def __init__(
        self,
        torch: Any,
        limit: Callable[[int], int],
        *,
        candidates: Callable[[int], Iterable[Any]] | None = None,
        used: Session | None = None,
        figures: Callable[[int], Any] | None = None,
        kind: str = "cuda",
        errors: Callable[[], int] | None = None,
    ) -> None:
        self.torch, self._limit, self._kind = torch, limit, kind
        self._candidates = candidates or self._reached
        self._given = used
        self._figures = figures or self._read
        self._errors = errors or self._ooms

    @property
    def session(self) -> Session:
        return self._given or session(self.torch)

    def _existing(self) -> Session | None:
        return self._given or existing()

    def _read(self, device: int) -> Figures:
        return Figures(self.torch, device, lambda: self._limit(device))

    def _reached(self, device: int) -> Iterator[Any]:
        ranges = [
            (s["address"], s["address"] + s["total_size"])
            for s in self.torch.cuda.memory_snapshot()
            if s["device"] == device and tuple(s.get("segment_pool_id", (0, 0))) != (0, 0)
        ]
        for found in scan.storages(self.torch, device, doing=safety.PARK):
            if not found.reason and not any(a <= found.address < b for a, b in ranges):
                yield found.handle

    def _alone(self, pager: Pager) -> Retry:
        return Retry(self.torch, _Alone(self.torch, pager), self._errors)

    def _ooms(self) -> int:
        cuda = self.torch.cuda
        if not cuda.is_initialized():
            return 0
        used = self.torch._C._cuda_hasPrimaryContext
        read = self.torch._C._cuda_memoryStats
        return sum(int(read(i)["num_ooms"]) for i in range(cuda.device_count()) if used(i))

    # -- repeat at the call
    def retry_refused(self) -> str:
        """Why ops are not repeated at the call now, or an empty string."""
        if self._kind == "cuda" and self.torch.cuda.is_initialized() and self.torch.cuda.is_current_stream_capturing():
            return "a CUDA graph is being captured"
        return safety.compiled()

    @contextmanager
    def at_call(self, rescue: Rescue) -> Iterator[None]:
        """Ops are watched inside; those that run out of memory are repeated where that is the same."""
        with self.session.watched() as watcher:
            before, watcher.retry = watcher.retry, Retry(self.torch, rescue, self._errors)
            if watcher.pager is not None:
                watcher.pager.anew()
            try:
                yield
            finally:
                watcher.retry = self._alone(watcher.pager) if watcher.pager else before

    # -- page
    def page_refused(self, device: int) -> str:
        """Why nothing of `device` may be paged now, or an empty string."""
        if self._kind != "cuda":
            return ""
        if not self.torch.cuda.is_initialized():
            return "CUDA is not started"
        return safety.refusals(self.torch, device, doing=safety.PARK)

    def start_paging(self, device: int, *, place: str | None = None) -> int:
        """From now on storages of `device` leave when an op finds no room; how many bytes may. Inside `at_call`.

        Raises
        ------
        Refused
            If there is no `place` of that name.
        """
        there = None if place is None else neighbour.place(self.torch, place, device)
        found = self.session
        found.store.elsewhere, found.place = there, place or "the host"
        index = None if self._kind == "cpu" else device
        pager = Pager(found.store, (self._kind, index), self._figures(device), stop=self._stop, **self._options())
        pager.follow(self._candidates(device))
        found.watcher.pager = pager
        return sum(e.nbytes for e in found.store.followed.values()) + found.store.nbytes

    def _options(self) -> dict[str, int]:
        return {} if self._kind == "cuda" else {"least": 1024, "spare": 0}

    def _stop(self) -> str:
        found = safety.consumers()
        return f"{found[0]} was loaded and may reach a tensor past torch's dispatcher" if found else ""

    @contextmanager
    def paging(self, device: int, *, place: str | None = None) -> Iterator[None]:
        """Paging for one statement, whoever repeats its ops."""
        with self.session.watched() as watcher:
            self.start_paging(device, place=place)
            assert watcher.pager is not None
            if watcher.retry is None:
                watcher.retry = self._alone(watcher.pager)
            yield

    def paged_now(self, device: int) -> bool:
        """Whether tensors of any device are being paged: one at a time."""
        found = self._existing()
        return found is not None and found.watcher.pager is not None

    def leave(self, device: int, nbytes: int) -> int:
        """Send storages away until so many bytes are free; how many were. 0 where nothing is paged."""
        found = self._existing()
        pager = found.watcher.pager if found is not None else None
        if pager is None or pager.device[1] not in (device, None):
            return 0
        return pager.leave(nbytes)

    def paged(self) -> Paged | None:
        """What was paged since paging began; None where it did not."""
        found = self._existing()
        pager = found.watcher.last if found is not None else None
        if pager is None or found is None:
            return None
        store = found.store
        return Paged(
            store.out_bytes - pager.out_before,
            store.in_bytes - pager.in_before,
            pager.evictions,
            pager.faults,
            pager.ahead,
            pager.refused,
            found.place,
        )

    # -- what stays
    def parked(self, namespace: Mapping[str, Any]) -> tuple[int, list[str]]:
        """Bytes parked now, and the names under which the namespace reaches them."""
        found = self._existing()
        if found is None or not found.store.away:
            return 0, []
        away, names = found.store.away, []
        for name, value in list(namespace.items()):
            if type(name) is str and not name.startswith("_"):
                for label, tensor in named(self.torch, name, value):
                    if any(s._cdata in away for s in storages(self.torch, [tensor])):
                        names.append(label)
        return found.store.nbytes, names
