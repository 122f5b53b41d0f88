"""What autograd saved for the backward pass waits on the host, from the moment when there is no room for it.

Nothing is watched before. At the first request that finds no room the graphs that Python's tensors lead to are walked,
and hooks are registered on what their nodes have saved already (`SavedTensor.register_hooks`). From then on hooks of
this thread see what is saved, so that the next step of a loop sends it out ahead of need.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from ....errors import Refused
from .. import safety
from ..gc_objects import kinds_of

__all__ = ["Saved", "graph_nodes"]

LEAST = 256 << 10
"""Bytes below which a saved tensor is not looked at."""
_MOST_NODES = 1_000_000
_AT_ONCE = 2 << 30
"""Bytes that go at most where less is asked for: half a second of an H200's host, the first time."""


class Saved:
    """What autograd saved, in one guarded cell, on one device.

    Parameters
    ----------
    torch
        The imported torch.
    device
        The torch.device whose memory is short.
    limit
        Bytes that this process may have of it.
    hooks
        Makes the hooks that let it wait elsewhere, for a request of so many bytes; raises Refused where they cannot be.
    """

    def __init__(self, torch: Any, device: Any, limit: int, hooks: Callable[[int], Any]) -> None:
        self._torch, self._device, self._limit, self._make = torch, device, limit, hooks
        self.engine: Any = None
        self._pushed = False
        self._looked = self._looking = 0.0
        self._disable: Any = None

    @property
    def moved(self) -> dict[str, int]:
        """Bytes ``out`` and ``in``."""
        return dict(self.engine.moved) if self.engine is not None else {}

    def refused(self) -> str:
        """Why what autograd saved stays where it is, or an empty string."""
        reason = safety.compiled()
        if reason:
            return reason
        functorch = getattr(self._torch._C, "_functorch", None)
        if functorch is not None and functorch.peek_interpreter_stack() is not None:
            return "a transform of torch.func is under way"
        return ""

    def make_room(self, nbytes: int) -> int:
        """Let at least so much wait on the host; how much does."""
        if self.refused():
            return 0
        if self.engine is None:
            try:
                self.engine = self._make(nbytes)
            except Refused:
                return 0
            self.engine.budget.keep = 1 << 60
            self.engine.begin()
        self._look()
        gone = int(self.engine.make_room(max(nbytes, min(self._limit // 16, _AT_ONCE))))
        if gone:
            self._push()
        return gone

    def _look(self) -> None:
        """Take in what graphs hold; where there was nothing, not again before twenty times as long has passed."""
        started = time.perf_counter()
        if started - self._looked < 20 * self._looking:
            return
        found = self._adopt()
        self._looked = time.perf_counter()
        self._looking = 0.0 if found else self._looked - started

    def _adopt(self) -> int:
        torch = self._torch
        read = torch._C.TensorBase.untyped_storage
        leaves: set[int] = set()
        found: list[tuple[int, Any]] = []
        for node in graph_nodes(torch, self._device):
            if node.name() == "torch::autograd::AccumulateGrad":
                with contextlib.suppress(RuntimeError, NotImplementedError):  # a wrapper of torch.func's
                    leaves.add(read(node.variable)._cdata)
                continue
            for raw in _raw_saved(node):
                found.append((node._sequence_nr(), raw))
        found.sort(key=lambda pair: pair[0])
        self.engine.leaves = leaves
        taken = 0
        for _, raw in found:
            if self._may_leave(raw):
                try:
                    self.engine.adopt(raw)
                    taken += 1
                except RuntimeError:  # freed meanwhile, or it has hooks already
                    continue
        return taken

    def _may_leave(self, raw: Any) -> bool:
        """Whether it has no hooks (ours, the user's, or those of checkpointing), and is large, and on this device."""
        if not hasattr(raw, "unpack_hook"):  # torch up to 2.6 does not tell: the hooks themselves look
            return True
        try:
            if raw.unpack_hook is not None:
                return False
            tensor = raw.data
            return (
                tensor is not None
                and tensor.device == self._device
                and self._torch._C.TensorBase.untyped_storage(tensor).nbytes() >= LEAST
            )
        except (RuntimeError, NotImplementedError):
            return False

    def _push(self) -> None:
        """Put the hooks on in this thread where nobody's are on."""
        if self._pushed or threading.current_thread() is not threading.main_thread():
            return
        autograd = self._torch._C._autograd
        if autograd._top_saved_tensors_default_hooks(True) is not None:
            return
        if not autograd._saved_tensors_hooks_is_enabled():
            return
        self.engine.push()
        self._pushed = True
        self._make_way()

    def _make_way(self) -> None:
        """torch.func refuses to run under hooks: ours go off for as long as it runs."""
        autograd = self._torch._C._autograd
        disable, enable = autograd._saved_tensors_hooks_disable, autograd._saved_tensors_hooks_enable
        self._disable = (disable, enable)
        engine = self.engine
        off = [False]

        def disabled(*args: Any, **kwargs: Any) -> Any:
            if not off[0] and engine._on_top():
                engine._hooks.__exit__()
                off[0] = True
            return disable(*args, **kwargs)

        def enabled() -> Any:
            value = enable()
            if off[0] and engine.active:
                engine.push()
            off[0] = False
            return value

        autograd._saved_tensors_hooks_disable = disabled
        autograd._saved_tensors_hooks_enable = enabled

    def close(self) -> None:
        """Take the hooks off. Graphs that outlive this stay valid."""
        autograd = self._torch._C._autograd
        if self._disable is not None:
            autograd._saved_tensors_hooks_disable, autograd._saved_tensors_hooks_enable = self._disable
            self._disable = None
        if self.engine is not None:
            self.engine.off()
        self._pushed = False


def graph_nodes(torch: Any, device: Any) -> Iterator[Any]:
    """Every node of the graphs that Python's tensors on `device` lead to, each once."""
    kinds = set(kinds_of(torch.Tensor))
    stack = []
    for one in gc.get_objects():
        if type(one) in kinds:
            try:
                if one.device == device and not one.is_leaf:
                    stack.append(one.grad_fn)
            except (RuntimeError, NotImplementedError):
                continue
    seen: set[Any] = set()
    while stack and len(seen) < _MOST_NODES:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        stack += [after for after, _ in node.next_functions]


_names: dict[type, tuple[str, ...]] = {}


def _raw_saved(node: Any) -> Iterator[Any]:
    kind = type(node)
    names = _names.get(kind)
    if names is None:
        names = _names[kind] = tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))
    for name in names:
        try:
            value = getattr(node, name)
        except RuntimeError:  # the backward pass has been through here
            continue
        if isinstance(value, (tuple, list)):
            yield from value
        elif value is not None:
            yield value
