"""The native shim over a CUDA of our own: who is asked, what is counted, and that bytes stay in an exchange."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys

import pytest
from on_fake_cuda import CHUNK, MIB, Card, in_child

from cuda_magic.allocation.native import CARD, HOST, NO_ROOM, NOWHERE, TRY_AGAIN, USE_HOST

OUT_OF_MEMORY = 2


@in_child
def test_small_segments_are_plain_and_large_ones_are_chunks(card: Card):
    """From the set size on, and counted in both forms."""
    small, large = card.new(MIB), card.new(5 * MIB + MIB)
    assert [chunk.size for chunk in card.shim.chunks()] == [CHUNK] * 3
    assert card.shim.owns() == 4
    assert card.shim.counts(0).card == card.shim.counts(0).most == card.get("fake_used") == 7 * MIB
    card.shim.set_chunks(False)
    plain = card.new(8 * MIB)
    assert len(card.starts()) == 3
    for address in (small, large, plain):
        assert card.free(address) == 0
    assert card.shim.counts(0).most == 15 * MIB
    card.nothing_left()


@in_child
def test_without_a_handler_torch_gets_its_own_error(card: Card):
    """As the driver gave it; and the error that torch would find next is cleared."""
    assert card.malloc(20 * MIB)[0] == OUT_OF_MEMORY
    card.shim.set_chunks(False)
    assert card.malloc(20 * MIB)[0] == OUT_OF_MEMORY
    assert card.get("fake_last_error", ctypes.c_int) == 0
    card.nothing_left()


@in_child
def test_a_limit_is_held_and_asks(card: Card):
    """What it would pass fails though the card has room; without it there is room again."""
    asked = []
    card.shim.set_handler(lambda *request: asked.append(request) or NO_ROOM)
    card.shim.set_limit(0, 6 * MIB)
    first = card.new(4 * MIB)
    assert card.malloc(4 * MIB)[0] == card.malloc(3 * MIB)[0] == OUT_OF_MEMORY
    assert asked == [(0, 4 * MIB, 0), (0, 3 * MIB, 0)]
    assert card.shim.counts(0).limit == 6 * MIB
    card.shim.set_limit(0, None)
    second = card.new(4 * MIB)
    assert card.free(first) == card.free(second) == 0
    card.nothing_left()


@in_child
def test_try_again_counts_its_tries(card: Card):
    """The handler is asked until the request fits, each time with how often it was asked before."""
    held, tries = [card.new(4 * MIB) for _ in range(4)], []

    def handler(device, nbytes, n):
        tries.append(n)
        card.free(held.pop())
        return TRY_AGAIN

    card.shim.set_handler(handler)
    address = card.new(12 * MIB)
    assert tries == [0, 1, 2]
    assert card.shim.counts(0).asked == 1
    assert card.shim.counts(0).nanoseconds > 0
    assert [card.free(one) for one in (address, *held)] == [0, 0]
    card.nothing_left()


@in_child
def test_a_handler_that_always_says_again_ends(card: Card):
    """After 64 tries torch gets its error."""
    asked = []
    card.shim.set_handler(lambda *request: asked.append(request) or TRY_AGAIN)
    assert card.malloc(20 * MIB)[0] == OUT_OF_MEMORY
    assert len(asked) == 64


@in_child
def test_a_segment_on_the_host(card: Card):
    """Chunks of the host where the driver has them; page-locked memory where it has none, and for odd sizes."""
    card.shim.set_handler(lambda *request: USE_HOST)
    chunked, odd = card.new(20 * MIB, 7), card.new(17 * MIB + 4096, 8)
    assert card.starts(HOST) == [chunked + CHUNK * i for i in range(10)]
    assert card.get("fake_pinned") == 17 * MIB + 4096
    counts = card.shim.counts(0)
    assert (counts.card, counts.host, counts.made_on_host) == (0, 37 * MIB + 4096, 2)
    assert card.bytes(chunked, 20 * MIB) == {7}
    assert card.bytes(odd, 17 * MIB + 4096) == {8}
    assert card.free(chunked) == card.free(odd) == 0
    assert card.shim.counts(0).kept == 20 * MIB  # made once, used again
    card.nothing_left()


@in_child
def test_a_driver_without_host_chunks(card: Card):
    """It is found out, and a segment on the host is then page-locked memory."""
    card.set("fake_host", 0)
    assert not card.shim.find_host(0)
    card.shim.set_handler(lambda *request: USE_HOST)
    address = card.new(20 * MIB)
    assert card.get("fake_pinned") == 20 * MIB
    assert card.free(address) == 0
    card.nothing_left()


@in_child
def test_an_error_in_the_handler_is_torchs_error(card: Card):
    """Whatever leaves the handler: no room, nothing lost, and the next request is asked again."""
    for error in (ValueError, KeyboardInterrupt, SystemExit, MemoryError):

        def handler(device, nbytes, tries, error=error):
            raise error

        seen = []
        sys.unraisablehook = lambda given, seen=seen: seen.append(given.exc_type)
        card.shim.set_handler(handler)
        assert card.malloc(20 * MIB)[0] == OUT_OF_MEMORY
        assert seen == [error]
    assert card.shim.counts(0).asked == 4
    card.nothing_left()


@in_child
def test_a_handler_that_allocates_is_not_asked_again(card: Card):
    """A request of the handler's own that fails fails: no endless regress."""
    asked, inner = [], []

    def handler(*request):
        asked.append(request)
        inner.append(card.malloc(30 * MIB)[0])
        return NO_ROOM

    card.shim.set_handler(handler)
    assert card.malloc(20 * MIB)[0] == OUT_OF_MEMORY
    assert (len(asked), inner) == (1, [OUT_OF_MEMORY])


