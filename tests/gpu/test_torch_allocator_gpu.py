"""torch's allocator behind our protocol, on a real card: random states, settings and uncached memory."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.gpu
MIB = 1 << 20


def empty(torch, size: int):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


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
