"""The shim in torch's slots, for the kernel's life, and torch's settings around a guarded cell."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import sys
from pathlib import Path
from typing import Any

from ....allocation import slots
from ....allocation.native import Shim, shim
from ....errors import Refused
from .. import settings, snapshot

__all__ = ["Installed", "install", "installed", "remove"]

_LIBRARY = "libc10_cuda"
_KEY = "release_lock_on_cudamalloc"
"""Since torch 2.2: the allocator holds no lock while it calls cudaMalloc, so that Python may use it meanwhile."""
_TABLE = "_ZN3c104cuda9DriverAPI3getEv"
"""c10::cuda::DriverAPI::get(): torch's own table of driver functions, exported since 2.3."""
_WORDS = 64
"""Pointers of that table that are looked at; torch 2.11 has some 30."""


class Installed:
    """The shim in the slots of one torch.

    Parameters
    ----------
    torch
        The imported torch.
    native
        The shim.
    """

    def __init__(self, torch: Any, native: Shim) -> None:
        self.torch, self.shim = torch, native
        self._before: list[tuple[int, int]] = []
        self._table: list[tuple[int, int]] = []
        self._undo: list[Any] = []
        self.fractions: dict[int, float] = {}
        """What the user allowed this process of each device, while the limit is the shim's."""
        self.asked: dict[int, int] = {}
        """Bytes of each device that the running cell may have."""
        self.kernel: int | None = None
        """Bytes that this kernel may have, of each device."""
        self.taken_over = False
        self._pending: set[int] = set()
        """Devices with more in use than their limit, which stays the shim's until there is not."""
        self._settled: str | None = None
        """The user's text of the allocator's settings, once the option was added."""

    def put(self, cudart: str) -> None:
        """Set the slots; `cudart` is the CUDA runtime that torch uses.

        Raises
        ------
        slots.NoSlot
            If there are none, or they cannot be written.
        """
        malloc = slots.find(_LIBRARY, "cudaMalloc")
        free = slots.find(_LIBRARY, "cudaFree")
        if not malloc or not free:
            raise slots.NoSlot("this torch calls cudaMalloc in a way that cannot be met")
        if self.torch.cuda.is_initialized():
            for segment in snapshot.read(self.torch)["segments"]:
                self.shim.known(segment["address"], segment["total_size"], segment["device"])
        # cudaFree first: a segment of ours must never meet the real one
        real = {self.shim.free: _real(cudart, "cudaFree"), self.shim.malloc: _real(cudart, "cudaMalloc")}
        for slot, value in [*((s, self.shim.free) for s in free), *((s, self.shim.malloc) for s in malloc)]:
            slots.write(slot, value)
            self._before.append((slot, real[value]))
        atexit.register(self.shim.set_handler, None)  # segments are freed after Python has ended
        self.shim.set_chunks(True)
        self._wrap()

    def _wrap(self) -> None:
        """torch's functions of the limit, which is the shim's while a cell is guarded; sharing of a chunk's memory."""
        memory = self.torch.cuda.memory
        setter = memory.set_per_process_memory_fraction
        getter: Any = getattr(memory, "get_per_process_memory_fraction", None)  # since torch 2.6

        index_of = self.torch.cuda.memory._get_device_index

        def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
            setter(fraction, device)  # torch's own words for what is illegal
            index = index_of(device, optional=True)
            self.fractions[index] = float(fraction)
            if self.taken_over:
                setter(1.0, device)
            if fraction >= 1.0:
                self._pending.discard(index)
            self.limit(index)

        def get_per_process_memory_fraction(device: Any = None) -> float:
            index = index_of(device, optional=True)
            if self.taken_over or index in self._pending:
                return self.fractions.get(index, 1.0)
            return float(getter(device))

        ours: list[tuple[str, Any, Any]] = [
            ("set_per_process_memory_fraction", setter, set_per_process_memory_fraction)
        ]
        if getter is not None:
            ours.append(("get_per_process_memory_fraction", getter, get_per_process_memory_fraction))
        for name, old, new in ours:
            new.__doc__ = old.__doc__
            for module in (memory, self.torch.cuda):
                if getattr(module, name, None) is old:
                    setattr(module, name, new)
                    self._undo.append((module, name, old))
        self._wrap_sharing()

    def _wrap_sharing(self) -> None:
        """CUDA IPC knows no chunks: a storage that is shared between processes moves to a plain segment before."""
        storage = self.torch.UntypedStorage
        share = storage._share_cuda_

        def _share_cuda_(this: Any, *args: Any, **kwargs: Any) -> Any:
            self._to_plain(this)
            return share(this, *args, **kwargs)

        storage._share_cuda_ = _share_cuda_
        self._undo.append((storage, "_share_cuda_", None))

    def _to_plain(self, storage: Any) -> None:
        address, device = storage.data_ptr(), storage.device.index
        if not self._in_chunk(address):
            return
        self.shim.set_chunks(False)  # what is shared once will be again
        held = []
        try:
            self.torch.cuda.empty_cache()
            while True:  # whatever free block of a chunk would take it is held meanwhile
                new = self.torch.UntypedStorage(storage.nbytes(), device=f"cuda:{device}")
                if not self._in_chunk(new.data_ptr()):
                    break
                held.append(new)
            del new
            storage.resize_(storage.nbytes())  # a new block, a copy on the card, the old block freed
        finally:
            held.clear()

    def _in_chunk(self, address: int) -> bool:
        return any(chunk.address <= address < chunk.address + chunk.size for chunk in self.shim.chunks())

    def remove(self) -> None:
        """Put every slot and function back. Segments of the shim's go on being freed by it."""
        atexit.unregister(self.shim.set_handler)
        self.shim.set_handler(None)
        self.shim.set_chunks(False)
        self.give_back_limits()
        for index in sorted(self._pending):  # the user's limit is torch's to check again, whatever is in use
            self.torch.cuda.memory.set_per_process_memory_fraction(self.fractions[index], index)
        self._pending.clear()
        for target, name, old in reversed(self._undo):
            if old is None:
                with contextlib.suppress(AttributeError):
                    delattr(target, name)
            else:
                setattr(target, name, old)
        self._undo.clear()
        kept = any(True for _ in self.shim.chunks()) if self.torch.cuda.is_initialized() else False
        for slot, old in reversed(self._before):
            if kept and slots.read(slot) == self.shim.free:
                continue  # memory made of chunks is freed in no other way
            slots.write(slot, old)
        for slot, old in self._table:
            if not kept or slots.read(slot) != self.shim.release:
                slots.write(slot, old)
        self._before.clear()
        self._table.clear()
        if self._settled is not None and settings.option(self._settled, _KEY) is None:
            settings.set_text(self.torch, settings.with_option(self._settled, _KEY, "False"))
            settings.set_text(self.torch, self._settled)
        self._settled = None

    # -- around a guarded cell
    def settle_settings(self) -> None:
        """torch holds no lock from now on while it calls cudaMalloc; once. All other settings stay as they are.

        A text resets what it does not name, but not this option: so the user's own text, given again behind it, is
        the one that torch tells (read in torch 2.2 to 2.14, seen on an H200 with 2.11).

        Raises
        ------
        Refused
            If torch does not do it: Python could then wait for the allocator's lock, and its holder for Python.
        """
        if self._settled is not None:
            return
        before = settings.written(self.torch)
        try:
            settings.set_text(self.torch, settings.with_option(before, _KEY, "True"))
            if settings.option(before, _KEY) is None:
                settings.set_text(self.torch, before)
        except (RuntimeError, ValueError) as error:
            raise Refused(f"torch refuses the allocator's settings ({str(error).partition(chr(10))[0]})") from None
        self._settled = before
        if self.torch.cuda.is_initialized() and not settings.live(self.torch).get(_KEY, True):
            raise Refused("torch keeps its allocator's lock while it asks for memory")
        if settings.option(before, "expandable_segments") == "True":
            self._redirect()

    @property
    def redirected(self) -> bool:
        """Whether torch makes expandable segments, and asks us for their pages."""
        return bool(self._table)

    def take_over_limits(self) -> None:
        """The limit that the user set is checked by torch before the driver is asked: now the shim checks it."""
        if self.taken_over or not self.torch.cuda.is_initialized():
            return
        memory = self.torch.cuda.memory
        for index in range(self.torch.cuda.device_count()):
            if not self.torch._C._cuda_hasPrimaryContext(index):
                continue
            getter = getattr(memory, "get_per_process_memory_fraction", None)
            fraction = float(getter(index)) if getter is not None else self.fractions.get(index, 1.0)
            self.fractions[index] = fraction
        self.taken_over = True
        for index, fraction in self.fractions.items():
            if fraction < 1.0:
                memory.set_per_process_memory_fraction(fraction, index)
            else:
                self.limit(index)

    def limit(self, device: int) -> None:
        """Make the smallest of the user's fraction and what was asked for the shim's limit."""
        fraction = self.fractions.get(device, 1.0)
        found = [nbytes for nbytes in (self.asked.get(device), self.kernel) if nbytes is not None]
        if fraction < 1.0:
            found.append(int(fraction * self.torch.cuda.get_device_properties(device).total_memory))
        self.shim.set_limit(device, min(found) if found else None)

    def give_back_limits(self) -> None:
        """torch checks the limit again, on each device that has no more than that in use."""
        if not self.taken_over:
            return
        self.taken_over = False
        memory = self.torch.cuda.memory
        self.asked.clear()
        for index, fraction in self.fractions.items():
            if fraction >= 1.0:
                self.limit(index)
                continue
            reserved = int(self.torch.cuda.memory_reserved(index))
            if reserved <= fraction * self.torch.cuda.get_device_properties(index).total_memory:
                self._pending.discard(index)
                memory.set_per_process_memory_fraction(fraction, index)
            else:
                self._pending.add(index)
            self.limit(index)

    def _redirect(self) -> None:
        """Expandable segments: cuMemCreate and cuMemRelease in torch's table, found by their addresses."""
        if self._table or not self.torch.cuda.is_initialized():
            return
        path = next((line for line in _mapped() if _LIBRARY in Path(line).name), None)
        get = getattr(ctypes.CDLL(path), _TABLE, None) if path else None
        if get is None:
            return
        get.restype = ctypes.c_void_p
        start = int(get() or 0)
        driver = ctypes.CDLL("libcuda.so.1")
        wanted = {}
        for name, ours in (("cuMemRelease", self.shim.release), ("cuMemCreate", self.shim.create)):
            wanted[ctypes.cast(getattr(driver, name), ctypes.c_void_p).value] = ours
        at = [start + 8 * i for i in range(_WORDS) if slots.read(start + 8 * i) in wanted] if start else []
        if len(at) == len(wanted):
            for slot in at:
                self._table.append((slot, slots.write(slot, wanted[slots.read(slot)])))