@in_child
def test_an_interrupt_inside_the_handler_comes_afterwards(card: Card):
    """The handler ends its work, the request gets its memory, and then Python raises."""
    steps = []

    def handler(*request):
        os.kill(os.getpid(), signal.SIGINT)
        steps.append("after the signal")
        card.cap(64 * MIB)
        return TRY_AGAIN

    card.shim.set_handler(handler)
    pointer = ctypes.c_void_p()
    with pytest.raises(KeyboardInterrupt):
        card._malloc(ctypes.addressof(pointer), 20 * MIB)
        for _ in range(1000):
            pass
    assert steps == ["after the signal"]
    assert pointer.value
    assert card.free(pointer.value) == 0
    card.nothing_left()


@in_child
def test_an_interrupt_that_was_pending_does_not_take_the_answer(card: Card):
    """It takes the place of the first call of the handler; the second one answers, and then Python raises."""
    answered = []
    sys.unraisablehook = lambda given: None

    def handler(*request):
        answered.append(request)
        card.cap(64 * MIB)
        return TRY_AGAIN

    card.shim.set_handler(handler)
    interrupted = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
        ("fake_interrupted", card.lib)
    )
    pointer = ctypes.c_void_p()
    with pytest.raises(KeyboardInterrupt):
        interrupted(card.shim.malloc, ctypes.addressof(pointer), 20 * MIB)
        for _ in range(1000):
            pass
    assert len(answered) == 1
    assert pointer.value
    assert card.free(pointer.value) == 0


@in_child
def test_300_interrupts_lose_nothing(card: Card):
    """At random moments of a loop that allocates on a full card: every byte intact, all counts zero at the end."""
    held, came, draw = [True], [0], random.Random(3)  # held: the bookkeeping of this test is not interrupted
    size, many = 6 * MIB, 8
    slots, values = (ctypes.c_void_p * many)(), [0] * many

    def interrupt(number, frame):
        came[0] += 1
        if not held[0]:
            held[0] = True
            raise KeyboardInterrupt

    def handler(device, nbytes, tries):
        here = card.starts(CARD)
        moved, error = card.shim.exchange(draw.sample(here, min(4, len(here))), HOST)
        return TRY_AGAIN if moved and not error else USE_HOST

    signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = lambda given: None
    card.shim.set_handler(handler)
    send = "import os,random,signal,sys,time\nr=random.Random(1)\nfor _ in range(300):\n time.sleep(r.random()*.004)\n"
    send += " os.kill(int(sys.argv[1]), signal.SIGINT)\n"
    sender = subprocess.Popen([sys.executable, "-c", send, str(os.getpid())])
    turn = 0
    while sender.poll() is None:
        turn += 1
        i = draw.randrange(many)
        if slots[i]:
            assert not values[i] or card.bytes(slots[i], size) == {values[i]}, turn
            assert card.free(slots[i]) == 0
        slots[i], values[i] = 0, 0
        with contextlib.suppress(KeyboardInterrupt):
            held[0] = False
            assert card._malloc(ctypes.addressof(slots) + 8 * i, size) == 0
            held[0] = True
        if slots[i]:
            values[i] = 1 + turn % 255
            ctypes.memset(slots[i], values[i], size)
    for i in range(many):
        if slots[i]:
            assert card.bytes(slots[i], size) == {values[i]}
            assert card.free(slots[i]) == 0
    assert came[0] > 20  # a busy machine joins several that wait into one
    card.nothing_left()


