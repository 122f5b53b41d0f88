"""Slots: read from files and from loaded libraries, replaced and put back, with the page protected as before."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import platform
import random
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cuda_magic.allocation import slots
from cuda_magic.allocation.slots import KINDS, NoSlot, find, read, tables, write

HERE = Path(__file__).parent
RELEASES = json.loads((HERE / "slot_tables.json").read_text())
TINY = {machine: (HERE / f"tiny.{machine}.elf").read_bytes() for machine in KINDS}
here = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in KINDS, reason="slots are found on Linux x86-64 and aarch64"
)
LINKS = {
    "lazy": ["-fplt", "-Wl,-z,lazy,-z,norelro"],
    "partial RELRO": ["-fplt", "-Wl,-z,lazy,-z,relro"],
    "full RELRO": ["-fplt", "-Wl,-z,now,-z,relro"],
    "no PLT": ["-fno-plt", "-Wl,-z,now,-z,relro"],
}


def rights(address: int) -> str:
    """The protection of a page, as the kernel tells it."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            return line.split()[1]
    return ""


def loaded(path: Path, lazily: bool = False) -> ctypes.CDLL:
    """ctypes binds everything at once; a host program may not."""
    libc = ctypes.CDLL(None)
    libc.dlopen.restype = ctypes.c_void_p
    handle = libc.dlopen(str(path).encode(), os.RTLD_LAZY if lazily else os.RTLD_NOW)
    assert handle, path
    return ctypes.CDLL(str(path), handle=handle)


@pytest.fixture
def build(tmp_path, request):
    """Compile tiny.c under a name of its own (what is loaded stays), linked as asked."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")

    def make(how: str) -> Path:
        path = tmp_path / f"libtiny{abs(hash((request.node.name, how)))}.so"
        line = [compiler, "-O2", "-fPIC", "-shared", *LINKS[how], "-o", str(path), str(HERE / "tiny.c")]
        subprocess.run(line, check=True)
        return path

    return make


@here
@pytest.mark.parametrize("how", LINKS)
def test_a_call_arrives_where_the_slot_says(build, how):
    """In this library alone; put back, it is as it was, and so is the page's protection."""
    path = build(how)
    library = loaded(path)
    (slot,) = find(path.stem, "getpid")
    before, protected = read(slot), rights(slot)
    assert ("w" in protected) == (how in ("lazy", "partial RELRO"))
    answer = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 4242)
    address = ctypes.cast(answer, ctypes.c_void_p).value
    assert write(slot, address) == before and read(slot) == address
    assert rights(slot) == protected
    assert library.who() == 4242
    assert os.getpid() == ctypes.CDLL(None).getpid() != 4242
    assert write(slot, before) == address and rights(slot) == protected
    assert library.who() == os.getpid()
    assert before == ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value


@here
def test_arguments_and_pointers_pass_through(build):
    path = build("full RELRO")
    library = loaded(path)
    library.ask.restype, library.ask.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    (slot,) = find(path.stem, "malloc")
    asked = []
    answer = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(lambda size: asked.append(size) or 0x7F00_1234_5678)
    old = write(slot, ctypes.cast(answer, ctypes.c_void_p).value)
    assert library.ask(1 << 40) == 0x7F00_1234_5678 and asked == [1 << 40]
    write(slot, old)


@here
def test_a_slot_that_is_not_bound_yet(build):
    """It points into the library, to what looks the function up at the first call; put back, it still does."""
    path = build("lazy")
    library = loaded(path, lazily=True)
    (slot,) = find(path.stem, "getpid")
    stub, real = read(slot), ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value
    assert stub != real
    answer = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 4242)
    write(slot, ctypes.cast(answer, ctypes.c_void_p).value)
    assert library.who() == 4242
    write(slot, stub)
    assert library.who() == os.getpid() and read(slot) == real


@here
def test_an_address_that_is_only_taken_has_a_slot_too(build):
    path = build("full RELRO")
    loaded(path)
    assert [rights(slot)[:2] for slot in find(path.stem, "getppid")] == ["r-"]
    assert tables(path).slots["getppid"] == tuple(k for k in KINDS[platform.machine()].values() if "GLOB" in k)