def _real(library: str, name: str) -> int:
    """The address of a function. Not what the slot holds: a program that binds lazily has a stub there."""
    return int(ctypes.cast(getattr(ctypes.CDLL(library), name), ctypes.c_void_p).value or 0)


def _mapped() -> list[str]:
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [line.split(maxsplit=5)[5] for line in lines if line.count("/")]


_here: list[Installed] = []
_failed: dict[int, str] = {}


def installed() -> Installed | None:
    """The shim in torch's slots, where it is there."""
    return _here[0] if _here else None


def install(torch: Any) -> str:
    """Set the slots of this torch once; why that is not possible, or an empty string. Starts nothing."""
    if _here:
        return ""
    if id(torch) not in _failed:
        _failed[id(torch)] = _install(torch)
    return _failed[id(torch)] if not _here else ""


def _install(torch: Any) -> str:
    if not sys.platform.startswith("linux"):
        return "CUDA's memory calls can be met on Linux only"
    if getattr(torch.version, "cuda", None) is None:
        return "this torch has no CUDA"
    native = shim()
    if native is None:
        return "cuda_magic was installed without its native part for this machine"
    release = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2] if part.isdigit())
    if release < (2, 2):
        return f"torch {torch.__version__} holds its lock while it asks for memory (2.2 does not)"
    backend = getattr(torch.cuda, "get_allocator_backend", lambda: "native")()
    if backend != "native":
        return f"the allocator is {backend}"
    cudart = next((line for line in _mapped() if "libcudart" in Path(line).name), None)
    if cudart is None:
        return "this torch brings the CUDA runtime inside its own library"
    if native.open(cudart) == 2:
        return "the CUDA runtime lacks a function that is needed"
    made = Installed(torch, native)
    try:
        made.put(cudart)
    except slots.NoSlot as error:
        made.remove()
        return str(error)
    _here.append(made)
    return ""


def remove() -> None:
    """Put everything back (on unloading)."""
    for one in _here:
        one.remove()
    _here.clear()
    _failed.clear()
