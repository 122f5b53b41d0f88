"""Slots: the words in a loaded library through which it calls a function of another one.

A library calls ``cudaMalloc`` through a word that the dynamic loader filled with the function's address; whoever writes
another address there is called instead, by this library alone. Where the words lie is told by the library's relocations
(System V gABI, chapter 5; the types are those of the x86-64 psABI, 4.4.1, and of "ELF for the Arm 64-bit Architecture",
5.7.10). One reader serves a loaded library and a file.

Loaded libraries are found in ``/proc/self/maps``, not by ``dl_iterate_phdr``: glibc calls back under a lock that dlopen
takes as well, so a Python callback that waits for the GIL, which a thread in dlopen may hold, would wait for ever.
"""

from __future__ import annotations

import ctypes
import io
import mmap
import os
import platform
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..errors import CudaMagicError

__all__ = ["NoSlot", "Tables", "find", "read", "tables", "write"]

MACHINES = {62: "x86_64", 183: "aarch64"}
"""e_machine: the name that the kernel gives the machine."""
KINDS = {
    "x86_64": {6: "R_X86_64_GLOB_DAT", 7: "R_X86_64_JUMP_SLOT"},
    "aarch64": {1025: "R_AARCH64_GLOB_DAT", 1026: "R_AARCH64_JUMP_SLOT"},
}
"""Relocations whose word is the address of a symbol and nothing else."""
PT_LOAD, PT_DYNAMIC, EXECUTABLE = 1, 2, 1
DT_NEEDED, DT_PLTRELSZ, DT_STRTAB, DT_SYMTAB, DT_RELA, DT_RELASZ, DT_STRSZ = 1, 2, 5, 6, 7, 8, 10
DT_PLTREL, DT_JMPREL, DT_BIND_NOW, DT_FLAGS, DT_FLAGS_1 = 20, 23, 24, 30, 0x6FFFFFFB
PROTECTIONS = {"r": 1, "w": 2, "x": 4}

_writing = threading.Lock()
"""Two writers on one page: the second would find it writable for the moment, and write after it no longer is."""


class NoSlot(CudaMagicError):
    """The tables of a library are not as expected, or an address is no slot; the sentence says which."""


@dataclass(frozen=True)
class Tables:
    """What the dynamic tables of a library's file say.

    Attributes
    ----------
    machine : str
        ``x86_64`` or ``aarch64``.
    needed : tuple of str
        The libraries that it asks for (DT_NEEDED).
    bind_now : bool
        Every function is looked up when it is loaded; its slots are then usually read-only.
    slots : dict
        Symbol: the names of the relocations through which it is reached.
    """

    machine: str
    needed: tuple[str, ...]
    bind_now: bool
    slots: dict[str, tuple[str, ...]]


class _Segment(NamedTuple):
    """One program header, in the order of the file."""

    kind: int
    flags: int
    offset: int
    address: int
    physical: int
    in_file: int
    in_memory: int
    align: int


