"""The mode that watches every op: what it names is here before it runs.

A kernel on an emptied storage loses the CUDA context (seen on an H200), so nothing is parked unless this mode is on.
It travels into backward, on autograd's own threads. The class is made when it is first needed: torch is not ours to
import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .operands import storages
from .store import Entry, Store

if TYPE_CHECKING:
    from .op_retry import Retry

__all__ = ["Watcher", "mode"]

_classes: dict[int, Any] = {}


class Watcher:
    """What is done around each op.

    Parameters
    ----------
    torch
        The imported torch.
    store
        What is parked.
    """

    def __init__(self, torch: Any, store: Store) -> None:
        self.torch, self.store = torch, store
        self.without_memory = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)
        self.retry: Retry | None = None
        """Repeats the op that ran out of memory."""
        self.brought = 0
        """Storages that an op brought back."""
        self._convolutions = convolutions(torch)

    def call(self, func: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one op."""
        __tracebackhide__ = True
        if self.retry is not None:
            return self.retry.call(func, types, args, kwargs, self.run)
        return self.run(func, args, kwargs, [False])

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], begun: list[bool]) -> Any:
        """Bring back what the op names, and run it. `begun` becomes [True] when the op itself starts."""
        __tracebackhide__ = True
        if self.store.away and func not in self.without_memory:
            self.bring_back(args, kwargs)
        begun[0] = True
        return self._op(func, args, kwargs)

    def _op(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run it as it is, and tell of a convolution that went on from an error inside it."""
        __tracebackhide__ = True
        if func not in self._convolutions or self.retry is None:
            return func(*args, **kwargs)
        retry = self.retry
        before = retry.errors()
        result = func(*args, **kwargs)
        met = retry.errors() - before
        if met > 0:
            retry.rescue.less_workspace(str(func), met)
        return result

    def bring_back(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Bring back what the arguments name; the op has not begun when this raises."""
        found = self.named(args, kwargs)
        if found:
            self.brought += len(found)
            self.store.bring_back(found)

    def named(self, *values: Any) -> list[Entry]:
        """Entries of the parked storages that the values name, each once."""
        away, found = self.store.away, {}
        for storage in storages(self.torch, values):
            entry = away.get(storage._cdata)
            if entry is not None:
                found[entry.key] = entry
        return list(found.values())


def convolutions(torch: Any) -> frozenset[Any]:
    """Ops in which cuDNN goes on from out of memory: with the next algorithm, one that needs less workspace.

    Source: aten/src/ATen/native/cudnn/Conv_v8.cpp and Conv_v7.cpp, which catch ``c10::OutOfMemoryError``.
    """
    aten = torch.ops.aten
    names = ("convolution", "convolution_backward", "cudnn_convolution", "cudnn_convolution_transpose")
    return frozenset(getattr(aten, name).default for name in names if hasattr(aten, name))


def mode(watcher: Watcher) -> Any:
    """A TorchDispatchMode that tells `watcher` of each op. Entered and left as any mode, one at the top at a time."""
    torch = watcher.torch
    kind = _classes.get(id(torch))
    if kind is None:

        def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            __tracebackhide__ = True
            return self.watcher.call(func, types, args, kwargs or {})

        base = torch.utils._python_dispatch.TorchDispatchMode
        body = {
            "__torch_dispatch__": dispatch,
            "supports_higher_order_operators": True,
            # else torch imports its compiler to wrap us: a second, and microseconds at each op
            "_should_skip_dynamo": classmethod(lambda cls: False),
            "__module__": __name__,
        }
        kind = _classes[id(torch)] = type("WatchingMode", (base,), body)
    made = kind()
    made.watcher = watcher
    return made
