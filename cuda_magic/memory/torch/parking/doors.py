"""Ways past the dispatcher to a tensor's memory, in Python: while anything is parked, they bring it back first.

``torch.save``, ``copy.deepcopy`` and pickling read a storage's bytes; Triton, CuPy and Numba ask a tensor for its
address. No op names the tensor then. What goes through one of these doors stays on the device until the next statement.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from .parked import Store

__all__ = ["Doors"]

NAMES = ("untyped_storage", "data_ptr", "__dlpack__")
"""Methods of ``torch.Tensor``; ``__cuda_array_interface__``, ``storage`` and ``_typed_storage`` come by them."""


class Doors:
    """The doors of one store, watched between `close` and `open`. Both may be called again."""

    def __init__(self, torch: Any, store: Store) -> None:
        self.torch, self.store = torch, store
        self._before: dict[str, Any] = {}

    def watch(self) -> None:
        """Put ourselves before the methods."""
        if self._before:
            return
        tensor = self.torch.Tensor
        for name in NAMES:
            self._before[name] = tensor.__dict__.get(name)
            setattr(tensor, name, self._through(getattr(tensor, name)))

    def leave(self) -> None:
        """The methods as they were."""
        while self._before:
            name, before = self._before.popitem()
            if before is None:
                delattr(self.torch.Tensor, name)
            else:
                setattr(self.torch.Tensor, name, before)

    def _through(self, method: Any) -> Any:
        read = self.torch._C.TensorBase.untyped_storage

        @functools.wraps(method)
        def asked(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            store = self.store
            if store.away or store.followed:
                try:
                    key = read(tensor)._cdata
                except (RuntimeError, NotImplementedError):
                    return method(tensor, *args, **kwargs)
                entry = store.away.get(key) or store.followed.get(key)
                if entry is not None:
                    store.bring_back([entry])
                    entry.pinned = True
            return method(tensor, *args, **kwargs)

        return asked


def unpin(entries: Iterable[Any]) -> None:
    """At the end of a statement: addresses that it asked for are taken to be of no more use."""
    for entry in entries:
        entry.pinned = False