class _Image:
    """A library in a file, or as it is loaded: its segments, and its bytes by their address.

    `take(offset, size)` gives bytes of the file where `base` is None, else of memory, by their distance from where the
    file's beginning is mapped. Addresses are those that stand in the file.
    """

    def __init__(self, name: str, take: Callable[[int, int], bytes], base: int | None = None) -> None:
        self.name, self._take, self._loaded = name, take, base is not None
        head = take(0, 64)
        if len(head) < 64 or head[:6] != b"\x7fELF\2\1":
            raise NoSlot(f"{name} is no 64-bit little-endian ELF file.")
        self.machine = MACHINES.get(struct.unpack_from("<H", head, 18)[0], "")
        if not self.machine:
            raise NoSlot(f"{name} is for another machine than {' or '.join(MACHINES.values())}.")
        (where,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        rows = take(where, size * count)
        if size != 56 or len(rows) != size * count:
            raise NoSlot(f"The program headers of {name} are not whole.")
        self.segments = [_Segment(*row) for row in struct.iter_unpack("<IIQQQQQQ", rows)]
        self.loads = [one for one in self.segments if one.kind == PT_LOAD]
        if not self.loads:
            raise NoSlot(f"{name} has nothing to load.")
        self._shift = self.loads[0].address - self.loads[0].offset
        self.bias = 0 if base is None else base - self._shift
        """What is added to an address of the file where it is loaded."""

    def content(self, address: int, size: int) -> bytes:
        """Bytes of one segment; what lies outside of it is not touched."""
        for one in self.loads:
            if one.address <= address and size >= 0 and address + size <= one.address + one.in_file:
                place = address - self._shift if self._loaded else address - one.address + one.offset
                found = self._take(place, size)
                if len(found) == size:
                    return found
        raise NoSlot(f"A table of {self.name} points outside of it ({address:#x}, {size} bytes).")

    def dynamic(self) -> list[tuple[int, int]]:
        """(tag, value) of the dynamic section."""
        for one in self.segments:
            if one.kind == PT_DYNAMIC:
                rows = list(struct.iter_unpack("<qQ", self.content(one.address, one.in_file // 16 * 16)))
                end = next((i for i, (tag, _) in enumerate(rows) if tag == 0), len(rows))
                return rows[:end]
        raise NoSlot(f"{self.name} has no dynamic section.")

    def _pointer(self, value: int) -> int:
        """glibc has replaced most addresses of a loaded dynamic section by absolute ones; musl leaves them."""
        inside = any(one.address <= value < one.address + one.in_memory for one in self.loads)
        return value if inside else value - self.bias

    def strings(self, tags: dict[int, int]) -> bytes:
        return self.content(self._pointer(tags.get(DT_STRTAB, 0)), tags.get(DT_STRSZ, 0))

    def string(self, strings: bytes, where: int) -> str:
        end = strings.find(b"\0", where)
        if not 0 <= where <= end:
            raise NoSlot(f"A name in the tables of {self.name} has no end.")
        return strings[where:end].decode(errors="replace")

    def slots(self) -> Iterator[tuple[str, str, int]]:
        """(symbol, relocation, address in the file) of each slot."""
        tags = dict(self.dynamic())
        strings, kinds = self.strings(tags), KINDS[self.machine]
        if tags.get(DT_PLTREL, DT_RELA) != DT_RELA:
            raise NoSlot(f"{self.name} has relocations without addends, which {self.machine} does not know.")
        found = []
        for table, size in ((DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)):
            if table in tags:
                rows = self.content(self._pointer(tags[table]), tags.get(size, 0) // 24 * 24)
                found += [row for row in struct.iter_unpack("<QIIq", rows) if row[1] in kinds and not row[3]]
        if not found:
            return
        count = max(row[2] for row in found) + 1  # how many symbols there are stands nowhere
        symbols = self.content(self._pointer(tags.get(DT_SYMTAB, 0)), 24 * count)
        for address, kind, symbol, _ in found:
            yield self.string(strings, struct.unpack_from("<I", symbols, 24 * symbol)[0]), kinds[kind], address


def tables(source: str | os.PathLike[str] | bytes) -> Tables:
    """Read the dynamic tables of a library's file.

    Parameters
    ----------
    source : path or bytes
        The file, or what is in it.

    Raises
    ------
    NoSlot
        It is no library for one of the machines, or it is cut off.
    """
    name = "the file" if isinstance(source, bytes) else os.fspath(source)
    with io.BytesIO(source) if isinstance(source, bytes) else Path(source).open("rb") as file:
        length = file.seek(0, os.SEEK_END)

        def take(offset: int, size: int) -> bytes:
            if offset + size > length:
                return b""
            file.seek(offset)
            return file.read(size)

        image = _Image(name, take)
        rows = image.dynamic()
        tags = dict(rows)
        strings = image.strings(tags)
        found: dict[str, tuple[str, ...]] = {}
        for symbol, kind, _ in image.slots():
            if kind not in found.get(symbol, ()):
                found[symbol] = (*found.get(symbol, ()), kind)
    return Tables(
        machine=image.machine,
        needed=tuple(image.string(strings, value) for tag, value in rows if tag == DT_NEEDED),
        bind_now=DT_BIND_NOW in tags or bool(tags.get(DT_FLAGS, 0) & 8) or bool(tags.get(DT_FLAGS_1, 0) & 1),
        slots=found,
    )


class _Mapping(NamedTuple):
    """One line of /proc/self/maps."""

    start: int
    end: int
    rights: str
    offset: int
    path: str


def _mappings() -> list[_Mapping]:
    """What is mapped in this process (proc_pid_maps(5)), in order of address."""
    found = []
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise NoSlot(f"What this process has mapped cannot be read: {error}.") from None
    for line in lines:
        span, rights, offset, _, _, *path = line.split(None, 5)
        start, end = (int(part, 16) for part in span.split("-"))
        found.append(_Mapping(start, end, rights, int(offset, 16), path[0] if path else ""))
    return found


def _at(mappings: list[_Mapping], address: int) -> _Mapping | None:
    return next((one for one in mappings if one.start <= address < one.end), None)


def _loaded(library: str) -> Iterator[_Image]:
    """Each loaded library whose base name contains `library`."""
    mappings = _mappings()
    for begin in mappings:
        name = os.path.basename(begin.path.removesuffix(" (deleted)"))  # noqa: PTH119 - no object for each line
        if library not in name or begin.offset or "r" not in begin.rights:
            continue

        def take(offset: int, size: int, start: int = begin.start) -> bytes:
            here = start + offset
            while here < start + offset + size:  # each page of it, as it is mapped now
                part = _at(mappings, here)
                if part is None or "r" not in part.rights:
                    return b""
                here = part.end
            return ctypes.string_at(start + offset, size)

        if take(0, 4) != b"\x7fELF":
            continue
        image = _Image(name, take, begin.start)
        if all(_is_there(mappings, image.bias, one, begin.path) for one in image.loads):
            yield image


def _is_there(mappings: list[_Mapping], bias: int, segment: _Segment, path: str) -> bool:
    """A segment lies where the loader would have put it. A file that is mapped as data is no loaded library."""
    found = _at(mappings, bias + segment.address)
    if found is None or found.path != path or (segment.flags & EXECUTABLE and "x" not in found.rights):
        return False
    return bias + segment.address - found.start + found.offset == segment.offset


def find(library: str, symbol: str) -> list[int]:
    """Addresses of the slots through which a loaded library calls a function.

    Parameters
    ----------
    library : str
        Part of the base name of the library's file, ``libc10_cuda`` for instance.
    symbol : str
        The function's name, without a version.

    Returns
    -------
    list of int
        In order; empty where the library is not loaded, calls no such function by a slot, or the system is another than
        Linux on x86-64 or aarch64.

    Raises
    ------
    NoSlot
        The library's tables are not as expected.
    """
    if sys.platform != "linux" or platform.machine() not in KINDS:
        return []
    return sorted({i.bias + at for i in _loaded(library) for name, _, at in i.slots() if name == symbol})


def _mapped(slot: int) -> _Mapping:
    found = _at(_mappings(), slot) if slot % 8 == 0 else None
    if found is None or "r" not in found.rights:
        raise NoSlot(f"{slot:#x} is no slot: {'nothing is mapped there' if slot % 8 == 0 else 'it is not aligned'}.")
    return found


def read(slot: int) -> int:
    """The address that a slot holds.

    Raises
    ------
    NoSlot
        Nothing readable is mapped there.
    """
    _mapped(slot)
    return ctypes.c_uint64.from_address(slot).value


def write(slot: int, value: int) -> int:
    """Put an address into a slot.

    The page is made writable for the moment and gets back the protection that it had: after a full RELRO link slots are
    read-only. The word is aligned and stored at once, so a thread that calls meanwhile takes the old or the new one.

    Returns
    -------
    int
        The address that was there.

    Raises
    ------
    NoSlot
        Nothing is mapped there, or the page's protection cannot be changed.
    """
    with _writing:
        rights = _mapped(slot).rights
        shut = "w" not in rights
        before = sum(bit for letter, bit in PROTECTIONS.items() if letter in rights)
        try:
            if shut:
                _protect(slot, before | PROTECTIONS["w"])
            word = ctypes.c_uint64.from_address(slot)
            old, word.value = word.value, value
        finally:
            if shut:
                _protect(slot, before)
    return old


def _protect(slot: int, protection: int) -> None:
    """mprotect(2) for the page of a slot."""
    call = ctypes.CDLL(None, use_errno=True).mprotect
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if call(slot & -mmap.PAGESIZE, mmap.PAGESIZE, protection):
        why = os.strerror(ctypes.get_errno())
        raise NoSlot(f"The protection of the page of the slot {slot:#x} cannot be changed: {why}.")
