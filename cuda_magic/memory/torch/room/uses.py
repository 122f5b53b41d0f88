"""While tensors lie on the host each operation is seen, and what it would read many times comes to the card before.

A tensor on the host is right but slow for a matrix product, which reads it many times. A dispatch mode sees the
operands; it is on only from the first exchange of a cell on, and off under compiled code, whose operations it would not
see. What it misses is slower, never wrong. It also learns what is used when, so that what leaves is what is used last.

Some backward formulas ask whether a mode is on and then compute in another way (prod and cumprod end with other bits,
seen with torch 2.13): backward runs under the mode only if the mode has seen its whole forward, and none of these.
"""

from __future__ import annotations

import ctypes
import sys
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from ....allocation.native import CARD, HOST, Chunk, Shim
from ..offload.operands import storages

__all__ = ["Uses"]

_PRODUCTS = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0, "aten::baddbmm": 1}
"""Matrix products: which argument is the left operand."""
_REREAD = (
    *("aten::convolution", "aten::convolution_backward", "aten::cudnn_convolution", "aten::_cudnn_rnn"),
    *("aten::_scaled_dot_product", "aten::_flash_attention", "aten::_efficient_attention"),
)
"""Beginnings of other operations that read an operand more than once."""
_FEW = 256
"""Rows of the left operand up to which a product reads the other one about once, as the link carries it."""
_OTHERS = ("aten::prod", "aten::cumprod")
"""Whose backward formula depends on a mode."""
_LEAST = 1 << 20
"""Bytes of a storage that is followed."""


