"""Compaction on a real card: predicted before anything moves, every byte intact."""

from __future__ import annotations

import gc
import random
import time

import pytest

pytestmark = pytest.mark.gpu
MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture
def card():
    """torch on a card capped so that a few GiB are all there is; everything is given back afterwards."""
    import torch

    torch.zeros(1, device="cuda")
    total = torch.cuda.get_device_properties(0).total_memory

    def cap(size: int) -> None:
        torch.cuda.set_per_process_memory_fraction(size / total)

    torch.cap = cap
    yield torch
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1.0)


def empty(torch, size: int):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def fits(torch, size: int) -> bool:
    try:
        empty(torch, size)
    except torch.OutOfMemoryError:
        return False
    return True


def intact(live) -> bool:
    return all(bool((t == i % 251).all()) for i, t in enumerate(live))


def test_the_fragmented_heap_that_collect_and_retry_cannot_help(card):
    """56 blocks of 64 MiB strewn over 7 GiB, 1 GiB free: 3 GiB fit after compaction, data and views right."""
    from record import record

    from cuda_magic.memory.compaction import compact
    from cuda_magic.memory.torch import allocator

    times = []
    for _ in range(3):
        card.cap(8 * GIB)
        whole = empty(card, 7 * GIB)
        del whole
        blocks = [empty(card, 64 * MIB) for _ in range(112)]
        live = blocks[::2]
        del blocks
        for i, tensor in enumerate(live):
            tensor.fill_(i % 251)
        views = [tensor[5:9] for tensor in live]
        gc.collect()
        card.cuda.empty_cache()
        assert not fits(card, 3 * GIB)
        card.cuda.synchronize()
        started = time.perf_counter()
        outcome = compact(allocator(), 0, 3 * GIB)
        card.cuda.synchronize()
        times.append(time.perf_counter() - started)
        assert outcome.done, outcome
        assert fits(card, 3 * GIB)
        assert intact(live)
        assert all(int(v[0]) == i % 251 for i, v in enumerate(views))
        del live, views, tensor
        gc.collect()
        card.cuda.empty_cache()
    record("compact_heap_A", {"seconds": times, "moves": outcome.moves, "moved_bytes": outcome.moved})


def test_random_heaps_are_never_mispredicted(card):
    """A plan that was made succeeds, a compaction that is refused would have failed; the data is right either way."""
    from record import record

    from cuda_magic.memory.compaction import compact
    from cuda_magic.memory.torch import allocator

    counts: dict[str, int] = {}
    times = []
    deadline = time.monotonic() + 60
    for seed in range(100):
        if time.monotonic() > deadline:
            break
        draw = random.Random(seed)
        card.cap(draw.choice([2, 4, 6]) * GIB)
        if seed % 4 != 3:
            whole = empty(card, int(draw.uniform(0.5, 1.6) * GIB))
            del whole
        size = [
            lambda d=draw: d.randint(MIB + 1, 200 * MIB),
            lambda d=draw: d.choice([2, 4, 8, 16, 32, 64, 128]) * MIB,
            lambda d=draw: int(2 ** d.uniform(20.1, 27.5)),
            lambda d=draw: d.choice([3, 7, 13]) * MIB,
        ][seed % 4]
        live = []
        try:
            while True:
                live.append(empty(card, size()))
        except card.OutOfMemoryError:
            pass
        share = draw.uniform(0.2, 0.7)
        live = [t for t in live if draw.random() > share]
        gc.collect()
        card.cuda.empty_cache()
        for i, tensor in enumerate(live):
            tensor.fill_(i % 251)
        torch_allocator = allocator()
        stats = torch_allocator.stats(0)
        free = torch_allocator.memory_limit(0) - stats.allocated
        request = int(free * draw.choice([0.5, 0.7, 0.85, 0.95]))
        if fits(card, request):
            result = "fits anyway"
        else:
            started = time.perf_counter()
            outcome = compact(torch_allocator, 0, request)
            seconds = time.perf_counter() - started
            good = fits(card, request)
            card.cap(100 * GIB)  # comparing needs memory too
            assert intact(live), (seed, outcome)
            assert not (outcome.done and not good), ("mispredicted", seed, outcome)
            assert "stopped" not in outcome.reason, ("diverged", seed, outcome)
            result = outcome.how if outcome.done else "no plan"
            if outcome.done:
                times.append(seconds)
        counts[result] = counts.get(result, 0) + 1
        live = tensor = None
        gc.collect()
        card.cuda.empty_cache()
    times.sort()
    record("compact_random_heaps", {"counts": counts, "median_s": times[len(times) // 2], "worst_s": times[-1]})
    assert sum(counts.get(how, 0) for how in ("window", "slide", "evacuate")) >= 10


def test_a_live_cuda_graph_forbids_moving(card):
    """A captured graph replays with old addresses: nothing is moved, and the reason says so."""
    from cuda_magic.memory.torch import allocator

    static = card.zeros(1 << 20, device="cuda")
    graph = card.cuda.CUDAGraph()
    with card.cuda.graph(graph):
        out = static + 1
    assert "CUDA graph" in allocator().moving_refused(0)
    del graph, out, static


def test_the_random_state_of_the_card_comes_back(card):
    """Numbers drawn after set_random_state equal those drawn before."""
    from cuda_magic.memory.torch import allocator

    torch_allocator = allocator()
    state = torch_allocator.random_state()
    first = card.rand(5, device="cuda"), card.rand(5)
    torch_allocator.set_random_state(state)
    second = card.rand(5, device="cuda"), card.rand(5)
    assert card.equal(first[0], second[0])
    assert card.equal(first[1], second[1])


def test_expandable_segments_are_switched_on_and_put_back(card):
    """Inside, new segments are expandable; afterwards the setting is what it was."""
    from cuda_magic.memory.torch import allocator

    card.cuda.empty_cache()
    torch_allocator = allocator()
    assert torch_allocator.expandable() is False
    with torch_allocator.with_expandable():
        inside = empty(card, 40 * MIB)
        assert any(s.expandable for s in torch_allocator.segments(0))
    assert torch_allocator.expandable() is False
    del inside


def test_uncached_memory_returns_to_the_driver(card):
    """A tensor allocated with the cache bypassed is freed to the driver, and the next one is cached again."""
    from cuda_magic.memory.torch import allocator

    torch_allocator = allocator()
    card.cuda.empty_cache()
    reserved = torch_allocator.stats(0).reserved
    with torch_allocator.uncached():
        inside = empty(card, 64 * MIB)
        assert torch_allocator.stats(0).reserved == reserved
    held = torch_allocator.driver_memory(0)[0]
    del inside
    assert torch_allocator.driver_memory(0)[0] - held >= 64 * MIB
    cached = empty(card, 64 * MIB)
    assert torch_allocator.stats(0).reserved >= reserved + 64 * MIB
    del cached
