"""The model that compaction is planned on: sizes as the allocator has them, holes filled and tried."""

from __future__ import annotations

import random

import pytest
import random_heaps
from hypothesis import given
from hypothesis import strategies as st

from cuda_magic.machine import use
from cuda_magic.memory.compaction.goal import take
from cuda_magic.memory.compaction.heap import Heap
from cuda_magic.memory.compaction.pieces import Space
from cuda_magic.memory.compaction.plan import plan
from cuda_magic.memory.compaction.rules import MIB, UNLIMITED, Rules, block_size, segment_size
from cuda_magic.testing import gpu


@pytest.mark.parametrize("kind", ["large", "small", "mixed", "streams"])
def test_both_ways_of_filling_holes_are_one(kind):
    """A split limit that nothing reaches takes the general way: the same plan, with the same fillers."""
    plans = []
    for seed in range(8):
        one = gpu(("2 GiB",), force=True)
        one.limit("1 GiB")
        draw = random.Random(f"{kind} {seed}")
        live = random_heaps.strewn(one, kind, draw)
        one.allocator.empty_cache()
        found = one.allocator.survey(0)
        request = one.allocator.stats(0).cached * 3 // 4
        made = [
            plan(lambda rules=rules, found=found: Heap.of(found.segments, found.storages, 64 * MIB, rules), request,
                 stream=found.stream, host=lambda: 1 << 40)
            for rules in (Rules(), Rules(max_split=UNLIMITED - 1))
        ]  # fmt: skip
        assert live and (made[0] is None) == (made[1] is None)
        if made[0] is not None:
            fills = [sorted(op[1:3] for op in p.ops if op.kind == "fill") for p in made]
            assert fills[0] == fills[1]
            assert [op for op in made[0].ops if op.kind == "move"] == [op for op in made[1].ops if op.kind == "move"]
            plans.append(made[0])
    use(None)
    assert any(p.ops for p in plans)


@given(st.lists(st.integers(1, 40), max_size=8), st.lists(st.integers(1, 60), max_size=8), st.lists(st.integers(1, 60)))
def test_trying_whether_blocks_fit_leaves_the_holes_as_they_were(needs, own, others):
    """Placed one by one in the best hole: used up where all fit, untouched where one does not."""
    space = Space(0, True, Rules())
    unit = 512
    needs = sorted((n * unit for n in needs), reverse=True)
    room = sorted(n * unit for n in own + others)
    before = list(room)
    holes = sorted(n * unit for n in others)
    left = 0
    for need in needs:
        fitting = [h for h in holes if h >= need]
        if not fitting:
            left += need
            continue
        holes.remove(fitting[0])
        holes = sorted([*holes, fitting[0] - need]) if fitting[0] > need else holes
    assert take(space, needs, [n * unit for n in own], room) == left
    assert room == (before if left else holes)


def test_sizes_follow_the_allocators_rules():
    """Rounding of blocks and segments, as torch does it."""
    assert [block_size(n) for n in (1, 512, 513, MIB)] == [512, 512, 1024, MIB]
    assert [segment_size(n) for n in (MIB, MIB + 1, 10 * MIB - 512, 10 * MIB - 1, 11 * MIB + 1)] == [
        2 * MIB, 20 * MIB, 20 * MIB, 10 * MIB, 12 * MIB,
    ]  # fmt: skip


def test_sizes_follow_the_settings():
    """Divisions of a power of two, large segments, blocks that are not split: as torch's source has them."""
    halves = Rules(divisions=(2,) * 16)
    assert [halves.block_size(n * MIB) for n in (1, 5, 6, 7, 9)] == [n * MIB for n in (1, 6, 6, 8, 12)]
    assert halves.block_size(300) == 512
    assert halves.request(13 * MIB, small=False) == 12 * MIB
    assert halves.request(MIB + MIB // 4, small=False) == 0  # the next lower one is of the small pool
    by_size = Rules(divisions=(1, 1, 4, 8))
    assert [by_size.block_size(n * MIB + 512) for n in (1, 4, 8)] == [MIB + 512, 5 * MIB, 9 * MIB]
    assert Rules(large_segment=32 * MIB).segment_size(2 * MIB) == 32 * MIB
    split = Rules(max_split=32 * MIB)
    assert split.takes(31 * MIB, 2 * MIB) and not split.takes(32 * MIB, 2 * MIB)
    assert split.takes(51 * MIB, 32 * MIB) and not split.takes(52 * MIB, 32 * MIB)
    assert split.rest(64 * MIB, 40 * MIB, small=False) == 0
    assert Rules(expandable=True).from_driver(21 * MIB) == 40 * MIB


def test_the_rules_are_read_from_the_settings_in_force():
    """As torch's snapshot tells them; two that it does not tell, from the text of the configuration."""
    from cuda_magic.memory.torch.settings import rules_of

    assert rules_of({}) == Rules()
    divisions = {1 << i: (1 if i < 8 else 4) for i in range(16)}
    found = {
        "max_split_size": 64 * MIB,
        "roundup_power2_divisions": divisions,
        "expandable_segments": False,
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,large_segment_size_mb:32,roundup_power2_divisions:[256:4,>:4]",
    }
    rules = rules_of(found)
    assert (rules.max_split, rules.large_segment, rules.non_split_rounding) == (64 * MIB, 32 * MIB, 32 * MIB)
    assert rules.divisions == (1,) * 8 + (4,) * 8
    assert rules.block_size(100 * MIB + 1) == 100 * MIB + 512
    assert rules.block_size(300 * MIB) == 320 * MIB
    assert rules_of({"max_split_size": -1, "roundup_power2_divisions": dict.fromkeys(divisions, 0)}) == Rules()