class Uses:
    """When each storage is used, by its address, and the fetching of what an operation needs.

    Parameters
    ----------
    torch
        The imported torch.
    shim
        Whose chunks these are.
    free
        Bytes of a device that a request could have.
    refused
        Why nothing may be exchanged now, or an empty string.
    cached
        Gives torch's cache back.
    worth
        How late each chunk leaves (pages.Pages.worth); below 0: nothing lives in it.
    """

    def __init__(
        self,
        torch: Any,
        shim: Shim,
        *,
        free: Callable[[int], int],
        refused: Callable[[int], str],
        cached: Callable[[int], Any],
        worth: Callable[[int, list[Chunk]], list[tuple[int, int]]],
    ) -> None:
        self._torch, self._shim = torch, shim
        self._free, self._refused, self._cached, self._worth = free, refused, cached, worth
        self._clock = 0
        self._last: dict[int, tuple[int, int]] = {}
        """{address: (moment of the last use, moments between the last two)}"""
        self._host: list[Chunk] = []
        self._starts: list[int] = []
        self._mode: Any = None
        self._calls: list[Any] = []
        self._run: Any = None
        self._whole = False
        """Whether a backward pass may run under the mode: it has seen the forward pass from its beginning."""
        self._others = False
        self._ending = True
        self.in_bytes = self.out_bytes = 0
        self.kind = "cuda"
        """The type of the devices that are followed."""

    # -- on and off
    def begin(self) -> None:
        """Put the mode on at the next bytecode of the main thread: now an operation is in the middle of its work."""
        self._ending = False
        if self._mode is not None or self._calls:
            return

        def enter(_: Any) -> int:
            try:
                self._calls.clear()
                self._enter()
            except Exception:  # noqa: BLE001 - without it all is right, and slower
                self._mode = None
            return 0

        call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(enter)
        if ctypes.pythonapi.Py_AddPendingCall(call, None) == 0:
            self._calls.append(call)

    def _enter(self) -> None:
        torch = self._torch
        if self._ending or self._mode is not None or self._busy():
            return
        self.refresh()
        made = _mode(torch, self)
        made.__enter__()
        self._mode = made
        self._whole = self._others = False
        graph = torch.autograd.graph
        real = getattr(graph, "_engine_run_backward", None)  # since torch 2.3
        if real is not None:
            self._run = real
            for module in (graph, torch.autograd):
                if getattr(module, "_engine_run_backward", None) is real:
                    module._engine_run_backward = self._backward

    def _busy(self) -> bool:
        """Whether this is no moment to put a mode on: below one of the user's, in a transform, or while compiling."""
        torch = self._torch
        if torch._C._len_torch_dispatch_stack():
            return True
        functorch = getattr(torch._C, "_functorch", None)
        if functorch is not None and functorch.peek_interpreter_stack() is not None:
            return True
        utils = sys.modules.get("torch._dynamo.utils")
        return utils is not None and bool(utils.counters.get("stats", {}).get("unique_graphs", 0))

    def _backward(self, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        mode, top = self._mode, self._top()
        if mode is None or top is not mode or (self._whole and not self._others):
            return self._run(*args, **kwargs)
        mode.__exit__(None, None, None)
        try:
            return self._run(*args, **kwargs)
        finally:
            mode.__enter__()
            self._whole = True

    def _top(self) -> Any:
        return self._torch.utils._python_dispatch._get_current_dispatch_mode()

    def end(self) -> None:
        """Take the mode off; below one of the user's it stays, and does nothing."""
        self._ending = True
        if self._run is not None:
            for module in (self._torch.autograd.graph, self._torch.autograd):
                if getattr(module, "_engine_run_backward", None) == self._backward:
                    module._engine_run_backward = self._run
            self._run = None
        if self._mode is not None and self._top() is self._mode:
            self._mode.__exit__(None, None, None)
            self._mode = None
        self._last.clear()
        self._host, self._starts = [], []

    def refresh(self) -> None:
        """Look anew at what lies on the host."""
        self._host = [chunk for chunk in self._shim.chunks() if chunk.where == HOST]
        self._starts = [chunk.address for chunk in self._host]

    # -- what an operation uses
    def seen(self, func: Any, args: Any, kwargs: Any) -> None:
        """An operation is about to run. Never raises."""
        if self._ending:
            return
        self._clock += 1
        now = self._clock
        name = func._schema.name
        if name.startswith(_OTHERS):
            self._others = True
        try:
            wanted: list[tuple[int, int]] = []
            for storage in storages(self._torch, (args, kwargs)):
                nbytes = storage.nbytes()
                if nbytes < _LEAST or storage.device.type != self.kind:
                    continue
                address = storage.data_ptr()
                last = self._last.get(address)
                self._last[address] = (now, now - last[0] if last is not None else 0)
                wanted.append((address, nbytes))
            if self._host and wanted and _reads_again(name, args):
                self._fetch(wanted)
        except Exception:  # noqa: BLE001 - it is read from the host then
            return

    def _below(self, address: int, nbytes: int) -> list[Chunk]:
        """The chunks on the host that a stretch touches."""
        at = max(0, bisect_right(self._starts, address) - 1)
        found = []
        while at < len(self._host) and self._host[at].address < address + nbytes:
            if self._host[at].address + self._host[at].size > address:
                found.append(self._host[at])
            at += 1
        return found

    def _fetch(self, wanted: list[tuple[int, int]]) -> None:
        missing = {chunk.address: chunk for address, nbytes in wanted for chunk in self._below(address, nbytes)}
        if not missing:
            return
        device = next(iter(missing.values())).device
        if self._refused(device) or self._torch.cuda.is_current_stream_capturing():
            return
        need = sum(chunk.size for chunk in missing.values())
        # a free block on the host would be torch's next choice, and the next operation would write there
        if self._free(device) < need or any(worth[0] < 0 for worth in self._worth(device, self._host)):
            self._cached(device)
        short = need - self._free(device)
        if short > 0 and not self._leave(device, short, wanted):
            return
        moved, _ = self._shim.exchange(sorted(missing), CARD)
        self.in_bytes += moved
        self.refresh()

    def _leave(self, device: int, nbytes: int, wanted: list[tuple[int, int]]) -> bool:
        """Send away what is used again latest, and nothing that this operation uses; whether so much went."""
        here = [chunk for chunk in self._shim.chunks() if chunk.device == device and chunk.where == CARD]
        here = [chunk for chunk, worth in zip(here, self._worth(device, here), strict=True) if worth[0] >= 0]
        due = self.due(here)
        kept = {chunk.address for chunk in here if any(_touch(chunk, a, n) for a, n in wanted)}
        order = sorted((i for i in range(len(here)) if here[i].address not in kept), key=lambda i: -due[i])
        chosen, size = [], 0
        for i in order:
            if size >= nbytes:
                break
            chosen.append(here[i].address)
            size += here[i].size
        if size < nbytes:
            return False
        moved, _ = self._shim.exchange(chosen, HOST)
        self.out_bytes += moved
        return moved >= nbytes

    def due(self, chunks: list[Chunk]) -> list[float]:
        """How many operations from now each chunk is used again, as far as its last two uses tell."""
        starts = [chunk.address for chunk in chunks]
        due = [1e9] * len(chunks)
        for address, (last, between) in self._last.items():
            at = bisect_right(starts, address) - 1
            if at < 0 or address >= chunks[at].address + chunks[at].size:
                continue
            again = last + between - self._clock if between else 1e6 - last
            due[at] = min(due[at], float(again) if again >= 0 else 1e5 - again)
        return due

    @property
    def on(self) -> bool:
        """Whether uses are known."""
        return bool(self._last)


def _reads_again(name: str, args: Any) -> bool:
    """Whether an operation reads an operand so often that a copy is cheaper."""
    left = _PRODUCTS.get(name)
    if left is not None:
        return bool(args[left].shape[-2] > _FEW)
    return name.startswith(_REREAD)


def _touch(chunk: Chunk, address: int, nbytes: int) -> bool:
    return chunk.address < address + nbytes and chunk.address + chunk.size > address


_modes: dict[int, Any] = {}


def _mode(torch: Any, uses: Uses) -> Any:
    """A mode that tells `uses` of each operation; the class is made when torch is there."""
    if id(torch) not in _modes:
        base = torch.utils._python_dispatch.TorchDispatchMode

        class Seeing(base):  # type: ignore[misc, valid-type]
            def __init__(self, uses: Uses) -> None:
                super().__init__()
                self.uses = uses

            @classmethod
            def _should_skip_dynamo(cls) -> bool:
                return False  # else torch wraps it by its compiler, whose frames then stand in every error

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                __tracebackhide__ = True
                self.uses.seen(func, args, kwargs)
                return func(*args, **(kwargs or {}))

        _modes[id(torch)] = Seeing
    return _modes[id(torch)](uses)
