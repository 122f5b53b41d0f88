"""Compaction on the model of the allocator: what a plan promises comes true, and no block is lost or doubled."""

from __future__ import annotations

import random
import signal

import pytest
import random_heaps

from cuda_magic.machine import use
from cuda_magic.memory.compaction import compact, predict
from cuda_magic.memory.compaction.heap import Heap
from cuda_magic.memory.compaction.plan import plan
from cuda_magic.memory.compaction.replay import Stranded
from cuda_magic.memory.compaction.rules import MIB
from cuda_magic.testing import gpu


@pytest.fixture
def card():
    """A practice card of 2 GiB."""
    yield gpu(("2 GiB",), force=True)
    use(None)


def fits(card, size: int) -> bool:
    try:
        card.empty(size)
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("kind", random_heaps.KINDS)
def test_a_plan_that_was_made_comes_true(kind):
    """The request fits after it, every tensor has its data, no two blocks overlap; what is refused moves nothing."""
    states = set()
    for seed in range(6 if kind == "small" else 30):
        result = random_heaps.one(seed, kind)
        assert not result.wrong, (seed, result)
        states.add(result.outcome.how)
    assert len(states - {"fits"}) >= 2, states  # the seeds reach more than the trivial


@pytest.mark.parametrize("kind", ["large", "mixed", "expandable"])
def test_without_host_memory_nothing_leaves_the_card(kind):
    """Plans over the host are not made where the host has no room; those on the card still are."""
    for seed in range(15):
        result = random_heaps.one(seed, kind, host=0)
        assert not result.wrong, (seed, result)
        assert result.outcome.how != "out"


def tight(card):
    """Blocks of 96 MiB with holes of 64 MiB between them, and nothing else free: only the host can help."""
    one = card.allocator
    one.cards[0].reserved = one.cards[0].context_size = 0
    card.limit("1920 MiB")
    card.empty("1920 MiB")
    blocks = [card.empty(f"{n} MiB") for _ in range(12) for n in (96, 64)]
    live = blocks[::2]
    for i, tensor in enumerate(live):
        card.fill(tensor, i + 1)
    return live


def test_over_the_host_when_no_plan_on_the_card_exists(card):
    """One block of 96 MiB leaves and comes back; 700 MiB then fit."""
    live = tight(card)
    outcome = compact(card.allocator, 0, 700 * MIB)
    assert (outcome.how, outcome.done, outcome.parked) == ("out", True, 96 * MIB)
    assert [card.sum(t) for t in live] == [(i + 1) * 96 * MIB for i in range(12)]
    assert fits(card, 700 * MIB)


@pytest.mark.parametrize("fails", ["copy_out", "let_go", "move", "filler", "copy_in"])
def test_a_failure_on_the_way_leaves_every_byte(card, monkeypatch, fails):
    """Host memory, a copy or the allocator fails at each possible point once: stopped, said, all data in place."""
    for at in range(1, 40, 3):
        use(None)
        one = gpu(("2 GiB",), force=True)
        live = tight(one)
        real, left = getattr(one.allocator, fails), [at]

        def broken(*arguments, real=real, left=left):
            left[0] -= 1
            if not left[0]:
                raise RuntimeError("no more")
            return real(*arguments)

        monkeypatch.setattr(one.allocator, fails, broken)
        outcome = compact(one.allocator, 0, 700 * MIB)
        assert outcome.done or "all data in place" in outcome.reason
        assert [one.sum(t) for t in live] == [(i + 1) * 96 * MIB for i in range(12)]
        assert all(t.data_ptr() for t in live)
        if left[0] > 0:
            break  # this step comes less often than that
        assert fits(one, "64 MiB")  # no filler is left behind
        del live
        assert one.allocator.stats(0).allocated == 0  # nothing of what was tried is held, no collection needed


def test_an_interrupt_is_delivered_after_the_last_block_is_back(card, monkeypatch):
    """SIGINT while a block is only on the host: it comes back first, then KeyboardInterrupt is raised."""
    live = tight(card)
    real = card.allocator.let_go

    def interrupted(storage):
        real(storage)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(card.allocator, "let_go", interrupted)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        compact(card.allocator, 0, 700 * MIB)
    assert signal.getsignal(signal.SIGINT) is before
    assert [card.sum(t) for t in live] == [(i + 1) * 96 * MIB for i in range(12)]
    assert fits(card, 700 * MIB)


def test_contents_that_cannot_come_back_are_kept_and_named(card, monkeypatch):
    """When somebody else took all memory meanwhile: the error holds the copies; nothing pretends to be whole."""
    live = tight(card)

    def never(*arguments):
        raise RuntimeError("taken")

    monkeypatch.setattr(card.allocator, "copy_in", never)
    with pytest.raises(Stranded) as caught:
        compact(card.allocator, 0, 700 * MIB)
    ((storage, copy),) = caught.value.kept
    assert storage.nbytes == 96 * MIB and copy
    assert len(live) == 12