@in_child
def test_a_forked_child_passes_through(card: Card):
    """It asks nobody, its memory is plain, and what the parent has stays the parent's."""
    address = card.new(8 * MIB, 9)
    card.shim.set_handler(lambda *request: USE_HOST)
    child = os.fork()
    if not child:
        error, inner = card.malloc(4 * MIB)
        fine = error == 0 and inner and card.malloc(20 * MIB)[0] == OUT_OF_MEMORY and card.free(inner) == 0
        os._exit(0 if fine and card.shim.counts(0).asked == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert card.bytes(address, 8 * MIB) == {9}
    assert card.free(address) == 0
    card.nothing_left()


@in_child
def test_an_exchange_keeps_bytes_and_addresses(card: Card):
    """To the host and back, some chunks and all; the card has room meanwhile, and host memory is made once."""
    address = card.new(12 * MIB)
    pattern = random.Random(0).randbytes(12 * MIB)
    ctypes.memmove(address, pattern, 12 * MIB)
    chunks = card.starts()
    assert card.shim.exchange(chunks[1:4], HOST) == (3 * CHUNK, 0)
    assert card.shim.counts(0)[:2] == (6 * MIB, 6 * MIB)
    assert ctypes.string_at(address, 12 * MIB) == pattern
    other = card.new(10 * MIB, 3)
    ctypes.memset(chunks[1], 5, CHUNK)  # written while it is on the host
    assert card.shim.exchange(chunks, CARD)[1] == OUT_OF_MEMORY
    assert card.free(other) == 0
    card.shim.exchange(chunks, CARD)
    expected = pattern[:CHUNK] + bytes([5]) * CHUNK + pattern[2 * CHUNK :]
    assert ctypes.string_at(address, 12 * MIB) == expected
    assert card.starts(HOST) == []
    made = card.get("fake_creates", ctypes.c_int)
    assert card.shim.exchange(chunks[1:4], HOST) == (3 * CHUNK, 0)
    assert card.get("fake_creates", ctypes.c_int) == made
    assert card.free(address) == 0
    card.nothing_left()


@in_child
def test_an_exchange_of_what_is_no_chunk_does_nothing(card: Card):
    """An address inside a chunk, a plain segment, one that is there already, nothing at all."""
    plain, address = card.new(MIB), card.new(4 * MIB)
    assert card.shim.exchange([plain, address + 4096, 12345, address], CARD) == (0, 0)
    assert card.shim.exchange([], HOST) == (0, 0)
    assert card.free(plain) == card.free(address) == 0
    card.nothing_left()


@in_child
def test_the_driver_fails_in_the_middle_of_an_exchange(card: Card):
    """A copy, or the n-th mapping: what has not moved is as it was, at its address, with its bytes."""
    address = card.new(8 * MIB, 6)
    chunks = card.starts()
    card.set("fake_copy_error", 700)
    assert card.shim.exchange(chunks, HOST) == (0, 700)
    card.set("fake_copy_error", 0)
    for nth in range(1, 2 * len(chunks) + 1):
        card.set("fake_map_errors", nth)
        moved, error = card.shim.exchange(chunks, HOST)
        assert error == 999
        assert moved == max(0, nth - 1 - len(chunks)) * CHUNK
        assert card.bytes(address, 8 * MIB) == {6}
        assert card.shim.exchange(chunks, CARD)[1] == 0
        assert card.bytes(address, 8 * MIB) == {6}
    assert card.free(address) == 0
    card.nothing_left()


@in_child
def test_nothing_behind_a_stretch_that_nobody_uses(card: Card):
    """Its memory goes to others and comes back, without its contents; and it can be freed meanwhile."""
    address = card.new(16 * MIB, 4)
    chunks = card.starts()
    assert card.shim.exchange(chunks[2:6], NOWHERE, copy=False) == (4 * CHUNK, 0)
    assert card.shim.counts(0)[:2] == (8 * MIB, 0)
    other = card.new(8 * MIB, 5)
    assert card.free(other) == 0
    assert card.shim.exchange(chunks[2:4], CARD, copy=False) == (2 * CHUNK, 0)
    ctypes.memset(chunks[2], 1, 2 * CHUNK)
    assert card.bytes(address, 2 * CHUNK) == {4}
    assert card.bytes(chunks[6], 2 * CHUNK) == {4}
    assert card.free(address) == 0
    card.nothing_left()


@in_child
def test_segments_that_were_there_before(card: Card):
    """They count in the limit, are freed by the real function, and being told twice does no harm."""
    real = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(("cudaMalloc", card.lib))
    pointer = ctypes.c_void_p()
    assert real(ctypes.addressof(pointer), 10 * MIB) == 0
    for _ in range(2):
        card.shim.known(pointer.value, 10 * MIB, 0)
    assert card.shim.counts(0).card == 10 * MIB
    card.shim.set_limit(0, 12 * MIB)
    assert card.malloc(4 * MIB)[0] == OUT_OF_MEMORY
    before = card.get("fake_plain_frees", ctypes.c_int)
    assert card.free(pointer.value) == 0
    assert card.get("fake_plain_frees", ctypes.c_int) == before + 1
    card.nothing_left()


@in_child
def test_two_cards_have_plain_segments(card: Card):
    """Another card could not reach chunks."""
    card.set("fake_devices", 2)
    address = card.new(8 * MIB)
    assert card.starts() == []
    assert card.free(address) == 0
    card.nothing_left()


class Properties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("where", ctypes.c_int),
        ("device", ctypes.c_int),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


@in_child
def test_expandable_segments(card: Card):
    """Only a request that fails a second time gets memory of the host, as long as that is on; all is counted."""
    kind = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint64)
    create, release = kind(card.shim.create), ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_uint64)(card.shim.release)
    properties, handle = Properties(1, 1, 1, 0), ctypes.c_uint64()
    handles = []

    def ask(nbytes):
        error = create(ctypes.addressof(handle), nbytes, ctypes.addressof(properties), 0)
        handles.extend([handle.value] if not error else [])
        return error

    assert [ask(8 * MIB) for _ in range(4)] == [0, 0, OUT_OF_MEMORY, OUT_OF_MEMORY]
    card.shim.set_expandable_on_host(True)
    assert ask(4 * MIB) == OUT_OF_MEMORY  # torch gives back its cache now, and asks again
    assert card.shim.counts(0).host == 0
    assert ask(4 * MIB) == 0
    assert ask(4 * MIB) == 0  # further pages of the same request
    assert card.shim.counts(0)[:2] == (16 * MIB, 8 * MIB)
    card.shim.set_limit(0, 16 * MIB)
    card.cap(64 * MIB)
    assert ask(2 * MIB) == OUT_OF_MEMORY
    for one in handles:
        assert release(one) == 0
    assert release(4000) != 0
    card.nothing_left()


@in_child
def test_trim_gives_back_kept_host_memory(card: Card):
    """Down to what is asked for."""
    address = card.new(8 * MIB)
    card.shim.exchange(card.starts(), HOST)
    assert card.free(address) == 0
    assert card.shim.counts(0).kept == 8 * MIB
    assert card.shim.trim(3 * MIB) == 6 * MIB
    assert card.shim.counts(0).kept == card.get("fake_on_host") == 2 * MIB
    card.nothing_left()


@in_child
def test_another_thread_asks_too(card: Card):
    """Without the GIL held by the caller, as torch calls it."""
    import threading

    asked = []
    card.shim.set_handler(lambda *request: asked.append(threading.current_thread().name) or USE_HOST)
    outside = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(card.shim.malloc)
    pointers = [ctypes.c_void_p() for _ in range(4)]
    threads = [
        threading.Thread(target=outside, args=(ctypes.addressof(p), 20 * MIB), name=f"t{i}")
        for i, p in enumerate(pointers)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(asked) == ["t0", "t1", "t2", "t3"]
    assert [card.free(p.value) for p in pointers] == [0] * 4
    card.nothing_left()
