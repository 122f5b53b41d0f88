"""Ways past the mode to a tensor's memory, in Python: while anything may be parked, they are watched too.

``torch.save``, ``copy.deepcopy`` and pickling read a storage's bytes; Triton, CuPy and Numba ask a tensor for its
address. No op names the tensor then: it is brought back first.
A mode belongs to a thread: threads that are started meanwhile, and work given to a pool, get it as well.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from .store import Store

__all__ = ["AttributeHooks"]

METHODS = ("untyped_storage", "data_ptr", "__dlpack__", "__repr__", "tolist", "numpy")
"""Of ``torch.Tensor``; ``__cuda_array_interface__``, ``storage`` and ``_typed_storage`` come by them.
Printing runs its ops with all modes off. ``tolist`` and ``numpy`` read a CPU tensor's memory with no op."""


class AttributeHooks:
    """The doors of one store, watched between `watch` and `leave`. Both may be called again.

    Parameters
    ----------
    torch
        The imported torch.
    store
        What is parked.
    mode
        Makes the mode for another thread.
    """

    def __init__(
        self,
        torch: Any,
        store: Store,
        mode: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.torch, self.store, self._mode = torch, store, mode
        self._before: list[tuple[Any, str, Any]] = []

    def watch(self) -> None:
        """Put ourselves before the methods."""
        if self._before:
            return
        tensor = self.torch.Tensor
        for name in METHODS:
            self._put(tensor, name, self._through(getattr(tensor, name)))
        self._put(threading.Thread, "start", self._started(threading.Thread.start))
        pools = sys.modules.get("concurrent.futures.thread")
        if pools is not None:
            self._put(pools.ThreadPoolExecutor, "submit", self._submitted(pools.ThreadPoolExecutor.submit))

    def _put(self, owner: Any, name: str, new: Any) -> None:
        self._before.append((owner, name, owner.__dict__.get(name)))
        setattr(owner, name, new)

    def leave(self) -> None:
        """The methods as they were."""
        while self._before:
            owner, name, before = self._before.pop()
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    def _through(self, method: Any) -> Any:
        read = self.torch._C.TensorBase.untyped_storage

        @functools.wraps(method)
        def asked(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            store = self.store
            if store.away:
                try:
                    key = read(tensor)._cdata
                except (RuntimeError, NotImplementedError):
                    return method(tensor, *args, **kwargs)
                entry = store.away.get(key)
                if entry is not None:
                    store.bring_back([entry])
            return method(tensor, *args, **kwargs)

        return asked

    def _started(self, start: Any) -> Any:
        @functools.wraps(start)
        def started(thread: Any) -> Any:
            if self.store.lock._is_owned():  # type: ignore[attr-defined]  # the arena's own threads
                return start(thread)
            run = thread.run

            def watched() -> None:
                thread.__dict__.pop("run", None)
                with self._mode():
                    run()

            thread.run = watched
            return start(thread)

        return started

    def _submitted(self, submit: Any) -> Any:
        @functools.wraps(submit)
        def submitted(pool: Any, work: Any, /, *args: Any, **kwargs: Any) -> Any:
            if self.store.lock._is_owned():  # type: ignore[attr-defined]
                return submit(pool, work, *args, **kwargs)

            def watched(*args: Any, **kwargs: Any) -> Any:
                with self._mode():
                    return work(*args, **kwargs)

            return submit(pool, watched, *args, **kwargs)

        return submitted