def test_a_place_that_another_stream_still_uses_is_tried_again(card, monkeypatch):
    """A freed block that comes back only after the device was waited for: the plan goes on and comes true."""
    live = tight(card)
    allocator = card.allocator
    late: list = []
    real_filler, real_healthy = allocator.filler, allocator.healthy
    calls = [0]

    def filler(device, nbytes, stream=0):
        calls[0] += 1
        if calls[0] == 3 and not late:
            late.append(True)
            return real_filler(device, 512, stream)  # somewhere else
        return real_filler(device, nbytes, stream)

    monkeypatch.setattr(allocator, "filler", filler)
    monkeypatch.setattr(allocator, "healthy", lambda device: real_healthy(device))
    outcome = compact(allocator, 0, 700 * MIB)
    assert late and outcome.done, outcome
    assert [card.sum(t) for t in live] == [(i + 1) * 96 * MIB for i in range(12)]


def test_sparse_small_segments_give_memory_back(card):
    """One live block of 256 KiB in each of 400 small segments: they are emptied for a large request."""
    allocator = card.allocator
    allocator.cards[0].reserved = allocator.cards[0].context_size = 0
    card.limit("1 GiB")
    blocks = [card.empty("256 KiB") for _ in range(8 * 400)]
    live = blocks[::8]
    del blocks
    for i, tensor in enumerate(live):
        card.fill(tensor, i % 251)
    assert not fits(card, "700 MiB")
    outcome = compact(allocator, 0, 700 * MIB)
    assert outcome.done, outcome
    assert [card.sum(t) for t in live] == [(i % 251) * 256 * 1024 for i in range(400)]
    assert fits(card, "700 MiB")


def test_memory_goes_between_the_pools_of_two_streams(card):
    """Segments of one stream are emptied and returned to the driver, so that the other stream's request fits."""
    allocator = card.allocator
    allocator.cards[0].reserved = allocator.cards[0].context_size = 0
    card.limit("1 GiB")
    allocator.stream = 7
    blocks = [card.empty("10 MiB") for _ in range(100)]
    live = blocks[::2]
    del blocks
    allocator.stream = 0
    assert fits(card, "480 MiB")  # segments of their own: the cache is enough
    allocator.stream = 7
    del live
    blocks = [card.empty("7 MiB") for _ in range(100)]
    live = blocks[::2]
    del blocks
    allocator.stream = 0
    assert not fits(card, "600 MiB")
    outcome = compact(allocator, 0, 600 * MIB)
    assert outcome.done, outcome
    assert fits(card, "600 MiB")
    assert {s.stream for s in allocator.segments(0) if any(b.state == "live" for b in s.blocks)} == {7}
    assert len(live) == 50


def test_expandable_segments_give_partly_used_pages_back(card):
    """Every page of 20 MiB holds a block of 4 MiB: nothing can be unmapped; packed, most pages can."""
    allocator = card.allocator
    allocator.cards[0].reserved = allocator.cards[0].context_size = 0
    card.limit("1 GiB")
    allocator.caching[0].expandable = True
    blocks = [card.empty("4 MiB") for _ in range(250)]
    live = blocks[::5]
    del blocks
    for i, tensor in enumerate(live):
        card.fill(tensor, i + 1)
    assert not fits(card, "500 MiB")
    outcome = compact(allocator, 0, 500 * MIB)
    assert outcome.done, outcome
    assert [card.sum(t) for t in live] == [(i + 1) * 4 * MIB for i in range(50)]
    assert fits(card, "500 MiB")


def test_what_may_not_be_moved_stays_where_it_is(card):
    """A storage with a reason keeps its address, and where it bars the way the reason is said."""
    card.empty("1280 MiB")  # one cached segment, which the blocks are then cut from
    blocks = [card.empty("64 MiB") for _ in range(20)]
    allocator = card.allocator
    kept = blocks[::2]
    del blocks
    before = {s.key: s.address for s in allocator.storages(0)}
    storages = [s.__class__(s.key, s.device, s.address, s.nbytes, s.handle, "held elsewhere") for s in
                allocator.storages(0)]  # fmt: skip
    assert plan(lambda: Heap.of(allocator.segments(0), storages, 0), 300 * MIB) is None
    assert {s.key: s.address for s in allocator.storages(0)} == before
    assert len(kept) == 10


def test_planning_changes_nothing(card):
    """Asking whether a request would fit moves no tensor."""
    live = random_heaps.strewn(card, "large", random.Random(1))
    allocator = card.allocator
    before = {s.key: s.address for s in allocator.storages(0)}
    predict(allocator, 0, 200 * MIB)
    assert {s.key: s.address for s in allocator.storages(0)} == before
    assert live