@here
def test_two_threads_write_on_one_page(build):
    """The second must not meet the page when the first has just protected it again."""
    path = build("full RELRO")
    loaded(path)
    places = [find(path.stem, name)[0] for name in ("getpid", "malloc")]
    assert len({place // mmap.PAGESIZE for place in places}) == 1
    protected = rights(places[0])

    def again(place):
        value = read(place)
        for _ in range(100):
            assert write(place, value) == value

    threads = [threading.Thread(target=again, args=[place]) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rights(places[0]) == protected


@here
def test_what_is_not_loaded_has_no_slots(build):
    """A file that is only mapped, or a name that is not there; and a function that is not called."""
    path = build("lazy")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        assert path.name in Path("/proc/self/maps").read_text()
        assert find(path.stem, "getpid") == []
    loaded(path)
    assert find(path.stem, "cudaMalloc") == []
    assert find("libnosuchthing", "malloc") == []


def test_elsewhere_there_are_none(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    assert find("c", "malloc") == []


@here
def test_what_is_no_slot_is_refused():
    for place, why in ((0, "nothing is mapped"), (12, "not aligned")):
        with pytest.raises(NoSlot, match=why):
            read(place)
        with pytest.raises(NoSlot, match=why):
            write(place, 1)


@here
def test_memory_and_file_agree(build):
    """The same reader: every slot that the file tells is found in the loaded library."""
    path = build("partial RELRO")
    loaded(path)
    said = tables(path)
    assert {"malloc", "getpid", "getppid"} <= set(said.slots) and said.machine == platform.machine()
    for symbol in said.slots:
        assert find(path.stem, symbol), symbol


@pytest.mark.parametrize("machine", KINDS)
def test_real_files_of_both_machines(machine):
    """Linked for glibc 2.17 by another linker than this system's (tiny.c says how)."""
    jump, data = f"R_{machine.upper()}_JUMP_SLOT", f"R_{machine.upper()}_GLOB_DAT"
    said = tables(TINY[machine])
    assert said.slots == {"malloc": (jump,), "getpid": (jump,), "getppid": (data,)}
    assert (said.machine, said.needed, said.bind_now) == (machine, ("libc.so.6",), False)


@here
def test_bind_now_is_told(build):
    assert [tables(build(how)).bind_now for how in ("lazy", "full RELRO")] == [False, True]


@pytest.mark.parametrize("relocated", [True, False], ids=["as glibc leaves it", "as musl leaves it"])
@pytest.mark.parametrize("machine", KINDS)
def test_a_loaded_image(machine, relocated):
    """A file laid out as a loader would: tags hold addresses of the process, or those of the file."""
    content, base = TINY[machine], 0x7F12_3456_0000
    loads = [one for one in slots._Image("tiny", lambda at, n: content[at : at + n]).segments if one.kind == 1]
    laid = bytearray(max(one.address + one.in_memory for one in loads))
    for one in loads:
        laid[one.address : one.address + one.in_file] = content[one.offset : one.offset + one.in_file]
    image = slots._Image("tiny", lambda at, n: bytes(laid[at : at + n]), base)
    expected = list(image.slots())
    if relocated:
        (dynamic,) = (one for one in image.segments if one.kind == 2)
        for place in range(dynamic.address, dynamic.address + dynamic.in_file, 16):
            tag, value = struct.unpack_from("<qQ", laid, place)
            if tag in (3, 4, 5, 6, 7, 23, 0x6FFFFEF5):
                struct.pack_into("<Q", laid, place + 8, base + value)
    assert list(image.slots()) == expected and len(expected) == 3 and image.bias == base


def test_broken_files_say_so():
    for content, why in (
        (b"", "no 64-bit"),
        (b"MZ" + bytes(200), "no 64-bit"),
        (TINY["x86_64"][:18] + b"\x08" + TINY["x86_64"][19:], "another machine"),
        (TINY["x86_64"][:100], "not whole"),
        (TINY["aarch64"][:1500], "points outside"),
    ):
        with pytest.raises(NoSlot, match=why):
            tables(content)
    drawn = random.Random(0)
    for _ in range(3000):
        content = bytearray(TINY[drawn.choice(list(KINDS))])
        for _ in range(drawn.randint(1, 4)):
            content[drawn.randrange(len(content) if drawn.random() < 0.5 else 1500)] = drawn.randrange(256)
        try:
            tables(bytes(content))
        except NoSlot:
            pass  # and nothing else


@pytest.mark.parametrize("release", RELEASES)
def test_torch_can_be_hooked(release):
    """Each release's wheels call the runtime by slots that `find` knows; data by read_slot_tables.py.

    Older wheels for aarch64 are CPU builds, which have no such library; x86-64 always has one.
    """
    found = RELEASES[release]
    assert set(found) == set(KINDS) and isinstance(found["x86_64"], dict)
    assert isinstance(found["aarch64"], dict) == (tuple(map(int, release.split("."))) >= (2, 11))
    for machine, table in found.items():
        if isinstance(table, str):
            assert table.startswith("a CPU build")
            continue
        assert any(name.startswith("libcudart.so") for name in table["needed"]), "linked statically: no slots"
        for symbol in ("cudaMalloc", "cudaFree", "cudaMallocAsync", "cudaFreeAsync"):
            assert table["slots"][symbol] and set(table["slots"][symbol]) <= set(KINDS[machine].values())


def test_a_release_of_each_minor_version_is_there():
    minors = [tuple(map(int, release.split(".")[:2])) for release in RELEASES]
    assert minors == [(2, minor) for minor in range(2, minors[-1][1] + 1)] and minors[-1] >= (2, 14)
