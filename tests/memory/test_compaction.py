"""Compaction on the model of the allocator: what a plan promises comes true, and no block is lost or doubled."""

from __future__ import annotations

import random

import pytest

from cuda_magic.machine import use
from cuda_magic.memory.compaction import compact, predict
from cuda_magic.memory.compaction.heap import Heap
from cuda_magic.memory.compaction.plan import plan
from cuda_magic.memory.compaction.rules import block_size, segment_size
from cuda_magic.testing import gpu

MIB = 1 << 20


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


def strewn(card, draw: random.Random):
    """Live tensors with holes between them, each filled with a number of its own."""
    if draw.random() < 0.5:
        card.empty(int(draw.uniform(0.4, 0.7) * (1 << 30)))  # leaves one large cached segment
    size = draw.choice(
        [
            lambda: draw.randint(MIB + 1, 64 * MIB),
            lambda: 7 * MIB,
            lambda: draw.choice([2, 4, 8, 16, 32, 64]) * MIB,
            lambda: int(2 ** draw.uniform(20.1, 26)),
        ]
    )
    live = []
    try:
        while True:
            live.append(card.empty(size()))
    except RuntimeError:
        pass
    share = draw.uniform(0.1, 0.7)
    live = [t for t in live if draw.random() > share]
    for i, tensor in enumerate(live):
        card.fill(tensor, i % 251)
    return live


@pytest.mark.parametrize("seed", range(40))
def test_a_plan_that_was_made_comes_true(card, seed):
    """The request fits after it, every tensor has its data, and no two blocks overlap."""
    draw = random.Random(seed)
    live = strewn(card, draw)
    allocator = card.allocator
    allocator.empty_cache()
    free = allocator.driver_memory(0)[0] + allocator.stats(0).cached
    request = int(free * draw.choice([0.3, 0.5, 0.7, 0.9]))
    sums = [card.sum(t) for t in live]
    promised = predict(allocator, 0, request) is not None
    outcome = compact(allocator, 0, request)
    assert "stopped" not in outcome.reason
    assert outcome.done == promised
    assert [card.sum(t) for t in live] == sums
    spans = sorted((b.address, b.address + b.size) for s in allocator.segments(0) for b in s.blocks)
    assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))
    if outcome.done:
        assert fits(card, request)


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
    heap = Heap.of(allocator.segments(0), storages, 0)
    assert plan(heap, 300 * MIB) is None
    assert {s.key: s.address for s in allocator.storages(0)} == before
    assert len(kept) == 10


def test_planning_changes_nothing(card):
    """Asking whether a request would fit moves no tensor."""
    live = strewn(card, random.Random(1))
    allocator = card.allocator
    before = {s.key: s.address for s in allocator.storages(0)}
    predict(allocator, 0, 200 * MIB)
    assert {s.key: s.address for s in allocator.storages(0)} == before
    assert live


def test_sizes_follow_the_allocators_rules():
    """Rounding of blocks and segments, as torch does it."""
    assert [block_size(n) for n in (1, 512, 513, MIB)] == [512, 512, 1024, MIB]
    assert [segment_size(n) for n in (MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 11 * MIB + 1)] == [
        2 * MIB, 20 * MIB, 20 * MIB, 10 * MIB, 12 * MIB,
    ]  # fmt: skip
