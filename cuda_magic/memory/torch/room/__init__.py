"""Room for torch: what the allocation handler does on a real card, and around a guarded cell."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from ....allocation.native import NO_ROOM, TRY_AGAIN
from ....memory import host, pools
from ....render.units import bytes_text
from .. import offload, threads
from ..offload.storage_copies import quiet
from .holes import Holes
from .install import Installed, install, installed, remove
from .pages import Pages
from .saved import Saved
from .uses import Uses

__all__ = ["TorchRoom", "install", "installed", "quietly", "remove"]

_LEFT = 1 << 30
"""Bytes that the host keeps, at least."""
_SHARE = 10
"""The host keeps this part (1/_SHARE) of what it has free, too."""
SHARE = 32
"""Which part of what this process may have stays free for what is not seen between two looks (offload/budget.py): a
request that finds no room is met, so it need not be much."""
_SPARE = 128 << 20
"""Bytes that stay free when pages come back, and for the small requests of later cells."""


class TorchRoom:
    """Makes room on the devices of one torch.

    Parameters
    ----------
    here
        The shim in torch's slots.
    """

    def __init__(self, here: Installed) -> None:
        self.here = self._here = here
        self._torch, self._shim = here.torch, here.shim
        self._holes = Holes(self._torch, self._shim)
        self.pages_of = Pages(self._torch, self._shim)
        self._saved: dict[int, Saved] = {}
        self._uses = Uses(
            self._torch,
            self._shim,
            free=self.free,
            refused=self.moving_refused,
            cached=self.caches,
            worth=self.pages_of.worth,
        )
        self._host: bool | None = None
        self._limit: int | None = None
        self._paged = self._on_host = 0

    # -- a guarded cell
    def listen(self, handler: Callable[[int, int, int], int] | None) -> None:
        """Who is asked when there is no room; None: nobody."""
        self._shim.set_handler(handler)

    def begin(
        self, reached: Callable[[], Iterable[Any]], idle: Callable[[], Iterable[Any]], limit: int | None = None
    ) -> None:
        """A guarded cell begins. `reached` and `idle` are asked only when pages have to leave."""
        self.pages_of.begin(reached, idle)
        self._paged, self._on_host = self.pages_of.out_bytes + self._uses.out_bytes, 0
        self._here.settle_settings()
        self._limit = limit
        self.resume()
        if self._torch.cuda.is_initialized():
            for device in self._devices():
                self._return(device)

    def resume(self) -> None:
        """Another statement begins: an earlier one may have started CUDA. What the limits need is done once."""
        if self._here.taken_over or not self._torch.cuda.is_initialized():
            return
        self._here.take_over_limits()
        device = self._torch.cuda.current_device()
        if self._here.redirected and not self._host_refused(device):
            self._shim.set_expandable_on_host(True)
        if self._limit is not None:
            self._here.asked[device] = self._limit
            self._here.limit(device)

    def end(self) -> int:
        """It has ended: hooks off, what has room comes back; bytes that stay on the host."""
        left = 0
        self.listen(None)
        self._shim.set_expandable_on_host(False)
        self._uses.end()
        for saved in self._saved.values():
            saved.close()
        self._saved.clear()
        self.pages_of.begin(tuple, tuple)
        if self._torch.cuda.is_initialized():
            for device in self._devices():
                left += self._return(device)
        self._here.give_back_limits()
        if left or self._holes.nbytes:
            self.listen(self._after)
        return left

    def _after(self, device: int, nbytes: int, tries: int) -> int:
        """Asked while no cell is guarded and something is elsewhere: the guarded cell left the card full."""
        try:
            if tries > 1 or not self.elsewhere(device) or self.refused(device):
                return NO_ROOM
            self._holes.release(device)
            self._torch.cuda.empty_cache()
            missing = nbytes - self.free(device) + _SPARE
            room = self._host_free()
            there = (room is None or room >= missing) and not self._host_refused(device)
            if missing > _SPARE and there and not self.moving_refused(device):
                self.pages_of.leave(device, missing)
            return TRY_AGAIN if self.free(device) >= nbytes else NO_ROOM
        except Exception:  # noqa: BLE001 - torch's own error stands
            return NO_ROOM

    def out_bytes(self) -> int:
        saved = sum(saved.moved.get("out", 0) for saved in self._saved.values())
        return int(saved + self.pages_of.out_bytes + self._uses.out_bytes - self._paged + self._on_host)

    def ready(self) -> None:
        """Memory that may be shared with other processes is plain: chunks have no handle for CUDA IPC."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            self._shim.set_chunks(False)

    def limit(self, nbytes: int | None) -> None:
        self._here.kernel = nbytes
        if self._torch.cuda.is_initialized():
            for device in self._devices():
                self._here.limit(device)

    def left(self) -> int:
        if not self._torch.cuda.is_initialized():
            return 0
        return sum(self.on_host(device) for device in self._devices())

    def on_host(self, device: int) -> int:
        """Bytes of one device's segments that are on the host."""
        return self._shim.counts(device).host

    def elsewhere(self, device: int) -> int:
        """Bytes of one device's segments with no memory of the card behind them."""
        return self.on_host(device) + self._holes.on(device)

    def settle(self) -> int:
        """Bring back what has room now; bytes that stay on the host."""
        return sum(self._return(device) for device in self._devices())

    def close(self) -> None:
        self._here.kernel = None
        self._uses.end()
        if self._torch.cuda.is_initialized():
            self._holes.close()
        remove()

    def _devices(self) -> list[int]:
        has = self._torch._C._cuda_hasPrimaryContext
        return [i for i in range(self._torch.cuda.device_count()) if has(i)]

    def _return(self, device: int) -> int:
        """Bring back what has room. A lost context leaves all as it is."""
        away = self._shim.counts(device).host
        if not away and not self._holes.nbytes:
            return 0
        try:
            if self.moving_refused(device):
                return away
            self._holes.release(device)
            self._torch.cuda.empty_cache()
            room = self.free(device) - _SPARE
            left = self.pages_of.come_back(device, room)
            self._holes.fill(device, self.free(device) - _SPARE)
            available = host.available()
            self._shim.trim(available // 4 if available is not None else 0)
            return left
        except RuntimeError:
            return away

    # -- what the handler asks
    def refused(self, device: int) -> str:
        if self._torch.cuda.is_current_stream_capturing():
            return "a CUDA graph is being captured"
        return ""

    def free(self, device: int) -> int:
        counts = self._shim.counts(device)
        driver = self._shim.free_bytes()
        free = driver if driver >= 0 else 1 << 60
        return min(free, counts.limit - counts.card) if counts.limit else free

    def in_use(self, device: int) -> int:
        return self._shim.counts(device).card

    def caches(self, device: int) -> str:
        done = pools.release()
        self._torch.cuda.empty_cache()
        return ", ".join(done)

    def holes(self, device: int, nbytes: int) -> int:
        return self._holes.punch(device, nbytes) if nbytes > 0 else 0

    def saved(self, device: int, nbytes: int) -> int:
        if nbytes <= 0 or self._backward_elsewhere():
            return 0
        one = self._saved.get(device)
        if one is None:
            counts = self._shim.counts(device)
            whole = counts.limit or self.free(device) + counts.card
            one = self._saved[device] = Saved(
                self._torch,
                self._torch.device("cuda", device),
                whole,
                lambda request: offload.hooks(self._torch, device, 0, whole, share=SHARE),
            )
        with quietly(self._torch):
            return one.make_room(nbytes)

    def _backward_elsewhere(self) -> bool:
        """Whether another thread may release what graphs hold while they are walked: autograd has one a device."""
        if _python_thread():
            return bool(_in_backward() - {threading.get_ident()})
        return len(self._devices()) > 1 or len(_in_backward()) > 1

    def pages(self, device: int, nbytes: int) -> int:
        if nbytes <= 0 or self._host_refused(device):
            return 0
        room = self._host_free()
        if room is not None and room < nbytes:
            return 0
        counts = self._shim.counts(device)
        if counts.card + self.free(device) < nbytes:  # more than everything: nothing is moved in vain
            return 0
        moved = self.pages_of.leave(device, nbytes, self._uses.due if self._uses.on else None)
        if self.pages_of.hot:
            self._watch()
        return moved

    def _watch(self) -> None:
        """Something lies on the host from now on."""
        self._uses.refresh()
        self._uses.begin()

    def moving_refused(self, device: int) -> str:
        other = _other_library()
        if other:
            return f"{other} may start kernels at any time"
        ours = _engine_waits()
        threads.WATCHED.update(ours)
        try:
            name = threads.using_cuda()
        finally:
            threads.WATCHED.difference_update(ours)
        return f"another thread ({name}) may use CUDA meanwhile" if name else ""

    def host_room(self, nbytes: int) -> str:
        room = self._host_free()
        if room is not None and room < nbytes:
            return f"the host can give {bytes_text(max(0, room))}, {bytes_text(nbytes)} was asked for"
        self._on_host += nbytes
        self._watch()
        return ""

    def _host_refused(self, device: int) -> bool:
        if self._host is None:
            self._host = self._shim.find_host(device)
        return not self._host

    def _host_free(self) -> int | None:
        available = host.available()
        if available is None:
            return None
        return available - max(_LEFT, available // _SHARE) + self._shim.counts(0).kept


def _other_library() -> str:
    """A library with threads of its own below Python that start kernels, where it runs on a card; else empty."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    if any(getattr(c, "platform", "") in ("gpu", "cuda") for c in list(getattr(bridge, "_backends", {}).values())):
        return "JAX"
    context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    return "TensorFlow" if getattr(context, "_context_handle", None) is not None else ""


def _engine_waits() -> set[int]:
    """Threads that wait for the backward pass which asks now, if it is autograd's own thread that asks."""
    return set() if _python_thread() else _in_backward()


def _python_thread() -> bool:
    """Whether Python started this thread; autograd's own threads come from below Python."""
    here = threading.get_ident()
    return here in {t.ident for t in threading.enumerate() if not isinstance(t, threading._DummyThread)}


def _in_backward() -> set[int]:
    """Threads that wait for a backward pass."""
    found = set()
    for ident, frame in sys._current_frames().items():
        code = frame.f_code
        if "autograd" in code.co_filename and code.co_name in ("_engine_run_backward", "backward", "grad"):
            found.add(ident)
    return found


class quietly:  # noqa: N801 - used as a word
    """Our own operations are seen by no mode, no autograd and no compiler of the user's.

    An allocation is asked for below autograd, where a detached tensor does not share its version: that is lifted.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def __enter__(self) -> None:
        c = self._torch._C
        self._inner = quiet(self._torch)
        self._inner.__enter__()
        self._views = c.DispatchKey.ADInplaceOrView
        self._below = c._dispatch_tls_is_dispatch_key_excluded(self._views)
        if self._below:
            c._dispatch_tls_set_dispatch_key_excluded(self._views, False)
        dynamo = sys.modules.get("torch._C._dynamo.eval_frame")
        self._set = getattr(dynamo, "set_eval_frame", None)
        self._frame = self._set(None) if self._set is not None else None

    def __exit__(self, *error: Any) -> None:
        if self._set is not None:
            self._set(self._frame)
        if self._below:
            self._torch._C._dispatch_tls_set_dispatch_key_excluded(self._views, True)
        self._inner.__exit__(*error)
