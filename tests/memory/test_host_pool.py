"""The host arena, on ordinary memory: sizes, reuse, caps, failures, giving back."""

from __future__ import annotations

import gc
import random

import pytest

torch = pytest.importorskip("torch")
from cuda_magic.memory import host  # noqa: E402
from cuda_magic.memory.torch import offload  # noqa: E402
from cuda_magic.memory.torch.offload import host_pool as rooms  # noqa: E402
from cuda_magic.memory.torch.offload import pinned_memory  # noqa: E402

pytestmark = pytest.mark.torch
MIB = 1 << 20


class Event:
    """A copy that is done when the test says so."""

    def __init__(self, done=False):
        self.done = done

    def query(self):
        return self.done


def made(limit=256 * MIB):
    return rooms.HostPool(torch, pin=False, limit=limit)


def test_buffers_are_apart_and_exactly_as_large_as_asked_for():
    """Random sizes taken and given in random order: no two buffers share a byte, contents stay."""
    arena, out, rng = made(), [], random.Random(1)
    for number in range(400):
        if out and rng.random() < 0.45:
            buffer, tag = out.pop(rng.randrange(len(out)))
            assert bool((buffer.data == tag).all())
            arena.give(buffer)
        else:
            size = rng.choice([1, 100, 4096, 5000, MIB, 3 * MIB + 7])
            buffer = arena.take(size)
            assert buffer.data.numel() == size
            buffer.data.fill_(number % 251)
            out.append((buffer, number % 251))
    assert all(bool((b.data == tag).all()) for b, tag in out)
    assert arena.held - arena.free == sum(b.size for b, _ in out)
    while out:
        arena.give(out.pop()[0])
    del buffer
    assert arena.free == arena.held
    assert all(len(s.holes) == 1 for s in arena._slabs)


def test_memory_is_used_again():
    """A second round of the same sizes takes nothing new from the host."""
    arena = made()
    for _ in range(3):
        buffers = [arena.take(20 * MIB) for _ in range(5)]
        held = arena.held
        for buffer in buffers:
            arena.give(buffer)
    assert arena.held == held


def test_a_copy_still_under_way_is_handed_to_the_next_user():
    """Events that are not done stay with the memory, through merging and splitting; done ones are forgotten."""
    arena = made()
    first, second = arena.take(MIB), arena.take(MIB)
    busy, done = Event(), Event(True)
    arena.give(first, [busy, None])
    arena.give(second, [done])
    again = arena.take(2 * MIB)
    assert again.offset == 0
    assert again.events == (busy,)


def test_the_cap_is_respected_and_nothing_changes_when_it_is_reached():
    """Beyond the limit `NoHostMemory` in one sentence; what was taken before stays valid."""
    arena = made(limit=8 * MIB)
    kept = arena.take(6 * MIB)
    kept.data.fill_(7)
    with pytest.raises(rooms.NoHostMemory, match="the host can give 2.00 MiB, 4.00 MiB more"):
        arena.take(4 * MIB)
    assert arena.held <= 8 * MIB
    assert bool((kept.data == 7).all())
    arena.take(2 * MIB)


def test_a_failing_host_is_told_as_such(monkeypatch):
    """Whatever the mapping raises becomes `NoHostMemory`."""
    arena = made(limit=1 << 50)
    for error in (OSError("Cannot allocate memory"), MemoryError(), RuntimeError("no memory"), OverflowError()):

        def fail(*_, error=error):
            raise error

        monkeypatch.setattr(pinned_memory, "_mapped", fail)
        with pytest.raises(rooms.NoHostMemory):
            arena.take(MIB)
    assert arena.held == 0


def test_the_host_keeps_a_part(monkeypatch):
    """A tenth of what is free, a GiB at least, is never taken."""
    arena = rooms.HostPool(torch, pin=False)
    monkeypatch.setattr(host, "available", lambda: 40 << 30)
    assert arena.room() == 36 << 30
    monkeypatch.setattr(host, "available", lambda: 512 * MIB)
    assert arena.room() == 0
    with pytest.raises(rooms.NoHostMemory):
        arena.take(1)


def test_release_gives_back_what_no_buffer_uses():
    """A slab in use stays, and its free rest is used again; the others go back."""
    arena = made()
    small, large = arena.take(MIB), arena.take(100 * MIB)
    arena.give(large)
    small.data.fill_(3)
    held = arena.held
    del large
    given = arena.release()
    assert given >= 100 * MIB and arena.held == held - given == small.slab.size
    assert bool((small.data == 3).all())
    arena.give(small)
    del small
    arena.release()
    assert arena.held == 0


def test_a_lost_buffer_comes_back_by_release():
    """A buffer that nobody gave back (an interrupt) costs no more than the next release."""
    arena = made()
    arena.take(MIB)
    gc.collect()
    assert arena.free < arena.held
    arena.release()
    assert arena.held == 0


def test_reserve_takes_all_at_once():
    """After `reserve` the buffers come out of what is there; beyond the limit it fails beforehand."""
    arena = made()
    arena.reserve(70 * MIB)
    held = arena.held
    for _ in range(70):
        arena.take(MIB)
    assert arena.held == held
    with pytest.raises(rooms.NoHostMemory):
        arena.reserve(1 << 40)


def test_control_groups_count(tmp_path):
    """In a container its limit counts, less what it uses; file cache that goes at once is not used."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 99999999 kB\nMemAvailable: 50000000 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/box\n")
    box = tmp_path / "sys/fs/cgroup/box"
    box.mkdir(parents=True)
    (box / "memory.max").write_text("8589934592\n")
    (box / "memory.current").write_text("7589934592\n")
    assert host.available(tmp_path) == 1_000_000_000
    (box / "memory.stat").write_text("anon 1\ninactive_file 3000000000\n")
    assert host.available(tmp_path) == 4_000_000_000


def test_much_is_not_kept(monkeypatch):
    """After a rescue more than a quarter of what the host has left goes back; less is kept for the next time."""
    arena = made()
    monkeypatch.setattr(rooms, "_shared", [arena])
    arena.give(arena.take(100 * MIB))
    monkeypatch.setattr(host, "available", lambda: 4 << 30)
    assert offload.release(excess=True) == 0
    monkeypatch.setattr(host, "available", lambda: 256 * MIB)
    assert offload.release(excess=True) >= 100 * MIB
    assert offload.release() == arena.held == 0


def test_nothing_was_parked_nothing_to_give_back():
    """`%gpu_mem --free` imports no arena, and gives back what the shared one holds."""
    offload.release()
    rooms.shared(torch)._pin = False
    rooms.shared(torch)._limit = 256 * MIB
    buffer = rooms.shared(torch).take(MIB)
    rooms.shared(torch).give(buffer)
    del buffer
    assert offload.release() >= MIB
    assert rooms.shared(torch).held == 0
    rooms._shared.clear()
