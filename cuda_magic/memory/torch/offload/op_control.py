"""What the rescue may ask of the ops of torch: repeat at the call, say what is parked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .. import safety
from ..named import named
from .op_retry import Rescue, Retry
from .operands import storages
from .session import Session, existing, session

__all__ = ["OpControl"]


class OpControl:
    """The session of this process, for one guard.

    Parameters
    ----------
    torch
        The imported torch.
    errors
        Counts out-of-memory errors so far; None: the allocator's own count.
    """

    def __init__(
        self,
        torch: Any,
        *,
        used: Session | None = None,
        kind: str = "cuda",
        errors: Callable[[], int] | None = None,
    ) -> None:
        self.torch, self._kind = torch, kind
        self._given = used
        self._errors = errors or self._ooms

    @property
    def session(self) -> Session:
        return self._given or session(self.torch)

    def _existing(self) -> Session | None:
        return self._given or existing()

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
            try:
                yield
            finally:
                watcher.retry = before

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
